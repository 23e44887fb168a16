"""Tensors: a description in a context, and data in a buffer that numpy reads and writes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import Lease
from pyggml.ggml.library import load
from pyggml.ggml.ownership import Stamp, TensorPool
from pyggml.ggml.types import TensorType, type_of_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyggml.native.c_library import ggml_tensor

MOST_SOURCES = 10
"""GGML_MAX_SRC."""

_NAME_BYTES = 63
_VIEW_OPS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")


class Loan(TensorPool):
    """Stands for the context of a tensor that upstream lends for the time of a callback."""

    def __init__(self, label: str) -> None:
        super().__init__(label, load().ffi.NULL, 0)

    def _release(self) -> None:
        pass


class Tensor:
    """A `struct ggml_tensor`, not a copy: two objects may be the same tensor (`==` says so).

    Shapes are numpy's: the reverse of ne, outermost first. ggml does not keep leading lengths of 1, so a shape
    of (1, 4) reads as (4,) unless this object was made with two lengths.
    """

    __slots__ = ("_dimensions", "context", "raw")

    def __init__(self, context: TensorPool, raw: ggml_tensor, dimensions: int | None = None) -> None:
        """
        Args:
            context: the one that holds its description, or one that uses that.
            raw: `struct ggml_tensor *`.
            dimensions: the least number of lengths in `shape`.
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
        return load().lib.ggml_nbytes(self.raw)

    @property
    def op(self) -> str:
        """The operation that computes it, by ggml's name (MUL_MAT); NONE for a given tensor."""
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
        """Whether its elements are in order and without gaps (ggml_is_contiguous)."""
        self.context.check()
        return load().lib.ggml_is_contiguous(self.raw)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """What its operation reads. After a scheduler took the graph, these may be its copies.

        Raises:
            StaleError: they were a scheduler's, which has moved on.
        """
        self.context.check()
        self.check_sources()
        return tuple(Tensor(self.context, raw) for raw in sources_of(self.raw))

    def mark_input(self) -> Tensor:
        """Mark it as filled before each computation: a scheduler keeps it on its last backend.

        Returns:
            Itself.

        Raises:
            PyggmlError: it is the result of an operation, or a view.
        """
        if self.op != "NONE":
            raise PyggmlError(f"{self.described()} is a result of {self.op}; inputs are not results")
        with self.context.using():
            load().lib.ggml_set_input(self.raw)
        return self

    def mark_output(self) -> Tensor:
        """Mark it as read after a computation: its memory is not reused within the graph. Returns: self."""
        with self.context.using():
            load().lib.ggml_set_output(self.raw)
        return self

    @property
    def allocated(self) -> bool:
        """Whether it has memory that is still its own."""
        self.context.check()
        stamp = self.context.stamp_of(self.raw)
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
        with Access(self) as access:
            _check_array(self, array)
            bindings = load()
            if not array.flags.c_contiguous:
                if not (access.host and _plain_host(access)):
                    raise PyggmlError(
                        f"the array for {self.described()} is not in C order (strides {array.strides})",
                        "Give numpy.ascontiguousarray(array).",
                    )
                _host_array(access, bindings.ffi.NULL)[...] = array.reshape(self._data_shape())
                return
            access.check_transfer(0, self.nbytes, writing=True)
            if self.contiguous:
                flat = array.reshape(-1).view("uint8")
                source = bindings.ffi.from_buffer(flat)
                bindings.guarded(bindings.lib.ggml_backend_tensor_set, self.raw, source, 0, flat.nbytes)
            elif access.host and _plain_host(access):
                _host_array(access, bindings.ffi.NULL)[...] = array.reshape(self._data_shape())
            else:
                _by_rows(access, array, writing=True)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of its data as numpy array of `shape`; see `set` for dtype and errors."""
        import numpy as np

        with Access(self) as access:
            bindings = load()
            shape = self._data_shape()
            result = np.empty(shape, self.type.dtype or np.uint8)
            access.check_transfer(0, self.nbytes, writing=False)
            if self.contiguous:
                target = bindings.ffi.from_buffer(result.reshape(-1).view("uint8"), require_writable=True)
                bindings.guarded(bindings.lib.ggml_backend_tensor_get, self.raw, target, 0, result.nbytes)
            elif access.host and _plain_host(access):
                result[...] = _host_array(access, bindings.ffi.NULL)
            else:
                _by_rows(access, result, writing=False)
            return result

    def view(self) -> npt.NDArray[Any]:
        """Its data, not a copy: a writable numpy array over host memory, with the tensor's strides.

        The array keeps the memory: closing the buffer makes its tensors unreadable at once, and the memory is
        freed when the last array is collected.

        Raises:
            PyggmlError: the memory is not the host's, or belongs to a scheduler or allocator, which reuses it
                within the graph (use `numpy()`).
        """
        with Access(self) as access:
            owner = access.stamp.owner
            if not access.host or access.meta:
                raise PyggmlError(
                    f"{self.described()} is not in host memory but in {owner.label}",
                    "Use numpy() for a copy.",
                )
            if not owner.permanent:
                raise PyggmlError(
                    f"{self.described()} is in memory of {owner.label}, which reuses it for other tensors",
                    "Use numpy() for a copy, or allocate its context.",
                )
            return _host_array(access, owner.lease())

    def read(self, offset: int = 0, size: int | None = None) -> npt.NDArray[np.uint8]:
        """Bytes of its memory (ggml_backend_tensor_get).

        Args:
            offset, size: in bytes; to the end by default. On a MetaDevice both must be multiples of the stride
                of the axis after the split one (upstream moves whole slices).

        Raises:
            PyggmlError: out of range, or not possible on its device.
        """
        import numpy as np

        with Access(self) as access:
            offset, size = _check_range(self, offset, size)
            access.check_transfer(offset, size, writing=False)
            bindings = load()
            result = np.empty(size, np.uint8)
            target = bindings.ffi.from_buffer(result, require_writable=True)
            bindings.guarded(bindings.lib.ggml_backend_tensor_get, self.raw, target, offset, size)
            return result

    def write(self, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Write bytes at an offset in bytes (ggml_backend_tensor_set); see `read`.

        Args:
            data: C-contiguous array whose bytes are written as they are.
        """
        import numpy as np

        with Access(self) as access:
            if not isinstance(data, np.ndarray) or data.dtype.hasobject:
                raise PyggmlError(f"bytes for {self.described()} come in a numpy array, not {_kind(data)}")
            if not data.flags.c_contiguous:
                raise PyggmlError(
                    f"the array for {self.described()} is not in C order (strides {data.strides})"
                )
            offset, size = _check_range(self, offset, data.nbytes)
            access.check_transfer(offset, size, writing=True)
            if size:
                bindings = load()
                source = bindings.ffi.from_buffer(data.reshape(-1).view("uint8"))
                bindings.guarded(bindings.lib.ggml_backend_tensor_set, self.raw, source, offset, size)

    def fill(self, value: int) -> None:
        """Set every byte to `value`, 0 to 255 (ggml_backend_tensor_memset; older MetaDevices cannot)."""
        if not isinstance(value, int) or not 0 <= value <= 255:
            raise PyggmlError(f"a byte is 0 to 255, not {value!r:.40}")
        with Access(self) as access:
            if access.meta:
                access.stamp.owner.check_fill(self.context, self.raw, value)
            if not self.contiguous:
                raise PyggmlError(f"{self.described()} has gaps (strides {self.nb}) and cannot be filled")
            load().lib.ggml_backend_tensor_memset(self.raw, value, 0, self.nbytes)

    def dequantized(self) -> npt.NDArray[np.float32]:
        """Its values as float32 of `shape`, by the type's own `to_float` (ggml_get_type_traits).

        Raises:
            PyggmlError: the type cannot be converted (f64 and integers cannot).
        """
        import numpy as np

        bindings = load()
        ffi, kind = bindings.ffi, self.type
        if kind.name == "f32":
            return self.numpy()
        convert = bindings.lib.ggml_get_type_traits(kind.number).to_float
        if not convert:
            raise PyggmlError(f"{self.described()}: ggml does not convert {kind} to float32")
        rows = self.numpy().reshape(-1).view(np.uint8)
        result = np.empty(self.shape, np.float32)
        convert(ffi.from_buffer(rows), ffi.cast("float *", ffi.from_buffer(result)), result.size)
        return result

    def check_usable(self) -> None:
        """Raise unless operations can be built on it: its memory, if it has some, is still its own."""
        self.context.check()
        if self.context.fresh():
            return
        stamp = self.context.stamp_of(self.raw)
        if stamp is not None and not stamp.valid:
            stamp.check(self.described())
        self.check_sources()

    def check_sources(self) -> None:
        """Raise StaleError if its sources were copies of a scheduler that has moved on."""
        stamp = self.context.bound_of(self.raw)
        if stamp is not None and not stamp.valid:
            stamp.check(self.described())

    def stamp(self) -> Stamp:
        """The stamp of its memory.

        Raises:
            PyggmlError: it has none yet.
            ClosedError, StaleError: it is gone.
        """
        self.context.check()
        stamp = self.context.stamp_of(self.raw)
        if stamp is None:
            raise PyggmlError(
                f"{self.described()} has no memory yet",
                "Allocate its context, or the graph that it is in.",
            )
        stamp.check(self.described())
        return stamp

    def described(self) -> str:
        """What messages call it."""
        if self.context.closed:
            return "a tensor of a closed context"
        return f"tensor {self.name or self.op.lower()!r} ({self.type} {self.shape})"

    def _data_shape(self) -> tuple[int, ...]:
        shape = self.shape
        kind = self.type
        return shape if kind.dtype is not None else (*shape[:-1], kind.row_bytes(shape[-1]))


