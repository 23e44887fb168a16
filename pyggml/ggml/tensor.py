"""Tensors: a description in a context, and the data in a buffer that numpy reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import Handle
from pyggml.ggml.library import load
from pyggml.ggml.memory import Stamp, bound_of, stamp_of
from pyggml.ggml.types import TensorType, type_of_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyggml.ggml.context import Context

_NAME_BYTES = 63
_VIEW_OPS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")


class Loan(Handle):
    """Stands for the context of a tensor that upstream lends for the time of a callback."""

    def reach(self) -> Iterator[Context]:
        """No context."""
        return iter(())

    def _release(self) -> None:
        pass


class Tensor:
    """A `struct ggml_tensor`; no copy, so two of them may be the same tensor (`==` says so).

    Shapes are numpy's: the reverse of ne, outermost first. A tensor knows no lengths of 1 that come first
    in it, so (1, 4) reads as (4,) unless it was made here with two.
    """

    __slots__ = ("_dimensions", "context", "raw")

    def __init__(self, context: Context, raw: Any, dimensions: int | None = None) -> None:
        """
        Args:
            context: the one whose memory it is in, or one that uses that.
            raw: `struct ggml_tensor *`.
            dimensions: how many lengths `shape` shall have at least.
        """
        self.context = context
        self.raw = raw
        self._dimensions = dimensions or 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        if self.context.closed:
            return "<Tensor of a closed context>"
        return f"<Tensor {self.name!r} {self.type} {self.shape}{'' if self.op == 'NONE' else ' ' + self.op}>"

    @property
    def name(self) -> str:
        """Its name; up to 63 bytes of UTF-8."""
        self.context.check()
        return _text(load().ffi.string(self.raw.name))

    @name.setter
    def name(self, name: str) -> None:
        encoded = check_name(name)
        with self.context.using():
            load().lib.ggml_set_name(self.raw, encoded)

    @property
    def type(self) -> TensorType:
        """The type of its elements."""
        self.context.check()
        return type_of_number(self.raw.type)

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """ggml's lengths, innermost first, always four."""
        self.context.check()
        one, two, three, four = load().ffi.unpack(self.raw.ne, 4)
        return (one, two, three, four)

    @property
    def nb(self) -> tuple[int, int, int, int]:
        """ggml's strides in bytes, in the order of ne."""
        self.context.check()
        one, two, three, four = load().ffi.unpack(self.raw.nb, 4)
        return (one, two, three, four)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths in numpy's order, outermost first."""
        ne = self.ne
        dimensions = max(self._dimensions, load().lib.ggml_n_dims(self.raw))
        return ne[:dimensions][::-1]

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last element (ggml_nbytes; gaps of a strided view included)."""
        self.context.check()
        return int(load().lib.ggml_nbytes(self.raw))

    @property
    def op(self) -> str:
        """The operation that makes it, in ggml's capitals; NONE for one that is given."""
        self.context.check()
        bindings = load()
        return _text(bindings.ffi.string(bindings.lib.ggml_op_name(self.raw.op)))

    @property
    def is_view(self) -> bool:
        """Whether its data is another tensor's."""
        self.context.check()
        return bool(self.raw.view_src)

    @property
    def contiguous(self) -> bool:
        """Whether its elements follow each other without gaps, in order."""
        self.context.check()
        return bool(load().lib.ggml_is_contiguous(self.raw))

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """What its operation reads. After a scheduler took the graph, these may be its copies.

        Raises:
            StaleError: they were a scheduler's, which has moved on.
        """
        self.context.check()
        self.check_sources()
        found = load().ffi.unpack(self.raw.src, 10)
        return tuple(Tensor(self.context, raw) for raw in found if raw)

    def mark_input(self) -> Tensor:
        """Filled from outside before a computation: a scheduler keeps it on its last backend.

        Returns:
            Itself.

        Raises:
            PyggmlError: it is the result of an operation, or a view.
        """
        if self.op != "NONE":
            raise PyggmlError(f"{self.described()} is made by {self.op}; inputs are tensors that are given")
        with self.context.using():
            load().lib.ggml_set_input(self.raw)
        return self

    def mark_output(self) -> Tensor:
        """Read after a computation: its memory is not used again within the graph. Returns: self."""
        with self.context.using():
            load().lib.ggml_set_output(self.raw)
        return self

    @property
    def allocated(self) -> bool:
        """Whether it has memory that is still its own."""
        self.context.check()
        stamp = stamp_of(self.context, self.raw)
        return stamp is not None and stamp.valid and bool((self.raw.view_src or self.raw).buffer)

    def set(self, array: npt.NDArray[Any]) -> None:
        """Write all of it, wherever its memory is.

        Args:
            array: numpy array of its shape (leading lengths of 1 do not matter) and dtype; for types without
                one, uint8 of shape (…, bytes of a row). In C order, unless the memory is the host's.

        Raises:
            PyggmlError: another dtype, byte order, order or shape; no memory; or a kind of view that cannot be
                written there (the message says which).
            ClosedError, StaleError: its memory is gone.
        """
        from pyggml.ggml.transfer import set_array

        set_array(self, array)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of its data as numpy array of `shape`; see `set` for dtype and errors."""
        from pyggml.ggml.transfer import get_array

        return get_array(self)

    def view(self) -> npt.NDArray[Any]:
        """Its data itself, not a copy: a writable numpy array on host memory, with the tensor's strides.

        The array keeps the memory: closing the buffer closes it for everything else at once, and the memory
        is freed when the last view is collected.

        Raises:
            PyggmlError: the memory is not the host's, or belongs to a scheduler or allocator, which gives it to
                other tensors within the graph (use `numpy()`).
        """
        from pyggml.ggml.transfer import host_view

        return host_view(self)

    def read(self, offset: int = 0, size: int | None = None) -> npt.NDArray[np.uint8]:
        """Bytes of its memory (ggml_backend_tensor_get).

        Args:
            offset, size: in bytes; all that follow by default. On a MetaDevice both must be multiples of what
                one step along the next axis outside the split one takes (upstream moves whole slices).

        Raises:
            PyggmlError: outside the tensor, or not possible on its device.
        """
        from pyggml.ggml.transfer import read_bytes

        return read_bytes(self, offset, size)

    def write(self, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Write bytes at an offset in bytes (ggml_backend_tensor_set); see `read`.

        Args:
            data: C-contiguous array whose bytes are written as they are.
        """
        from pyggml.ggml.transfer import write_bytes

        write_bytes(self, data, offset)

    def fill(self, value: int) -> None:
        """Every byte becomes `value`, 0 to 255 (ggml_backend_tensor_memset; older MetaDevices cannot)."""
        from pyggml.ggml.transfer import fill_bytes

        fill_bytes(self, value)

    def dequantized(self) -> npt.NDArray[np.float32]:
        """Its values as float32 of `shape`, by the type's own `to_float` (ggml_get_type_traits).

        Raises:
            PyggmlError: the type cannot be converted (f64 and integers cannot).
        """
        from pyggml.ggml.transfer import get_floats

        return get_floats(self)

    def check_usable(self) -> None:
        """Raise unless operations can be built on it."""
        self.context.check()
        stamp = stamp_of(self.context, self.raw)
        if stamp is not None and not stamp.valid:
            stamp.check(self.described())
        self.check_sources()

    def check_sources(self) -> None:
        """Raise StaleError if its sources were copies of a scheduler that has moved on."""
        stamp = bound_of(self.context, self.raw)
        if stamp is not None and not stamp.valid:
            stamp.check(self.described())

    def stamp(self) -> Stamp:
        """Whose its memory is.

        Raises:
            PyggmlError: nobody's yet.
            ClosedError, StaleError: it is gone.
        """
        self.context.check()
        stamp = stamp_of(self.context, self.raw)
        if stamp is None:
            raise PyggmlError(
                f"{self.described()} has no memory yet",
                "Allocate its context, or the graph that it is in, first.",
            )
        stamp.check(self.described())
        return stamp

    def described(self) -> str:
        """What messages call it."""
        if self.context.closed:
            return "a tensor of a closed context"
        return f"tensor {self.name or self.op.lower()!r} ({self.type} {self.shape})"


def is_view_op(op: str) -> bool:
    """Whether an operation computes nothing and only describes other data anew."""
    return op in _VIEW_OPS


def check_name(name: Any) -> bytes:
    """A tensor's name as C holds it.

    Raises:
        PyggmlError: it does not fit, or has a NUL.
    """
    if not isinstance(name, str):
        raise PyggmlError(f"a tensor's name is text, not {type(name).__name__}")
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _NAME_BYTES or b"\0" in encoded:
        raise PyggmlError(
            f"the tensor name {name!r:.100} has {len(encoded)} bytes; up to {_NAME_BYTES}, none NUL, are possible"
        )
    return encoded


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
