"""The devices that a model is to use, by name or as devices of the ggml layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pyggml.errors import UsageError
from pyggml.native.load import Bindings


@runtime_checkable
class HasName(Protocol):
    """A device of the ggml layer, which is found by its name again."""

    @property
    def name(self) -> str: ...


DeviceLike: TypeAlias = "str | HasName"


@dataclass(frozen=True)
class Found:
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


def find_devices(
    bindings: Bindings, wanted: Sequence[DeviceLike] | None, split_mode: str, most: int
) -> list[Found]:
    """The devices by name, or those that llama.cpp would take by itself (src/llama.cpp).

    Raises:
        UsageError: a name that no device has, a CPU, one device twice, or more than llama.cpp takes.
    """
    lib = bindings.lib
    known = [_found(bindings, lib.ggml_backend_dev_get(i)) for i in range(lib.ggml_backend_dev_count())]
    if wanted is None:
        found = [one for one in known if _is_default(bindings, one, split_mode)]
    else:
        if isinstance(wanted, str):
            raise UsageError(f"devices is the text {wanted!r}", "Write a list of names: devices=['VDEV0'].")
        found = [_find(bindings, known, one) for one in wanted]
    names = [one.name for one in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"the device {twice[0]} is asked for {names.count(twice[0])} times")
    if len(found) > most:
        raise UsageError(f"{len(found)} devices asked for; llama.cpp takes {most}")
    if split_mode == "tensor" and not found:
        raise UsageError("split_mode 'tensor' needs at least one device", _listed(bindings, known))
    return found


def _find(bindings: Bindings, known: list[Found], wanted: DeviceLike) -> Found:
    name = wanted if isinstance(wanted, str) else getattr(wanted, "name", None)
    for one in known:
        if isinstance(name, str) and one.name.casefold() == name.casefold():
            if not _may_compute(bindings, one):
                raise UsageError(
                    f"{one.name} is a CPU, which computes anyway",
                    "Leave it away; devices=() is the CPU alone.",
                )
            return one
    raise UsageError(f"there is no device {wanted!r:.60}", _listed(bindings, known))


def _found(bindings: Bindings, pointer: Any) -> Found:
    name = bindings.ffi.string(bindings.lib.ggml_backend_dev_name(pointer)).decode("utf-8", "replace")
    return Found(name, pointer, bindings)


def _may_compute(bindings: Bindings, device: Found) -> bool:
    return bool(
        bindings.lib.ggml_backend_dev_type(device.pointer) != bindings.lib.GGML_BACKEND_DEVICE_TYPE_CPU
    )


def _is_default(bindings: Bindings, device: Found, split_mode: str) -> bool:
    lib = bindings.lib
    if split_mode == "tensor":
        return bool(lib.ggml_backend_dev_buffer_type(device.pointer) != lib.ggml_backend_cpu_buffer_type())
    kind = lib.ggml_backend_dev_type(device.pointer)
    return kind in (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU)


def _listed(bindings: Bindings, known: list[Found]) -> str:
    names = [one.name for one in known if _may_compute(bindings, one)]
    return f"There are: {', '.join(names)}." if names else "There is no device beside the CPU."