class Access:
    """The memory of a tensor while it is read or written; it cannot be freed meanwhile.

    Attributes:
        stamp: of the memory.
        host: it is host memory, laid out as the tensor says.
        meta: it is on the devices of a MetaDevice.
    """

    __slots__ = ("_lease", "_pool_lease", "host", "meta", "stamp", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.stamp: Stamp = tensor.stamp()
        lib, raw = load().lib, tensor.raw
        root = raw.view_src or raw
        if not root.buffer or not root.data:
            raise PyggmlError(f"{tensor.described()} has no memory yet")
        self.host: bool = lib.ggml_backend_buffer_is_host(root.buffer)
        self.meta: bool = lib.ggml_backend_buffer_is_meta(root.buffer)
        if self.meta:
            tensor.check_sources()
        if not raw.buffer:
            if self.meta:
                raise PyggmlError(
                    f"{tensor.described()} is a view of a tensor on a MetaDevice, made after that was allocated",
                    "Use it within a graph, or make it before the context is allocated.",
                )
            with tensor.context.using():
                lib.ggml_backend_view_init(raw)
        self._lease: Lease = self.stamp.owner.lease(in_call=True)
        self._pool_lease: Lease = tensor.context.lease(in_call=True)

    def check_transfer(self, offset: int, size: int, *, writing: bool) -> None:
        """Raise if a MetaDevice cannot read or write these bytes."""
        if self.meta:
            tensor = self.tensor
            self.stamp.owner.check_transfer(tensor.context, tensor.raw, offset, size, writing=writing)

    def __enter__(self) -> Access:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool_lease.give_back()
        self._lease.give_back()


def sources_of(raw: ggml_tensor) -> list[ggml_tensor]:
    """What a raw tensor's operation reads, NULL left out."""
    return [one for one in load().ffi.unpack(raw.src, MOST_SOURCES) if one]


def is_view_op(op: str) -> bool:
    """Whether an operation computes nothing and only describes other data in another way."""
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
            f"the tensor name {name!r:.100} has {len(encoded)} bytes; at most {_NAME_BYTES} and no NUL are allowed"
        )
    return encoded


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check_array(tensor: Tensor, array: Any) -> None:
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise PyggmlError(f"data for {tensor.described()} comes in a numpy array, not {_kind(array)}")
    expected = tensor.type.dtype or np.dtype(np.uint8)
    if array.dtype != expected:
        raise PyggmlError(
            f"{tensor.described()} takes {expected.name}, not {array.dtype} ({array.dtype.str})",
            "pyggml never converts: use array.astype().",
        )
    shape = tensor._data_shape()
    if _trimmed(array.shape) != _trimmed(shape):
        raise PyggmlError(f"{tensor.described()} takes an array of shape {shape}, not {array.shape}")


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape or (1,)


