"""Selects the devices of a model, by name or from devices of the ggml layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pyggml.errors import UsageError
from pyggml.native.load import Bindings


@runtime_checkable
class HasName(Protocol):
    """A device of the ggml layer; it is looked up by name."""

    @property
    def name(self) -> str: ...


DeviceLike: TypeAlias = "str | HasName"


@dataclass(frozen=True)
class RegisteredDevice:
    """A device in ggml's registry."""

    name: str
    pointer: Any
    bindings: Bindings

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        ffi, lib = self.bindings.ffi, self.bindings.lib
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(self.pointer, free, total)
        return int(free[0]), int(total[0])


def select_devices(
    bindings: Bindings, wanted: Sequence[DeviceLike] | None, split_mode: str, most: int
) -> list[RegisteredDevice]:
    """The wanted devices, or those that llama.cpp uses by default (src/llama.cpp).

    Raises:
        UsageError: an unknown name, a CPU, the same device twice, or more than llama.cpp supports.
    """
    lib = bindings.lib
    known = [_registered(bindings, lib.ggml_backend_dev_get(i)) for i in range(lib.ggml_backend_dev_count())]
    if wanted is None:
        selected = [device for device in known if _is_default(bindings, device, split_mode)]
    else:
        if isinstance(wanted, str):
            raise UsageError(f"devices is the string {wanted!r}", "Pass a list of names: devices=['VDEV0'].")
        selected = [_select(bindings, known, one) for one in wanted]
    names = [device.name for device in selected]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UsageError(f"the device {repeated[0]} is listed {names.count(repeated[0])} times")
    if len(selected) > most:
        raise UsageError(f"{len(selected)} devices requested; llama.cpp supports at most {most}")
    if split_mode == "tensor" and not selected:
        raise UsageError("split_mode 'tensor' needs at least one device", _available(bindings, known))
    return selected


def _select(bindings: Bindings, known: list[RegisteredDevice], wanted: DeviceLike) -> RegisteredDevice:
    name = wanted if isinstance(wanted, str) else getattr(wanted, "name", None)
    for device in known:
        if isinstance(name, str) and device.name.casefold() == name.casefold():
            if _is_cpu(bindings, device):
                raise UsageError(
                    f"{device.name} is a CPU, which is always used",
                    "Leave it out; devices=() means the CPU alone.",
                )
            return device
    raise UsageError(f"there is no device {wanted!r:.60}", _available(bindings, known))


def _registered(bindings: Bindings, pointer: Any) -> RegisteredDevice:
    name = bindings.ffi.string(bindings.lib.ggml_backend_dev_name(pointer)).decode("utf-8", "replace")
    return RegisteredDevice(name, pointer, bindings)


def _is_cpu(bindings: Bindings, device: RegisteredDevice) -> bool:
    lib = bindings.lib
    return bool(lib.ggml_backend_dev_type(device.pointer) == lib.GGML_BACKEND_DEVICE_TYPE_CPU)


def _is_default(bindings: Bindings, device: RegisteredDevice, split_mode: str) -> bool:
    lib = bindings.lib
    if split_mode == "tensor":
        return bool(lib.ggml_backend_dev_buffer_type(device.pointer) != lib.ggml_backend_cpu_buffer_type())
    kind = lib.ggml_backend_dev_type(device.pointer)
    return kind in (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU)


def _available(bindings: Bindings, known: list[RegisteredDevice]) -> str:
    names = [device.name for device in known if not _is_cpu(bindings, device)]
    return f"Available: {', '.join(names)}." if names else "The CPU is the only device."
