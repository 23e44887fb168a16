"""Virtual devices: their description, switched on in any program by its environment, or in this process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.native.device_traits import DeviceTraits, check_alignment, check_traits, parse_size, parse_traits

if TYPE_CHECKING:
    from pyggml.native.load import Bindings

MAX_DEVICES = 16
MAX_THREADS = 512
MAX_NAME = 255
SCHEDULE_OPTIONS = (
    "copies=source",
    "copies=both",
    "host=pinned",
    "host=pageable",
    "access=passes",
    "access=waits",
    "uploads=refused",
    "uploads=queued",
    "transfers=queued",
    "transfers=blocking",
)
FAULT_KINDS = ("alloc", "copy", "compute", "set", "get")

_PREFIX = "PYGGML_VDEV_"


@dataclass(frozen=True)
class VirtualDeviceConfig:
    """Devices that look like GPUs and compute on the CPU (`vdev/pyggml-vdev.h`).

    Attributes:
        count: how many, 1 to 16; None means one for every name, or two.
        names: what ggml calls them; by default VDEV0, VDEV1, …
        traits: in what devices differ from what follows (pyggml.native.device_traits).
        memory: bytes of each; an allocation beyond it fails.
        alignment: bytes that buffers are aligned to, a power of two.
        max_buffer: bytes of the largest buffer; None for no limit of its own.
        native_2d: strided transfers in one call; otherwise ggml makes a call for every row.
        host_buffer: offer a pinned host buffer type.
        asynchronous: offer asynchronous transfers and events; `schedule` says when they are complete.
        poison: fill fresh buffers with NaN patterns; otherwise with zeros.
        strict: a graph that uses memory outside its device fails, as it would on a GPU.
        threads: for each device's computation; results do not depend on it.
        offload_batch: from this batch size on, take over operations with weights on the host; 0 for never.
        schedule: when asynchronous work runs: `at-once`, before the call returns; `late`, only when something waits
            for it; `random:SEED`, at any time between; `threads`, in a thread of each queue. Options follow, each
            after a slash: `copies=both` (a copy also waits for the destination's queue, as Metal's),
            `host=pageable` (bytes of the host are read at the call, not when the work runs), `access=waits`
            (blocking access to a buffer waits for the device's queues, as SYCL's), `uploads=queued` (copies from
            the host's memory are queued, as Vulkan's), `transfers=blocking` (only graphs and copies are queued, as
            OpenCL's). `late/copies=both`.
        races: look for operations that nothing orders (pyggml.native.races); programs report them on standard error.
        ledger: file for the ledger's lines; `%p` becomes the process's number, `-` prints a summary at exit.
        timeline: file for the timeline's lines (pyggml.native.timeline); `%p` as above.
        faults: injected faults, each `KIND[:KEY=VALUE,…]`: kinds alloc, copy, compute, set, get;
            keys nth, device, min, tensor, byte, mask. `alloc:nth=3`, `set:tensor=cache_k*,byte=4`.

    Raises:
        UsageError: an impossible value; the message names it.
    """

    count: int | None = None
    names: tuple[str, ...] = ()
    traits: tuple[DeviceTraits, ...] = ()
    memory: int = 8 << 30
    alignment: int = 128
    max_buffer: int | None = None
    native_2d: bool = True
    host_buffer: bool = False
    asynchronous: bool = True
    poison: bool = True
    strict: bool = True
    threads: int = 1
    offload_batch: int = 32
    schedule: str = "at-once"
    races: bool = False
    ledger: Path | None = None
    timeline: Path | None = None
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = self.count if self.count is not None else len(self.names) or 2
        object.__setattr__(self, "count", count)
        if not 1 <= count <= MAX_DEVICES:
            raise UsageError(f"{count} virtual devices asked for; 1 to {MAX_DEVICES} are possible")
        if self.names and len(self.names) != count:
            raise UsageError(f"{len(self.names)} names given for {count} virtual devices")
        _check_names(self.names)
        if not 0 < self.memory < 1 << 63:
            raise UsageError(f"a device memory of {self.memory} bytes is impossible; it must be at least 1")
        check_alignment(self.alignment)
        if self.max_buffer is not None and not 0 < self.max_buffer < 1 << 63:
            raise UsageError(
                f"a largest buffer of {self.max_buffer} bytes is impossible; it must be at least 1"
            )
        if not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(f"{self.threads} threads per device asked for; 1 to {MAX_THREADS} are possible")
        if not 0 <= self.offload_batch < 1 << 31:
            raise UsageError(f"an offload batch of {self.offload_batch} is impossible; it must be 0 or more")
        check_schedule(self.schedule)
        object.__setattr__(self, "traits", tuple(self.traits))
        check_traits(self.traits, count)
        for fault in self.faults:
            if ";" in fault or fault.partition(":")[0] not in FAULT_KINDS:
                raise UsageError(
                    f"unknown fault {fault!r}", f"It begins with one of: {', '.join(FAULT_KINDS)}."
                )

    def environment(self) -> dict[str, str]:
        """The variables that the library reads; all of them, so that none is left over from elsewhere."""
        return {
            "PYGGML_VDEV_DEVICES": str(self.count),
            "PYGGML_VDEV_NAMES": ",".join(self.names),
            "PYGGML_VDEV_TRAITS": ";".join(map(str, self.traits)),
            "PYGGML_VDEV_MEMORY": str(self.memory),
            "PYGGML_VDEV_ALIGNMENT": str(self.alignment),
            "PYGGML_VDEV_MAX_BUFFER": str(self.max_buffer or ""),
            "PYGGML_VDEV_2D": str(int(self.native_2d)),
            "PYGGML_VDEV_HOST_BUFFER": str(int(self.host_buffer)),
            "PYGGML_VDEV_ASYNC": str(int(self.asynchronous)),
            "PYGGML_VDEV_POISON": str(int(self.poison)),
            "PYGGML_VDEV_STRICT": str(int(self.strict)),
            "PYGGML_VDEV_THREADS": str(self.threads),
            "PYGGML_VDEV_OFFLOAD_BATCH": str(self.offload_batch),
            "PYGGML_VDEV_SCHEDULE": self.schedule,
            "PYGGML_VDEV_RACES": str(int(self.races)),
            "PYGGML_VDEV_LEDGER": "" if self.ledger is None else _ledger_path(self.ledger),
            "PYGGML_VDEV_TIMELINE": "" if self.timeline is None else str(self.timeline.absolute()),
            "PYGGML_VDEV_FAULT": ";".join(self.faults),
        }


def devices_from_environment(env: Mapping[str, str] | None = None, **overrides: Any) -> VirtualDeviceConfig:
    """The devices that PYGGML_VDEV_* variables describe.

    Args:
        env: by default the process's.
        overrides: attributes that win over the variables, unless they are None.

    Raises:
        UsageError: a value that cannot be read or is impossible.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    for attribute, (name, read) in _VARIABLES.items():
        text = env.get(_PREFIX + name, "")
        if text and overrides.get(attribute) is None:
            values[attribute] = read(_PREFIX + name, text)
    values.update({name: value for name, value in overrides.items() if value is not None})
    # If only one of count and names is given, it wins over the other's variable.
    if overrides.get("count") is not None and overrides.get("names") is None:
        if len(values.get("names", ())) != overrides["count"]:
            values.pop("names", None)
    elif overrides.get("names") is not None and overrides.get("count") is None:
        values.pop("count", None)
    return VirtualDeviceConfig(**values)


def program_environment(
    library: Path, devices: VirtualDeviceConfig, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that gives the devices to every program of a build.

    Args:
        library: the build's libpyggml-vdev.so.
        base: what to add to; by default the process's environment.

    Raises:
        PyggmlError: the library's path cannot be written into LD_PRELOAD.
    """
    env = dict(os.environ if base is None else base)
    preload = str(library)
    # LD_PRELOAD is cut at spaces and colons, LD_LIBRARY_PATH at colons and semicolons.
    if re.search(r"[:;\n]", preload):
        raise PyggmlError(
            f"virtual devices cannot be loaded from {library}: the path holds a colon, semicolon or newline",
            "Move the project to a path without them.",
        )
    if re.search(r"\s", preload):
        env["LD_LIBRARY_PATH"] = _joined(":", str(library.parent), env.get("LD_LIBRARY_PATH"))
        preload = library.name
    env["LD_PRELOAD"] = _joined(":", preload, env.get("LD_PRELOAD"))
    env["GGML_BACKEND_PATH"] = str(library)
    env.setdefault("GGML_NO_BACKTRACE", "1")
    env.update(devices.environment())
    return env


def install_devices(bindings: Bindings, config: VirtualDeviceConfig, *, ledger: bool = True) -> None:
    """Make the devices in this process and list them in ggml's registry, in place of those of the last call.

    Args:
        config: all but the files of ledger and timeline, which are for programs.
        ledger: begin the ledger; without, nothing is recorded.

    Raises:
        PyggmlError: this build has no virtual devices, or a fault cannot be read.
    """
    if not bindings.has_vdev:
        variant = bindings.build.record.variant
        raise PyggmlError(f"the build {variant} has no virtual devices", "Make them: pyggml build")
    ffi, lib = bindings.ffi, bindings.lib

    def check(error: Any) -> None:
        if error != ffi.NULL:
            message, _, hint = ffi.string(error).decode("utf-8", "replace").partition("\n")
            raise PyggmlError(f"virtual devices: {message}", hint or None)

    remove_devices(bindings)
    made = ffi.new("struct pyggml_vdev_config *")
    lib.pyggml_vdev_config_default(made)
    names = ffi.new("char[]", ",".join(config.names).encode("utf-8", "surrogateescape"))
    made.names = names if config.names else ffi.NULL
    schedule = ffi.new("char[]", config.schedule.encode())
    made.schedule = schedule
    traits = ffi.new("char[]", ";".join(map(str, config.traits)).encode())
    made.traits = traits
    made.devices = config.count or 0
    made.max_buffer = config.max_buffer or 0
    setattr(made, "async", config.asynchronous)
    for name in (
        "memory",
        "alignment",
        "native_2d",
        "host_buffer",
        "poison",
        "strict",
        "threads",
        "offload_batch",
    ):
        setattr(made, name, getattr(config, name))
    check(lib.pyggml_vdev_configure(made))
    lib.pyggml_vdev_races_enable(int(config.races))
    check(lib.pyggml_vdev_register())
    try:
        for fault in config.faults:
            check(lib.pyggml_vdev_fault_parse(fault.encode("utf-8", "surrogateescape")))
    except PyggmlError:
        remove_devices(bindings)
        raise
    lib.pyggml_vdev_ledger_clear()
    lib.pyggml_vdev_ledger_enable(int(ledger))


def remove_devices(bindings: Bindings) -> None:
    """Take the devices out of ggml's registry and end the ledger, timeline, races and faults; twice is harmless."""
    bindings.lib.pyggml_vdev_races_enable(0)
    bindings.lib.pyggml_vdev_timeline_enable(0)
    bindings.lib.pyggml_vdev_ledger_enable(0)
    bindings.lib.pyggml_vdev_fault_clear()
    bindings.lib.pyggml_vdev_unregister()


def check_schedule(text: str) -> str:
    """The schedule, if it is one (see VirtualDeviceConfig.schedule).

    Raises:
        UsageError: it is none; the message says what is possible.
    """
    name, *options = text.split("/")
    if not re.fullmatch(r"at-once|late|random:[0-9]{1,18}|threads", name, re.ASCII):
        raise UsageError(
            f"{text!r} is not a schedule", "There are: at-once, late, random:SEED (random:1), threads."
        )
    for option in options:
        if option not in SCHEDULE_OPTIONS:
            raise UsageError(
                f"the schedule {text!r} has no option {option!r}",
                f"There are: {', '.join(SCHEDULE_OPTIONS)}.",
            )
    return text


def _check_names(names: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME:
            raise UsageError(f"the device name {name!r} must have 1 to {MAX_NAME} bytes")
        if "," in name or any(ord(c) < 32 or ord(c) == 127 for c in name):
            raise UsageError(f"the device name {name!r} holds a comma or a control character")
        # ggml_backend_dev_by_name ignores case.
        if name.casefold() in seen:
            raise UsageError(f"two devices are named {name} (upper and lower case count as the same)")
        seen.add(name.casefold())


def _ledger_path(path: Path) -> str:
    return "-" if str(path) == "-" else str(path.absolute())


def _joined(separator: str, first: str, rest: str | None) -> str:
    return separator.join(filter(None, (first, rest)))


def _number(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UsageError(f"{name} is {text!r}: a whole number is expected")
    return int(text)


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{name} is {text!r}: a size such as 512M is expected") from error


def _switch(name: str, text: str) -> bool:
    if text.lower() in ("1", "on", "yes", "true"):
        return True
    if text.lower() in ("0", "off", "no", "false"):
        return False
    raise UsageError(f"{name} is {text!r}: 0 or 1 is expected")


def _limit(name: str, text: str) -> int | None:
    return _size(name, text) or None


def _names(_name: str, text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _text(_name: str, text: str) -> str:
    return text


def _faults(_name: str, text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(";")))


def _path(_name: str, text: str) -> Path:
    return Path(text)


def _traits(name: str, text: str) -> tuple[DeviceTraits, ...]:
    try:
        return parse_traits(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", error.hint) from error


_VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "count": ("DEVICES", _number),
    "names": ("NAMES", _names),
    "traits": ("TRAITS", _traits),
    "memory": ("MEMORY", _size),
    "alignment": ("ALIGNMENT", _size),
    "max_buffer": ("MAX_BUFFER", _limit),
    "native_2d": ("2D", _switch),
    "host_buffer": ("HOST_BUFFER", _switch),
    "asynchronous": ("ASYNC", _switch),
    "poison": ("POISON", _switch),
    "strict": ("STRICT", _switch),
    "threads": ("THREADS", _number),
    "offload_batch": ("OFFLOAD_BATCH", _number),
    "schedule": ("SCHEDULE", _text),
    "races": ("RACES", _switch),
    "ledger": ("LEDGER", _path),
    "timeline": ("TIMELINE", _path),
    "faults": ("FAULT", _faults),
}
assert set(_VARIABLES) == {field.name for field in fields(VirtualDeviceConfig)}  # noqa: S101
