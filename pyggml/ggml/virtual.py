"""Virtual devices in this process, for as long as a `with` block runs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, Self

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Device
from pyggml.ggml.handle import InUseError
from pyggml.ggml.library import load
from pyggml.native.ledger import Ledger, record_dtype
from pyggml.native.races import Race, read_races
from pyggml.native.timeline import Timeline, read_timeline
from pyggml.native.vdev_config import VirtualDeviceConfig, install_devices, remove_devices


class VirtualDevices:
    """Devices that look like GPUs and compute on the CPU, listed by ggml while the block runs.

        with VirtualDevices(2, memory=1 << 20) as devices:
            backends = [one.backend() for one in devices]

    Devices, and what was made on them, stay usable after the block; ggml then no longer lists them.

    Attributes:
        settings: all of them; see pyggml.native.vdev_config.VirtualDeviceConfig for names and units.
    """

    _active: ClassVar[VirtualDevices | None] = None

    def __init__(self, count: int | None = None, **settings: Any) -> None:
        """
        Args:
            count: 1 to 16; by default one per name, or two.
            settings: names, traits, memory, alignment, max_buffer, native_2d, host_buffer, asynchronous, poison,
                strict, threads, offload_batch, schedule, races, faults.

        Raises:
            UsageError: a value that no device can have.
            PyggmlError: a setting that does not exist.
        """
        for file in ("ledger", "timeline"):
            if settings.get(file) is not None:
                raise PyggmlError(f"a {file} file is for programs; in this process, use .{file}()")
        try:
            self.settings = VirtualDeviceConfig(count, **settings)
        except TypeError as error:
            raise PyggmlError(f"virtual devices: {error}") from error
        self._devices: list[Device] = []

    def open(self) -> Self:
        """Make the devices and list them in ggml's registry; the ledger begins.

        Raises:
            PyggmlError: others are active, or this build has none.
        """
        if VirtualDevices._active is not None:
            raise PyggmlError("virtual devices are active already; one set at a time is possible")
        bindings = load()
        install_devices(bindings, self.settings)
        VirtualDevices._active = self
        self._faults = len(self.settings.faults)
        count = self.settings.count or 0
        self._devices = [Device(bindings.lib.pyggml_vdev_device(number)) for number in range(count)]
        return self

    def close(self) -> None:
        """Remove the devices from ggml's registry, end the ledger and the faults; twice is harmless.

        Raises:
            InUseError: in a callback, while C may be using them.
        """
        if VirtualDevices._active is not self:
            return
        if load().callbacks.calling:
            raise InUseError(
                "the virtual devices cannot be closed now: a call that has not returned may use them",
                "Close them after that call, not in a callback.",
            )
        remove_devices(load())
        VirtualDevices._active = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, number: int) -> Device:
        return self._devices[number]

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names."""
        return tuple(one.name for one in self._devices)

    def used(self, number: int) -> int:
        """Bytes in use on a device."""
        self._check_active()
        return int(load().lib.pyggml_vdev_memory_used(number))

    def ledger(self) -> Ledger:
        """What has happened since the block began, or since clear_ledger.

        Raises:
            PyggmlError: the block has ended, or records were dropped because memory ran out.
        """
        import numpy as np

        self._check_active()
        bindings = load()
        ffi, lib = bindings.ffi, bindings.lib
        dropped = lib.pyggml_vdev_ledger_dropped()
        if dropped:
            raise PyggmlError(f"{dropped} records did not fit into memory", "Clear the ledger more often.")
        array = np.zeros(lib.pyggml_vdev_ledger_count(), record_dtype())
        target = ffi.cast("struct pyggml_vdev_record *", ffi.from_buffer(array))
        read = lib.pyggml_vdev_ledger_read(target, 0, len(array))
        return Ledger(array[:read], self.names)

    def races(self) -> tuple[Race, ...]:
        """Operations that nothing orders, since the block began; for devices made with `races=True`."""
        self._check_active()
        return read_races(load())

    def start_timeline(self) -> None:
        """Begin the timeline, or begin it again; see timeline()."""
        self._check_active()
        load().lib.pyggml_vdev_timeline_enable(1)

    def timeline(self) -> Timeline:
        """All operations since start_timeline, and who waits for which.

        Raises:
            PyggmlError: the block has ended, or lines were dropped because there were too many.
        """
        self._check_active()
        return read_timeline(load())

    def clear_ledger(self) -> None:
        """Empty the ledger; sequence and split numbers start at 0 again."""
        self._check_active()
        load().lib.pyggml_vdev_ledger_clear()

    def fault(self, text: str) -> int:
        """Inject a fault: `alloc:nth=3`, `set:tensor=cache_k*,byte=4` (see pyggml.native.vdev_config).

        Returns:
            The fault's number for `hits`.

        Raises:
            PyggmlError: the text does not describe a fault.
        """
        self._check_active()
        _check(load().lib.pyggml_vdev_fault_parse(text.encode("utf-8", "surrogateescape")))
        self._faults += 1
        return self._faults - 1

    def hits(self, number: int) -> int:
        """How often a fault has struck."""
        self._check_active()
        return int(load().lib.pyggml_vdev_fault_hits(number))

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._check_active()
        load().lib.pyggml_vdev_fault_clear()
        self._faults = 0

    def _check_active(self) -> None:
        if VirtualDevices._active is not self:
            raise PyggmlError("these virtual devices are not active", "Use them as a `with` block.")


def _check(error: Any) -> None:
    ffi = load().ffi
    if error != ffi.NULL:
        raise PyggmlError(f"virtual devices: {ffi.string(error).decode('utf-8', 'replace')}")