def _check_range(tensor: Tensor, offset: Any, size: Any) -> tuple[int, int]:
    total = tensor.nbytes
    try:
        offset = operator.index(offset)
        size = total - offset if size is None else operator.index(size)
    except TypeError:
        raise PyggmlError(
            f"offset and size are whole numbers of bytes, not {offset!r:.40} and {size!r:.40}"
        ) from None
    if offset < 0 or size < 0 or offset + size > total:
        raise PyggmlError(
            f"{tensor.described()} has {total} bytes: {size} bytes at offset {offset} are out of range"
        )
    return offset, size


def _plain_host(access: Access) -> bool:
    # Strides of a quantised type step over blocks, which is what numpy's uint8 rows do as well, except in
    # a transposed one.
    tensor = access.tensor
    return tensor.type.dtype is not None or tensor.nb[0] == tensor.type.block_bytes


def _host_array(access: Access, lease: Any) -> npt.NDArray[Any]:
    """The memory as array; whoever holds it holds the lease."""
    import numpy as np

    bindings, tensor = load(), access.tensor
    ffi, kind = bindings.ffi, tensor.type
    shape = tensor._data_shape()
    strides = tensor.nb[: len(shape)][::-1]
    if kind.dtype is None:
        if not _plain_host(access):
            raise PyggmlError(
                f"{tensor.described()} is transposed, which numpy cannot show for blocks of {kind}"
            )
        strides = (*strides[:-1], 1)
    pointer = ffi.cast("char *", tensor.raw.data)
    if isinstance(lease, Lease):
        pointer = ffi.gc(pointer, lambda _: lease.give_back())
    memory = ffi.buffer(pointer, tensor.nbytes)
    return np.ndarray(shape, kind.dtype or np.uint8, memory, 0, strides)


def _by_rows(access: Access, array: npt.NDArray[Any], *, writing: bool) -> None:
    """A strided tensor in device memory, one 2-D transfer for every two-dimensional part."""
    bindings, tensor = load(), access.tensor
    kind, ne, nb = tensor.type, tensor.ne, tensor.nb
    if nb[0] != kind.block_bytes:
        raise PyggmlError(
            f"{tensor.described()} is transposed (ne {ne}, strides {nb} bytes) and not in host memory: "
            "its elements cannot be moved one by one",
            "Read what it is a view of and transpose in numpy, or make it contiguous with ops.cont.",
        )
    lib, row = bindings.lib, kind.row_bytes(ne[0])
    move = lib.ggml_backend_tensor_set_2d if writing else lib.ggml_backend_tensor_get_2d
    data = bindings.ffi.from_buffer(array.reshape(-1).view("uint8"), require_writable=not writing)
    position = 0
    for outer in range(ne[3]):
        for inner in range(ne[2]):
            offset = outer * nb[3] + inner * nb[2]
            bindings.guarded(move, tensor.raw, data + position, offset, row, ne[1], nb[1], row)
            position += row * ne[1]


def _kind(value: Any) -> str:
    return type(value).__name__
