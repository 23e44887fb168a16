"""Devices and their buffer types, as ggml's registry knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load

if TYPE_CHECKING:
    from pyggml.ggml.backend import Backend
    from pyggml.ggml.buffer import Buffer

    Place: TypeAlias = "Device | Backend | BufferType"

_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")


class Device:
    """A device (`ggml_backend_dev_t`). It is never freed, so it cannot be closed."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<Device {self.name} ({self.kind})>"

    @property
    def name(self) -> str:
        """Its name; a MetaDevice's lists all of its devices."""
        return _text(load().lib.ggml_backend_dev_name(self.raw))

    @property
    def description(self) -> str:
        """What it is, in words."""
        return _text(load().lib.ggml_backend_dev_description(self.raw))

    @property
    def kind(self) -> str:
        """`cpu`, `gpu`, `igpu`, `accel` or `meta`."""
        number: int = load().lib.ggml_backend_dev_type(self.raw)
        return _KINDS[number] if number < len(_KINDS) else str(number)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and in all; 0 if the device does not say."""
        bindings = load()
        numbers = bindings.ffi.new("size_t[2]")
        bindings.lib.ggml_backend_dev_memory(self.raw, numbers, numbers + 1)
        return numbers[0], numbers[1]

    @property
    def buffer_type(self) -> BufferType:
        """Its own memory."""
        return BufferType(load().lib.ggml_backend_dev_buffer_type(self.raw), self)

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory that is fast to transfer, if it offers some."""
        raw = load().lib.ggml_backend_dev_host_buffer_type(self.raw)
        return BufferType(raw, self) if raw else None

    def backend(self, threads: int | None = None) -> Backend:
        """A stream of work on this device; see Backend."""
        from pyggml.ggml.backend import Backend

        return Backend(self, threads)


class BufferType:
    """A kind of memory (`ggml_backend_buffer_type_t`).

    Attributes:
        device: the device whose it is; kept because memory of a MetaDevice calls its split function.
    """

    def __init__(self, raw: Any, device: Device) -> None:
        self.raw = raw
        self.device = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferType) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return _text(load().lib.ggml_backend_buft_name(self.raw))

    @property
    def alignment(self) -> int:
        """Bytes that tensors are aligned to."""
        return int(load().lib.ggml_backend_buft_get_alignment(self.raw))

    @property
    def max_size(self) -> int:
        """Bytes of the largest buffer."""
        return int(load().lib.ggml_backend_buft_get_max_size(self.raw))

    @property
    def is_host(self) -> bool:
        """Whether the host reads and writes it directly."""
        return bool(load().lib.ggml_backend_buft_is_host(self.raw))

    @property
    def is_meta(self) -> bool:
        """Whether it is spread over several devices."""
        return bool(load().lib.ggml_backend_buft_is_meta(self.raw))

    def buffer(self, size: int) -> Buffer:
        """A buffer without tensors.

        Args:
            size: bytes, 1 or more; on a MetaDevice every device gets that many.

        Raises:
            PyggmlError: there is not enough memory; the message says how much is free.
        """
        from pyggml.ggml.buffer import empty_buffer

        return empty_buffer(self, size)


def devices() -> list[Device]:
    """All devices that ggml's registry lists, in its order."""
    lib = load().lib
    return [Device(lib.ggml_backend_dev_get(number)) for number in range(lib.ggml_backend_dev_count())]


def device(name: str) -> Device:
    """The device of that name; upper and lower case are the same.

    Raises:
        PyggmlError: there is none; the message lists those that there are.
    """
    raw = load().lib.ggml_backend_dev_by_name(name.encode("utf-8", "surrogateescape"))
    if not raw:
        raise PyggmlError(
            f"there is no device {name!r}",
            f"There are: {', '.join(one.name for one in devices()) or 'none'}.",
        )
    return Device(raw)


def cpu() -> Device:
    """The processor.

    Raises:
        PyggmlError: the build has no CPU backend, or it is loaded dynamically and was not.
    """
    lib = load().lib
    raw = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    if not raw:
        raise PyggmlError("this build has no CPU device", "Load it with: lib.ggml_backend_load_all()")
    return Device(raw)


def buffer_type_of(place: Any) -> BufferType:
    """The buffer type behind a Device, a Backend or a BufferType.

    Raises:
        PyggmlError: it is something else.
        ClosedError: it is a backend that is closed.
    """
    from pyggml.ggml.backend import Backend

    if isinstance(place, BufferType):
        return place
    if isinstance(place, Device):
        return place.buffer_type
    if isinstance(place, Backend):
        place.check()
        return place.device.buffer_type
    raise PyggmlError(
        f"memory is allocated on a Device, Backend or BufferType, not on a {type(place).__name__}"
    )


def _text(raw: Any) -> str:
    text: bytes = load().ffi.string(raw)
    return text.decode("utf-8", "surrogateescape")
