"""Who owns the memory that a tensor points to, and whether it is still the tensor's."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import ClosedError, Handle
from pyggml.ggml.library import load
from pyggml.ggml.split_state import SplitState

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_context, ggml_tensor

SPARE = 32
"""Tensors that a pool keeps free for the next operation; composite ones make several."""

_NO_STATES: Mapping[ggml_tensor, SplitState] = MappingProxyType({})


class StaleError(PyggmlError):
    """A tensor or graph lost its memory when its scheduler or allocator took it for another graph."""


class Owner(Handle):
    """A handle that owns memory of tensors: a buffer, an allocator, a scheduler.

    Attributes:
        generation: counts up whenever the memory is given to other tensors.
        permanent: a tensor keeps its memory until the owner is closed (a buffer's does).
        split_states: on a MetaDevice, the split state of each given tensor (raw).
        graph_views: on a MetaDevice, the views that graphs have of a buffer.
    """

    generation: int = 0
    permanent: ClassVar[bool] = False
    split_states: Mapping[ggml_tensor, SplitState] = _NO_STATES
    graph_views: GraphViews | None = None

    def check_transfer(
        self, pool: TensorPool, raw: ggml_tensor, offset: int, size: int, *, writing: bool
    ) -> None:
        """Raise if these bytes of a tensor on a MetaDevice cannot be read or written.

        Raises:
            PyggmlError: upstream would end the process.
        """

    def check_fill(self, pool: TensorPool, raw: ggml_tensor, value: int) -> None:
        """Raise if a tensor on a MetaDevice cannot be filled with that byte; see check_transfer."""


class GraphViews(Owner):
    """The views that graphs have of one buffer on a MetaDevice: upstream remembers one graph's at a time.

    Attributes:
        own: raw views that were allocated together with their tensors.
        most: how many upstream has room for between two computations.
        since_compute: how many were made since the last computation, which forgets them.
    """

    def __init__(self, buffer: Owner, own: set[ggml_tensor], most: int) -> None:
        self.own = own
        self.most = most
        self.since_compute = 0
        super().__init__(f"views of {buffer.label}", buffer)

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
            raise ClosedError(f"{self._label} is gone: nothing kept a reference to it")
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


class TensorPool(Handle):
    """A pool of tensor descriptions, and what is known of the memory of its tensors; see Context.

    Attributes:
        raw: `struct ggml_context *`.
        capacity: how many tensors fit.
        memory: raw tensors that own memory, and the stamp of that.
        bound: raw nodes whose sources a scheduler replaced by its copies, and the stamp of their graph.
        uses: other pools whose tensors are sources of tensors here.
    """

    # Counts the uses of all pools, so that each knows whether what it reaches has grown.
    _all_uses: ClassVar[int] = 0

    def __init__(self, label: str, raw: ggml_context, capacity: int) -> None:
        self._bindings = load()
        self.raw = raw
        self.capacity = capacity
        self.memory: dict[ggml_tensor, Stamp] = {}
        self.bound: dict[ggml_tensor, Stamp] = {}
        self._overhead = self._bindings.lib.ggml_tensor_overhead()
        self._size = self._bindings.lib.ggml_get_mem_size(raw) if raw else 0
        # Operations that certainly fit before the room has to be asked for again.
        self._sure = 0
        self.uses: list[TensorPool] = []
        self._stamps: set[Stamp] = set()
        self._reached: tuple[int, tuple[TensorPool, ...]] = (-1, ())
        super().__init__(label)

    @property
    def tensors_left(self) -> int:
        """How many more tensors fit."""
        with self.using():
            return max(0, self._free() - SPARE)

    def count(self) -> int:
        """How many tensors there are."""
        return int(self._bindings.lib.ggml_used_mem(self.raw) // self._overhead)

    def reach(self) -> tuple[TensorPool, ...]:
        """This pool and all whose tensors it uses."""
        counted, others = self._reached
        if counted != TensorPool._all_uses:
            others = tuple(dict.fromkeys(pool for one in self.uses for pool in one.reach()))
            # Without itself, or every pool would be a cycle.
            self._reached = (TensorPool._all_uses, others)
        return (self, *others)

    def own(self, raw: ggml_tensor, stamp: Stamp) -> None:
        """Record that a tensor has memory."""
        self.memory[raw] = stamp
        self._stamps.add(stamp)

    def bind(self, raw: ggml_tensor, stamp: Stamp) -> None:
        """Record that a node has a graph's sources."""
        self.bound[raw] = stamp
        self._stamps.add(stamp)

    def use(self, other: TensorPool) -> None:
        """Tensors of `other` become sources of tensors here, so that closing it closes this.

        Raises:
            PyggmlError: it uses tensors of this one already.
        """
        if other is self or other in self.uses:
            return
        if self in other.reach():
            raise PyggmlError(
                f"{other.label} is made of tensors of {self.label}, so it cannot be the other way round too",
                "Make the operation in the context of the later tensor.",
            )
        self.adopt(other)
        self.uses.append(other)
        TensorPool._all_uses += 1

    def ready(self, makes: bool) -> bool:
        """Raise unless an operation can be made here, or if `makes` is False, changed.

        Returns:
            See fresh.

        Raises:
            ClosedError: it is closed.
            PyggmlError: it is full.
        """
        if self._closed:
            self.check()
        if makes:
            if self._sure > 0:
                self._sure -= 1
            else:
                self.room()
        return not (self.uses or self._stamps) or self.fresh()

    def fresh(self) -> bool:
        """Whether all memory is still its tensors' own, here and in the pools used."""
        for pool in self.reach():
            for stamp in pool._stamps:
                if not stamp.valid:
                    return False
        return True

    def stamp_of(self, raw: ggml_tensor) -> Stamp | None:
        """The stamp of a tensor's memory, None if pyggml did not allocate it."""
        root = raw.view_src or raw
        return next((one.memory[root] for one in self.reach() if root in one.memory), None)

    def bound_of(self, raw: ggml_tensor) -> Stamp | None:
        """The stamp of the graph that a tensor is a node of; its sources are the scheduler's from then on."""
        return next((one.bound[raw] for one in self.reach() if raw in one.bound), None)

    def room(self) -> None:
        """Raise if an operation's tensors may not fit."""
        free = self._free()
        if free < SPARE:
            raise PyggmlError(
                f"{self.label} is full: it has room for {self.capacity} tensors", "Give it more capacity."
            )
        self._sure = (free - SPARE) // SPARE

    def raw_tensors(self) -> Iterator[ggml_tensor]:
        """`struct ggml_tensor *` of its tensors, in the order in which they were made."""
        lib = self._bindings.lib
        raw = lib.ggml_get_first_tensor(self.raw)
        while raw:
            yield raw
            raw = lib.ggml_get_next_tensor(self.raw, raw)

    def _free(self) -> int:
        return int((self._size - self._bindings.lib.ggml_used_mem(self.raw)) // self._overhead)
