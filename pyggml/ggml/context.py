"""Contexts: where the descriptions of tensors live (not their data)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Backend, Buffer, BufferType, Device, buffer_type_of
from pyggml.ggml.graph import Graph
from pyggml.ggml.library import load
from pyggml.ggml.ops import Ops
from pyggml.ggml.ownership import SPARE, Stamp, TensorPool
from pyggml.ggml.tensor import Tensor, check_name
from pyggml.ggml.types import tensor_type

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_tensor

_numbers = itertools.count(1)

MOST_BYTES = 1 << 46


class Context(TensorPool):
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
        bindings = load()
        size = (capacity + SPARE) * bindings.lib.ggml_tensor_overhead()
        raw = bindings.lib.ggml_init({"mem_size": size, "mem_buffer": bindings.ffi.NULL, "no_alloc": True})
        if not raw:
            raise PyggmlError(f"no memory for a context of {size} bytes")
        super().__init__(f"context {name or next(_numbers)}", raw, capacity)

    @property
    def ops(self) -> Ops:
        """The operations: `context.ops.mul_mat(a, b)` for ggml_mul_mat; see Ops. Keep it for many calls."""
        return Ops(self)

    def tensor(self, type: Any, shape: int | Sequence[int], name: str | None = None) -> Tensor:
        """A new tensor without data.

        Args:
            type: `"f32"`, `"q8_0"`, or a numpy dtype.
            shape: in numpy's order, outermost first: (rows, columns) has ne = [columns, rows].
            name: up to 63 bytes.

        Raises:
            PyggmlError: wrong type or shape (1 to 4 lengths, each at least 1; the last one a multiple of the
                type's block), a long name, or the context is full.
            ClosedError, ThreadError: see Handle.
        """
        kind = tensor_type(type)
        ne = check_shape(shape, f"tensor {name or ''}".strip())
        if ne[0] % kind.block:
            raise PyggmlError(
                f"a row of {ne[0]} elements cannot be {kind}: its blocks have {kind.block} elements "
                f"(shape {tuple(reversed(ne))})"
            )
        if kind.row_bytes(ne[0]) * math.prod(ne[1:]) > MOST_BYTES:
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
        return Graph(self, *outputs, size=size)

    def allocate(self, place: Device | Backend | BufferType) -> Buffer:
        """Memory for every tensor here that has none, in one buffer (ggml_backend_alloc_ctx_tensors_from_buft).

        Returns:
            The buffer; the context keeps it as well.

        Raises:
            PyggmlError: nothing needs memory, or the device has too little; the message says how much is asked
                for and what is free. On a MetaDevice also what its split function raises.
        """
        buffer_type = buffer_type_of(place)
        with self.using():
            without = [raw for raw in self.raw_tensors() if not raw.data and not raw.buffer]
            roots = [raw for raw in without if not raw.view_src]
            if not roots:
                raise PyggmlError(f"{self.label} has no tensor that needs memory")
            for raw in self.raw_tensors():
                if not raw.buffer:
                    self._check_view(raw, roots)
            buffer = buffer_type.device.allocate(self, buffer_type, without)
            stamp = Stamp(buffer, keep=True)
            for raw in roots:
                self.own(raw, stamp)
            return buffer

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they were made."""
        with self.using():
            return [Tensor(self, raw) for raw in self.raw_tensors()]

    def _check_view(self, raw: ggml_tensor, roots: list[ggml_tensor]) -> None:
        tensor, viewed = Tensor(self, raw), raw.view_src
        tensor.check_usable()
        if not viewed:
            return
        if self._bindings.lib.ggml_backend_buffer_is_meta(viewed.buffer):
            raise PyggmlError(
                f"{tensor.described()} is a view of a tensor on a MetaDevice",
                "It gets its memory from the graph that needs it: make it in a context of its own.",
            )
        if not viewed.buffer and viewed not in roots:
            raise PyggmlError(
                f"{tensor.described()} is a view of {Tensor(self, viewed).described()}, "
                "which is of another context and has no memory yet",
                "Allocate that context first.",
            )

    def _release(self) -> None:
        self.memory.clear()
        self.bound.clear()
        self._stamps.clear()
        self._bindings.lib.ggml_free(self.raw)


def check_shape(shape: Any, what: str) -> list[int]:
    """numpy's shape as ne.

    Raises:
        PyggmlError: no tensor can have it.
    """
    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        ne = [operator.index(length) for length in reversed(lengths)]
    except TypeError:
        raise PyggmlError(f"{what}: {shape!r:.80} is not a shape: whole numbers are needed") from None
    if not 1 <= len(ne) <= 4:
        raise PyggmlError(f"{what}: a tensor has 1 to 4 dimensions, not {len(ne)} (shape {shape!r:.80})")
    if any(not 1 <= length < 1 << 40 for length in ne):
        raise PyggmlError(f"{what}: every length is at least 1 (and below 2**40), not {shape!r:.80}")
    return ne
