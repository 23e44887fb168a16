"""Contexts: where the descriptions of tensors live (not their data)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import Handle
from pyggml.ggml.library import load

if TYPE_CHECKING:
    from pyggml.ggml.buffer import Buffer
    from pyggml.ggml.device import Place
    from pyggml.ggml.graph import Graph
    from pyggml.ggml.memory import Stamp
    from pyggml.ggml.ops import Ops
    from pyggml.ggml.tensor import Tensor

_numbers = itertools.count(1)
_SPARE = 32
"""Tensors that one operation may make (composite ones make several)."""

MOST_BYTES = 1 << 46


class Context(Handle):
    """A pool of tensor descriptions (`struct ggml_context` with no_alloc; data is in buffers).

    Closing it closes its graphs and every context whose tensors were made of its own.
    """

    def __init__(self, name: str | None = None, capacity: int = 2048) -> None:
        """
        Args:
            name: for messages.
            capacity: how many tensors fit, results of operations included; 1 to 4,000,000.

        Raises:
            PyggmlError: the capacity is out of range, or there is no memory.
        """
        if not isinstance(capacity, int) or not 1 <= capacity <= 4_000_000:
            raise PyggmlError(f"a capacity of {capacity!r} tensors is asked for; 1 to 4,000,000 are possible")
        self._bindings = load()
        ffi, lib = self._bindings.ffi, self._bindings.lib
        self._overhead = lib.ggml_tensor_overhead()
        size = (capacity + _SPARE) * self._overhead
        self.raw = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
        if not self.raw:
            raise PyggmlError(f"no memory for a context of {size} bytes")
        self._size = lib.ggml_get_mem_size(self.raw)
        self.capacity = capacity
        self.memory: dict[Any, Stamp] = {}
        self.bound: dict[Any, Stamp] = {}
        self._uses: list[Context] = []
        super().__init__(f"context {name or next(_numbers)}")

    @property
    def ops(self) -> Ops:
        """The operations: `context.ops.mul_mat(a, b)` for ggml_mul_mat; see Ops."""
        from pyggml.ggml.ops import Ops

        return Ops(self)

    def tensor(self, type: Any, shape: int | Sequence[int], name: str | None = None) -> Tensor:
        """A new tensor without data.

        Args:
            type: `"f32"`, `"q8_0"`, or a numpy dtype.
            shape: in numpy's order, outermost first: (rows, columns) has ne = [columns, rows].
            name: up to 63 bytes.

        Raises:
            PyggmlError: wrong type or shape (1 to 4 lengths from 1 on; the last one a multiple of the type's
                block), a long name, or the context is full.
            ClosedError, ThreadError: see Handle.
        """
        from pyggml.ggml.tensor import Tensor, check_name
        from pyggml.ggml.types import tensor_type

        kind = tensor_type(type)
        ne = check_shape(shape, f"tensor {name or ''}".strip())
        if ne[0] % kind.block:
            raise PyggmlError(
                f"a row of {ne[0]} elements cannot be {kind}: its blocks have {kind.block} elements "
                f"(shape {tuple(reversed(ne))})"
            )
        if kind.row_bytes(ne[0]) * _product(ne[1:]) > MOST_BYTES:
            raise PyggmlError(f"a {kind} tensor of shape {tuple(reversed(ne))} is larger than 2**46 bytes")
        encoded = check_name(name) if name is not None else None
        lib = self._bindings.lib
        with self.using():
            self.room()
            raw = lib.ggml_new_tensor(self.raw, kind.number, len(ne), ne)
            if encoded is not None:
                lib.ggml_set_name(raw, encoded)
        return Tensor(self, raw, len(ne))

    def graph(self, *outputs: Tensor, size: int | None = None) -> Graph:
        """A graph that computes `outputs`; see Graph."""
        from pyggml.ggml.graph import Graph

        return Graph(self, *outputs, size=size)

    def allocate(self, place: Place) -> Buffer:
        """Memory for every tensor here that has none, in one buffer (ggml_backend_alloc_ctx_tensors_from_buft).

        Args:
            place: a Device, Backend or BufferType.

        Returns:
            The buffer; the context keeps it as well.

        Raises:
            PyggmlError: nothing needs memory, or the device has too little; the message says how much is asked
                for and what is free. On a MetaDevice also what Python says about the split states.
        """
        from pyggml.ggml.buffer import allocate_context

        return allocate_context(self, place)

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they were made."""
        from pyggml.ggml.tensor import Tensor

        with self.using():
            return [Tensor(self, raw) for raw in self._all_raw()]

    @property
    def tensors_left(self) -> int:
        """How many more tensors fit."""
        with self.using():
            left = self._size - self._bindings.lib.ggml_used_mem(self.raw)
        return max(0, int(left // self._overhead) - _SPARE)

    def reach(self) -> Iterator[Context]:
        """This context and all whose tensors it uses."""
        yield self
        for one in self._uses:
            yield from one.reach()

    def use(self, other: Context) -> None:
        """Tensors of `other` become sources of tensors here, so that closing it closes this.

        Raises:
            PyggmlError: it uses tensors of this one already.
        """
        if other is self or other in self._uses:
            return
        if self in other.reach():
            raise PyggmlError(
                f"{other.label} is made of tensors of {self.label}, so it cannot be the other way round too",
                "Make the operation in the context of the later tensor.",
            )
        self.adopt(other)
        self._uses.append(other)

    def room(self) -> None:
        """Raise if an operation's tensors may not fit."""
        used = self._bindings.lib.ggml_used_mem(self.raw)
        if used + _SPARE * self._overhead > self._size:
            raise PyggmlError(
                f"{self.label} is full: it has room for {self.capacity} tensors", "Give it more capacity."
            )

    def _all_raw(self) -> Iterator[Any]:
        lib = self._bindings.lib
        raw = lib.ggml_get_first_tensor(self.raw)
        while raw:
            yield raw
            raw = lib.ggml_get_next_tensor(self.raw, raw)

    def _release(self) -> None:
        self.memory.clear()
        self.bound.clear()
        self._bindings.lib.ggml_free(self.raw)


def check_shape(shape: Any, what: str) -> list[int]:
    """numpy's shape as ne.

    Raises:
        PyggmlError: it is none that a tensor can have.
    """
    import operator

    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        ne = [operator.index(length) for length in reversed(lengths)]
    except TypeError:
        raise PyggmlError(f"{what}: {shape!r:.80} is no shape: whole numbers are needed") from None
    if not 1 <= len(ne) <= 4:
        raise PyggmlError(f"{what}: a tensor has 1 to 4 dimensions, not {len(ne)} (shape {shape!r:.80})")
    if any(not 1 <= length < 1 << 40 for length in ne):
        raise PyggmlError(f"{what}: every length is at least 1 (and below 2**40), not {shape!r:.80}")
    return ne


def _product(lengths: list[int]) -> int:
    result = 1
    for length in lengths:
        result *= length
    return result
