"""Tensors in and out of GGUF files, by the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.ggml.context import Context
from pyggml.ggml.device import Backend, BufferType, Device
from pyggml.ggml.tensor import Tensor
from pyggml.ggml.types import tensor_type


def read_gguf(path: Path, context: Context, place: Device | Backend | BufferType) -> dict[str, Tensor]:
    """The tensors of a file, in a context and in a device's memory.

    Args:
        context: a new one with capacity for all of them; they keep the file's names.

    Raises:
        PyggmlError: it is not a GGUF file, or holds a type that this build does not have; see also
            Context.allocate.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise PyggmlError(f"{path} cannot be read as GGUF: {error}") from error
    tensors = {}
    for one in reader.tensors:
        shape = [int(length) for length in reversed(one.shape.tolist())]
        tensors[one.name] = context.tensor(one.tensor_type.name.lower(), shape, one.name)
    context.allocate(place)
    for one in reader.tensors:
        tensor = tensors[one.name]
        data = one.data
        if tensor.type.dtype is not None and data.dtype != tensor.type.dtype:
            data = data.reshape(-1).view(tensor.type.dtype).reshape(tensor.shape)
        tensor.set(data)
    return tensors


def write_gguf(path: Path, tensors: Mapping[str, Tensor], arch: str = "pyggml") -> None:
    """Write tensors, and nothing else, to a file; quantised ones block by block as they are.

    Args:
        arch: the file's general.architecture.

    Raises:
        PyggmlError: a tensor cannot be read, or the file not written.
    """
    import gguf

    try:
        writer = gguf.GGUFWriter(path, arch)
    except OSError as error:
        raise PyggmlError(f"cannot write {path}: {error.strerror or error}") from error
    for name, tensor in tensors.items():
        data = tensor.numpy()
        if tensor.type.name == "bf16":
            data = data.view("uint8")
        kind = gguf.GGMLQuantizationType(tensor_type(tensor.type).number)
        writer.add_tensor(name, data, raw_dtype=kind if data.dtype == "uint8" else None)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except OSError as error:
        raise PyggmlError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        writer.close()
