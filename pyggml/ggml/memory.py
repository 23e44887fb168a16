"""Who owns the memory that a tensor points to, and whether it is still the tensor's."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import ClosedError, Handle

if TYPE_CHECKING:
    from pyggml.ggml.context import Context


class StaleError(PyggmlError):
    """A tensor or graph lost its memory when its scheduler or allocator took it for another graph."""


class Owner(Handle):
    """A handle that owns memory of tensors: a buffer, an allocator, a scheduler.

    Attributes:
        generation: counts up whenever the memory is given to other tensors.
    """

    generation: int = 0


class GraphViews(Owner):
    """The views that graphs have of one buffer on a MetaDevice: upstream remembers one graph's at a time.

    Attributes:
        since_compute: views that it has made since the last computation, which forgets them.
    """

    since_compute: int = 0

    def _release(self) -> None:
        pass


class Stamp:
    """Memory that an owner gave at one time.

    Tensors keep a buffer, but not a scheduler or allocator: those keep their graph, and so its tensors.
    """

    __slots__ = ("_label", "_owner", "_weak", "generation")

    def __init__(self, owner: Owner, *, keep: bool) -> None:
        self._owner = owner if keep else None
        self._weak = weakref.ref(owner)
        self._label = owner.label
        self.generation = owner.generation

    @property
    def owner(self) -> Owner:
        """Whose it is.

        Raises:
            ClosedError: it has been collected.
        """
        owner = self._weak()
        if owner is None:
            raise ClosedError(f"{self._label} is gone: nobody kept it")
        return owner

    @property
    def valid(self) -> bool:
        """Whether it is still there and still the same tensor's."""
        owner = self._weak()
        return owner is not None and not owner.closed and self.generation == owner.generation

    def check(self, what: str) -> None:
        """Raise if the memory is gone.

        Raises:
            ClosedError: the owner is closed.
            StaleError: it has given the memory to another graph.
        """
        owner = self._weak()
        if owner is None or owner.closed:
            raise ClosedError(f"{what} has lost its memory: {self._label} is closed")
        if self.generation != owner.generation:
            raise StaleError(
                f"{what} is stale: {self._label} was reset, or got another graph",
                "Build the graph's tensors anew for every allocation (ggml-backend.h, "
                "ggml_backend_sched_reset).",
            )


def stamp_of(context: Context, raw: Any) -> Stamp | None:
    """The stamp of a tensor's memory, None if pyggml did not allocate it."""
    root = raw.view_src or raw
    for one in context.reach():
        stamp = one.memory.get(root)
        if stamp is not None:
            return stamp
    return None


def bound_of(context: Context, raw: Any) -> Stamp | None:
    """The stamp of the graph that a tensor is a node of; its sources are the scheduler's from then on."""
    for one in context.reach():
        stamp = one.bound.get(raw)
        if stamp is not None:
            return stamp
    return None
