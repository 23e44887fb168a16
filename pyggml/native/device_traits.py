"""Traits: in what a virtual device differs from the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pyggml.errors import UsageError

MIN_ALIGNMENT, MAX_ALIGNMENT = 16, 2 << 20
PADDING_UNIT, MAX_PADDING = 256, 1 << 20

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class DeviceTraits:
    """What one virtual device is like, where it differs from what VirtualDeviceConfig says of all.

    In text it is `DEVICE:KEY=VALUE,…`: `1:memory=4G,pad=512,refuse=FLASH_ATTN_EXT+MUL_MAT/q4_0`. The keys are
    `memory`, `in-use`, `alignment`, `max-buffer`, `pad`, `2d`, `async`, `events`, `refuse`, in the order below.

    Attributes:
        device: its number from 0; None for all devices, in text `*`. What is said of one device wins.
        memory: bytes of it.
        in_use: bytes of the memory that something else holds: they are not free, and count in the total.
        alignment: bytes that buffers are aligned to, a power of two.
        max_buffer: bytes of the largest buffer.
        row_padding: elements, a multiple of 256: `get_alloc_size` pads the last row of a quantised tensor to it, as
            CUDA does to 512 (ggml_backend_cuda_buffer_type_get_alloc_size, MATRIX_ROW_PADDING). 0 for none.
        native_2d: strided transfers in one call.
        asynchronous: asynchronous transfers and copies, and a queue. Without, every call is complete when it returns.
        events: without asynchrony there are none.
        refuses: operations that `supports_op` says no to, each `OP`, `OP/TYPE` or `/TYPE`: `MUL_MAT/q4_0` is a
            product with a source or result of that type. Names are ggml_op_desc's (`GELU` for a unary one).

    Raises:
        UsageError: an impossible value; the message names it.
    """

    device: int | None = None
    memory: int | None = None
    in_use: int | None = None
    alignment: int | None = None
    max_buffer: int | None = None
    row_padding: int | None = None
    native_2d: bool | None = None
    asynchronous: bool | None = None
    events: bool | None = None
    refuses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.device is not None and self.device < 0:
            raise UsageError(f"traits of device {self.device}: devices are numbered from 0")
        for key, size, least in (
            ("memory", self.memory, 1), ("in-use", self.in_use, 0), ("max-buffer", self.max_buffer, 1),
        ):  # fmt: skip
            if size is not None and not least <= size < (1 << 63) - 1:
                raise UsageError(
                    f"{self._name}: {key}={size} is impossible", f"It must be {least} or more bytes."
                )
        if self.alignment is not None:
            check_alignment(self.alignment)
        if self.row_padding is not None and (
            not 0 <= self.row_padding <= MAX_PADDING or self.row_padding % PADDING_UNIT
        ):
            raise UsageError(
                f"{self._name}: rows cannot be padded to {self.row_padding} elements",
                f"It must be a multiple of {PADDING_UNIT} up to {MAX_PADDING}, or 0; CUDA pads to 512.",
            )
        if self.events and self.asynchronous is False:
            raise UsageError(
                f"{self._name}: events need a device that is asynchronous",
                "Leave events=on away, or set async=on.",
            )
        for refusal in self.refuses:
            if not re.fullmatch(r"[A-Z0-9_]+(/[A-Za-z0-9_]+)?|/[A-Za-z0-9_]+", refusal, re.ASCII):
                raise UsageError(
                    f"{self._name}: {refusal!r} is not an operation to refuse",
                    "Write OP, OP/TYPE or /TYPE, several with a plus between them: MUL_MAT/q4_0+GELU.",
                )

    @property
    def _name(self) -> str:
        return "traits of all devices" if self.device is None else f"traits of device {self.device}"

    def __str__(self) -> str:
        parts = []
        for key, (attribute, _) in _KEYS.items():
            value = getattr(self, attribute)
            if value is None or value == ():
                continue
            if isinstance(value, bool):
                value = "on" if value else "off"
            elif isinstance(value, tuple):
                value = "+".join(value)
            parts.append(f"{key}={value}")
        return f"{'*' if self.device is None else self.device}:{','.join(parts)}"


def parse_traits(text: str) -> tuple[DeviceTraits, ...]:
    """Read `DEVICE:KEY=VALUE,…;…`, the text of several DeviceTraits; of an empty text there are none.

    Raises:
        UsageError: a part cannot be read or is impossible; the message names it.
    """
    return tuple(_parse_one(item) for item in text.split(";")) if text else ()


def check_traits(traits: tuple[DeviceTraits, ...], count: int) -> None:
    """Check that the traits go with a number of devices.

    Raises:
        UsageError: a device that does not exist, is described twice or not described at all.
    """
    seen: set[int | None] = set()
    for one in traits:
        if one.device is not None and one.device >= count:
            raise UsageError(
                f"traits {str(one)!r}: there is no device {one.device}",
                f"The {count} device{'s' if count > 1 else ''} are numbered from 0."
                if count > 1
                else "There is one device, number 0.",
            )
        if one.device in seen:
            who = "all devices are" if one.device is None else f"device {one.device} is"
            raise UsageError(
                f"traits {str(one)!r}: {who} described twice", "Give all traits of a device in one place."
            )
        if all(getattr(one, field.name) in (None, ()) for field in fields(one) if field.name != "device"):
            raise UsageError(f"traits {str(one)!r} say nothing", _HINT)
        seen.add(one.device)


def parse_size(text: str) -> int:
    """Bytes of `512M`, `1GiB`, `4096`; units are powers of 1024.

    Raises:
        UsageError: it is not a size.
    """
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:([kmgt])(?:i?b)?|b)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is not a size", "Write it as 512M, 4G or a number of bytes.")
    return int(match[1]) << _UNITS[(match[2] or "").upper()]


def check_alignment(alignment: int) -> None:
    """Check an alignment in bytes.

    Raises:
        UsageError: it is not a power of two from 16 to 2 MiB.
    """
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise UsageError(
            f"a buffer alignment of {alignment} bytes is impossible; "
            f"it must be a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
        )


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError(f"{text!r} is no switch", "Write on or off.")
    return text == "on"


def _refusals(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "memory": ("memory", parse_size),
    "in-use": ("in_use", parse_size),
    "alignment": ("alignment", parse_size),
    "max-buffer": ("max_buffer", parse_size),
    "pad": ("row_padding", _number),
    "2d": ("native_2d", _switch),
    "async": ("asynchronous", _switch),
    "events": ("events", _switch),
    "refuse": ("refuses", _refusals),
}
_HINT = (
    "There are memory, in-use, alignment, max-buffer, pad, 2d, async, events and refuse: 1:memory=4G,2d=off."
)


def _parse_one(item: str) -> DeviceTraits:
    device, colon, rest = item.partition(":")
    if not colon or not re.fullmatch(r"\*|[0-9]{1,18}", device, re.ASCII):
        raise UsageError(
            f"traits {item!r} do not begin with a device and a colon",
            "Write DEVICE:KEY=VALUE,… with a number from 0, or * for all devices.",
        )
    values: dict[str, Any] = {"device": None if device == "*" else int(device)}
    for field in rest.split(","):
        key, equals, text = field.partition("=")
        if not equals or key not in _KEYS:
            problem = f"there is no trait {key!r}" if equals else f"{field!r} is not KEY=VALUE"
            raise UsageError(f"traits {item!r}: {problem}", _HINT)
        attribute, read = _KEYS[key]
        if attribute in values:
            raise UsageError(f"traits {item!r}: {key!r} is given twice", "Give each trait of a device once.")
        try:
            values[attribute] = read(text)
        except UsageError as error:
            raise UsageError(f"traits {item!r}, {key}: {error.message}", error.hint) from error
    return DeviceTraits(**values)
