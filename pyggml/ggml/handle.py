"""Handles on C objects: closed once, unusable afterwards, freed when nothing uses the memory any more."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from types import TracebackType
from typing import NoReturn, Self

from pyggml.errors import PyggmlError


class ClosedError(PyggmlError):
    """A handle was used after it, or what it belongs to, was closed."""


class ThreadError(PyggmlError):
    """Two threads used one handle at the same time; ggml's objects have no locks."""


class InUseError(PyggmlError):
    """A handle was closed while C was using it, so by a callback of that call."""


class Use:
    """The block in which one thread uses a handle (see Handle.using); the thread may nest it.

    Attributes:
        depth: how often it has.
    """

    __slots__ = ("_handle", "depth", "lock")

    def __init__(self, handle: Handle) -> None:
        # Weakly, or every handle would be a cycle.
        self._handle = weakref.ref(handle)
        self.lock = threading.RLock()
        self.depth = 0

    def __enter__(self) -> None:
        handle = self._handle()
        if not self.lock.acquire(blocking=False):
            self.refuse()
        if handle is None or handle._closed:
            self.lock.release()
            raise ClosedError(f"{handle.label if handle is not None else 'the handle'} is closed")
        self.depth += 1

    def refuse(self) -> NoReturn:
        """Raise ThreadError: another thread holds `lock`."""
        handle = self._handle()
        raise ThreadError(
            f"{handle.label if handle is not None else 'a handle'} is in use by another thread",
            "Give every thread its own, or take turns with a threading.Lock.",
        )

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self.lock.release()


class Lease:
    """Keeps the memory of a handle until it is given back or collected; see Handle.lease."""

    def __init__(self, handle: Handle, in_call: bool) -> None:
        self._handle: Handle | None = handle
        self._in_call = in_call

    def give_back(self) -> None:
        """Done with the memory; a second time is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle._lease_ends(self._in_call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.give_back()


# Leases end in whatever thread collects a numpy view, also while this thread holds the lock.
_counting = threading.RLock()


class Handle:
    """Base of everything that stands for a C object.

    Rules: closing twice is harmless; use after close raises ClosedError; closing a parent closes its children
    first; a child keeps its parents alive; a lease (a numpy view) postpones the freeing of the memory, not the
    closing of the handle; what C is using just now cannot be closed, so not in a callback (InUseError); a second
    thread gets ThreadError; nothing is freed while the interpreter shuts down.

    A subclass makes its C object, then calls `super().__init__(label, *parents)` as the last thing that can
    fail, implements `_release()` (free the C object; called exactly once, never raises) and opens every
    method with `with self.using():` (exclusive) or `self.check()` (only whether it is open).
    """

    label: str
    """What messages call it, for example `context 'weights'`."""

    _closed: bool = True
    """Until it is made, and from close on."""

    def __init__(self, label: str, *parents: Handle) -> None:
        """
        Args:
            parents: handles whose C objects this one needs; they are kept, and closing one closes this.

        Raises:
            ClosedError: a parent is closed.
        """
        for parent in parents:
            parent.check()
        self.label = label
        self._parents: list[Handle] = []
        self._children: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self._use = Use(self)
        self._busy = 0
        self._calls = 0
        self._released = False
        self._closed = False
        for parent in parents:
            self.adopt(parent)

    @property
    def closed(self) -> bool:
        """Whether it, or something it belongs to, was closed."""
        return self._closed

    def check(self) -> None:
        """Raise ClosedError if it is closed."""
        if self._closed:
            raise ClosedError(f"{getattr(self, 'label', 'the handle')} is closed")

    def using(self) -> Use:
        """`with handle.using():` is the block in which this thread alone uses it.

        Raises (on entering):
            ClosedError: it is closed.
            ThreadError: another thread is in such a block.
        """
        return self._use

    def adopt(self, parent: Handle) -> None:
        """One more parent; parents must not form a circle.

        Raises:
            ClosedError: it is closed.
        """
        with _counting:
            parent.check()
            self._parents.append(parent)
            parent._children[id(self)] = self
            parent._busy += 1

    def lease(self, *, in_call: bool = False) -> Lease:
        """Postpone the freeing of the C object until the lease is given back or collected.

        Args:
            in_call: for a call into C, and until it returns: meanwhile closing raises InUseError. Unlike `using`, it
                keeps no other thread out.

        Raises:
            ClosedError: it is closed.
        """
        with _counting:
            self.check()
            self._busy += 1
            self._calls += in_call
        return Lease(self, in_call)

    def close(self) -> None:
        """Close the children, then this; the C object is freed as soon as no lease holds it.

        Raises:
            InUseError: C is using it or a child just now; nothing is closed then.
            ThreadError: another thread is using it or a child; it is still open then.
        """
        if self.closed:
            return
        self._refuse_if_in_call(self)
        with contextlib.suppress(ClosedError), self._use:
            for child in reversed(list(self._children.values())):
                child.close()
            self._closed = True
            self._on_close()
            self._try_release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {getattr(self, 'label', '')}{' (closed)' if self.closed else ''}>"

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if sys.is_finalizing() or self.closed:
            return
        with contextlib.suppress(ThreadError):
            # Not self.close(): in collected cycles the weak references to children are dead already, and
            # the count of those that have not been freed is what protects them.
            for child in list(self._children.values()):
                child.close()
            self._closed = True
            self._on_close()
            self._try_release()

    def _on_close(self) -> None:
        """What must not wait for the leases; by default nothing."""

    def _release(self) -> None:
        """Free the C object."""
        raise NotImplementedError

    def _refuse_if_in_call(self, closing: Handle) -> None:
        for child in list(self._children.values()):
            child._refuse_if_in_call(closing)
        if not self._use.lock.acquire(blocking=False):
            self._use.refuse()
        try:
            in_call = not self._closed and (self._use.depth > 0 or self._calls > 0)
        finally:
            self._use.lock.release()
        if in_call:
            what = "it" if self is closing else f"{self.label}, which would be closed with it"
            raise InUseError(
                f"{closing.label} cannot be closed now: a call that has not returned uses {what}",
                "Close it after that call, not in a callback.",
            )

    def _lease_ends(self, in_call: bool = False) -> None:
        with _counting:
            self._busy -= 1
            self._calls -= in_call
        self._try_release()

    def _try_release(self) -> None:
        with _counting:
            if self._released or not self._closed or self._busy > 0:
                return
            self._released = True
        try:
            self._release()
        finally:
            for parent in self._parents:
                parent._lease_ends()
