"""Data in and out of tensors, checked before C sees it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import Lease
from pyggml.ggml.library import load
from pyggml.ggml.memory import Stamp
from pyggml.ggml.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Access:
    """Memory of a tensor while it is read or written; the owner cannot free it meanwhile.

    Attributes:
        stamp: whose it is.
        host: the memory is the host's and laid out as the tensor says.
        meta: it is spread over the devices of a MetaDevice.
    """

    __slots__ = ("_lease", "host", "meta", "stamp", "tensor")

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
        self._lease: Lease = self.stamp.owner.lease()

    def __enter__(self) -> Access:
        return self

    def __exit__(self, *_: object) -> None:
        self._lease.give_back()


def set_array(tensor: Tensor, array: npt.NDArray[Any]) -> None:
    """See Tensor.set."""
    with Access(tensor) as access:
        _check_array(tensor, array)
        bindings = load()
        if not array.flags.c_contiguous:
            if not (access.host and _plain_host(access)):
                raise PyggmlError(
                    f"the array for {tensor.described()} is not in C order (strides {array.strides})",
                    "Give numpy.ascontiguousarray(array).",
                )
            _host_array(access, bindings.ffi.NULL)[...] = array.reshape(_data_shape(tensor))
            return
        if access.meta:
            _check_meta(access, 0, tensor.nbytes, writing=True)
        if tensor.contiguous:
            flat = array.reshape(-1).view("uint8")
            source = bindings.ffi.from_buffer(flat)
            bindings.guarded(bindings.lib.ggml_backend_tensor_set, tensor.raw, source, 0, flat.nbytes)
        elif access.host and _plain_host(access):
            _host_array(access, bindings.ffi.NULL)[...] = array.reshape(_data_shape(tensor))
        else:
            _by_rows(access, array, writing=True)


def get_array(tensor: Tensor) -> npt.NDArray[Any]:
    """See Tensor.numpy."""
    import numpy as np

    with Access(tensor) as access:
        bindings = load()
        shape = _data_shape(tensor)
        result = np.empty(shape, tensor.type.dtype or np.uint8)
        if access.meta:
            _check_meta(access, 0, tensor.nbytes, writing=False)
        if tensor.contiguous:
            target = bindings.ffi.from_buffer(result.reshape(-1).view("uint8"), require_writable=True)
            bindings.guarded(bindings.lib.ggml_backend_tensor_get, tensor.raw, target, 0, result.nbytes)
        elif access.host and _plain_host(access):
            result[...] = _host_array(access, bindings.ffi.NULL)
        else:
            _by_rows(access, result, writing=False)
        return result


def host_view(tensor: Tensor) -> npt.NDArray[Any]:
    """See Tensor.view."""
    from pyggml.ggml.buffer import Buffer

    with Access(tensor) as access:
        owner = access.stamp.owner
        if not access.host or access.meta:
            raise PyggmlError(
                f"{tensor.described()} is not in host memory but in {owner.label}", "Use numpy() for a copy."
            )
        if not isinstance(owner, Buffer):
            raise PyggmlError(
                f"{tensor.described()} is in memory of {owner.label}, which gives it to other tensors as well",
                "Use numpy() for a copy, or allocate its context.",
            )
        return _host_array(access, owner.lease())


def read_bytes(tensor: Tensor, offset: Any, size: Any) -> npt.NDArray[np.uint8]:
    """See Tensor.read."""
    import numpy as np

    with Access(tensor) as access:
        offset, size = _check_range(tensor, offset, size)
        if access.meta:
            _check_meta(access, offset, size, writing=False)
        bindings = load()
        result = np.empty(size, np.uint8)
        target = bindings.ffi.from_buffer(result, require_writable=True)
        bindings.guarded(bindings.lib.ggml_backend_tensor_get, tensor.raw, target, offset, size)
        return result


def write_bytes(tensor: Tensor, data: Any, offset: Any) -> None:
    """See Tensor.write."""
    import numpy as np

    with Access(tensor) as access:
        if not isinstance(data, np.ndarray) or data.dtype.hasobject:
            raise PyggmlError(f"bytes for {tensor.described()} come in a numpy array, not {_kind(data)}")
        if not data.flags.c_contiguous:
            raise PyggmlError(
                f"the array for {tensor.described()} is not in C order (strides {data.strides})"
            )
        offset, size = _check_range(tensor, offset, data.nbytes)
        if access.meta:
            _check_meta(access, offset, size, writing=True)
        if size:
            bindings = load()
            source = bindings.ffi.from_buffer(data.reshape(-1).view("uint8"))
            bindings.guarded(bindings.lib.ggml_backend_tensor_set, tensor.raw, source, offset, size)


def fill_bytes(tensor: Tensor, value: Any) -> None:
    """See Tensor.fill."""
    if not isinstance(value, int) or not 0 <= value <= 255:
        raise PyggmlError(f"a byte is 0 to 255, not {value!r:.40}")
    with Access(tensor) as access:
        if access.meta:
            from pyggml.ggml.metarules import check_fill

            check_fill(tensor, access.stamp.owner, value)
        if not tensor.contiguous:
            raise PyggmlError(f"{tensor.described()} has gaps (strides {tensor.nb}), so it is not filled")
        load().lib.ggml_backend_tensor_memset(tensor.raw, value, 0, tensor.nbytes)


def get_floats(tensor: Tensor) -> npt.NDArray[np.float32]:
    """See Tensor.dequantized."""
    import numpy as np

    bindings = load()
    ffi, kind = bindings.ffi, tensor.type
    if kind.name == "f32":
        return get_array(tensor)
    convert = bindings.lib.ggml_get_type_traits(kind.number).to_float
    if not convert:
        raise PyggmlError(f"{tensor.described()}: ggml does not convert {kind} to float32")
    rows = get_array(tensor).reshape(-1).view(np.uint8)
    result = np.empty(tensor.shape, np.float32)
    convert(ffi.from_buffer(rows), ffi.cast("float *", ffi.from_buffer(result)), result.size)
    return result


def _check_array(tensor: Tensor, array: Any) -> None:
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise PyggmlError(f"data for {tensor.described()} comes in a numpy array, not {_kind(array)}")
    expected = tensor.type.dtype or np.dtype(np.uint8)
    if array.dtype != expected:
        raise PyggmlError(
            f"{tensor.described()} takes {expected.name}, not {array.dtype} ({array.dtype.str})",
            "pyggml never converts: use array.astype.",
        )
    shape = _data_shape(tensor)
    if _trimmed(array.shape) != _trimmed(shape):
        raise PyggmlError(f"{tensor.described()} takes an array of shape {shape}, not {array.shape}")


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape or (1,)


def _data_shape(tensor: Tensor) -> tuple[int, ...]:
    shape = tensor.shape
    kind = tensor.type
    return shape if kind.dtype is not None else (*shape[:-1], kind.row_bytes(shape[-1]))


def _check_range(tensor: Tensor, offset: Any, size: Any) -> tuple[int, int]:
    total = tensor.nbytes
    try:
        offset = operator.index(offset)
        size = total - offset if size is None else operator.index(size)
    except TypeError:
        raise PyggmlError(f"offset and size are whole bytes, not {offset!r:.40} and {size!r:.40}") from None
    if offset < 0 or size < 0 or offset + size > total:
        raise PyggmlError(
            f"{tensor.described()} has {total} bytes: {size} bytes at offset {offset} are not all in it"
        )
    return offset, size


def _check_meta(access: Access, offset: int, size: int, *, writing: bool) -> None:
    from pyggml.ggml.metarules import check_transfer

    check_transfer(access.tensor, access.stamp.owner, offset, size, writing=writing)


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
    shape = _data_shape(tensor)
    strides = tensor.nb[: len(shape)][::-1]
    if kind.dtype is None:
        if not _plain_host(access):
            raise PyggmlError(f"{tensor.described()} is transposed, and blocks of {kind} are not split")
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
