"""What things cost: host, devices and links, read from TOML."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyggml.errors import PyggmlError, UsageError, did_you_mean

_PRESETS = Path(__file__).parent / "presets"
PRESETS = tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


@dataclass(frozen=True)
class HostCost:
    """Seconds of the host: for every call, and for every graph that it gives to a device."""

    call: float = 0.0
    split: float = 0.0


@dataclass(frozen=True)
class DeviceCost:
    """Speed of a device; `launch` is in seconds for every operation of a graph."""

    bytes_per_second: float
    flops_per_second: float
    launch: float = 0.0


@dataclass(frozen=True)
class LinkCost:
    """The link between the host and a device, each way.

    Attributes:
        latency: seconds before the first byte.
        root: what it shares with other links on the way to the host; see Costs.roots.
    """

    bytes_per_second: float
    latency: float = 0.0
    root: str | None = None


@dataclass(frozen=True)
class PeerCost:
    """A link of their own between two devices, each way."""

    devices: tuple[int, int]
    bytes_per_second: float
    latency: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Costs of everything that the clock knows.

    Attributes:
        devices, links: by number of the device; the last stands for all further ones.
        roots: bytes per second, each way, of what several links share.
    """

    devices: tuple[DeviceCost, ...]
    links: tuple[LinkCost, ...]
    host: HostCost = field(default_factory=HostCost)
    roots: Mapping[str, float] = field(default_factory=dict)
    peers: tuple[PeerCost, ...] = ()

    def device(self, number: int) -> DeviceCost:
        return self.devices[min(number, len(self.devices) - 1)]

    def link(self, number: int) -> LinkCost:
        return self.links[min(number, len(self.links) - 1)]

    def peer(self, a: int, b: int) -> PeerCost | None:
        """The link of their own that two devices have."""
        return next((one for one in self.peers if set(one.devices) == {a, b}), None)


def read_costs(name: str | Path) -> Costs:
    """Costs from a preset or a file.

    Args:
        name: one of PRESETS, or the path of a TOML file.

    Raises:
        UsageError: there is no such preset or file.
        PyggmlError: it cannot be read; the message names the key.
    """
    path = _PRESETS / f"{name}.toml" if str(name) in PRESETS else Path(name)
    try:
        text = path.read_bytes().decode("utf-8")
        return parse_costs(tomllib.loads(text), str(name))
    except FileNotFoundError as error:
        hint = f"{did_you_mean(str(name), PRESETS)}Presets: {', '.join(PRESETS)}."
        raise UsageError(f"the clock's costs {str(name)!r} are neither a preset nor a file", hint) from error
    except OSError as error:
        raise PyggmlError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PyggmlError(f"{path} is not TOML: {error}", "docs/clock.md shows a file of costs.") from error


def parse_costs(document: Mapping[str, Any], where: str) -> Costs:
    """Costs from a TOML document.

    Args:
        where: what it is called in messages.

    Raises:
        PyggmlError: a key that is unknown, missing or has an impossible value.
    """
    _only(document, ("host", "device", "link", "root", "peer"), where)
    tables = {
        key: _tables(document.get(key, []), f"{where}, [[{key}]]") for key in ("device", "link", "peer")
    }
    for key in ("device", "link"):
        if not tables[key]:
            raise PyggmlError(f"{where} has no [[{key}]]", "docs/clock.md shows a file of costs.")
    roots = {
        name: _read(
            _Rate, _table(table, f"{where}, [root.{name}]"), f"{where}, [root.{name}]"
        ).bytes_per_second
        for name, table in _table(document.get("root", {}), f"{where}, root").items()
    }
    costs = Costs(
        tuple(
            _read(DeviceCost, table, f"{where}, [[device]] {n}") for n, table in enumerate(tables["device"])
        ),
        tuple(_read(LinkCost, table, f"{where}, [[link]] {n}") for n, table in enumerate(tables["link"])),
        _read(HostCost, _table(document.get("host", {}), f"{where}, [host]"), f"{where}, [host]"),
        roots,
        tuple(_read(PeerCost, table, f"{where}, [[peer]] {n}") for n, table in enumerate(tables["peer"])),
    )
    for number, link in enumerate(costs.links):
        if link.root is not None and link.root not in roots:
            raise PyggmlError(
                f"{where}, [[link]] {number}: there is no root {link.root!r}",
                f"Add [root.{link.root}] with bytes_per_second.",
            )
    return costs


@dataclass(frozen=True)
class _Rate:
    bytes_per_second: float


_Cost = TypeVar("_Cost", _Rate, HostCost, DeviceCost, LinkCost, PeerCost)
_REQUIRED: dict[Any, tuple[str, ...]] = {
    _Rate: ("bytes_per_second",),
    HostCost: (),
    DeviceCost: ("bytes_per_second", "flops_per_second"),
    LinkCost: ("bytes_per_second",),
    PeerCost: ("devices", "bytes_per_second"),
}


def _read(kind: type[_Cost], table: Mapping[str, Any], where: str) -> _Cost:
    known = tuple(kind.__dataclass_fields__)
    _only(table, known, where)
    for key in _REQUIRED[kind]:
        if key not in table:
            raise PyggmlError(f"{where} has no {key}", f"It needs: {', '.join(_REQUIRED[kind])}.")
    return kind(**{key: _value(key, value, where) for key, value in table.items()})


def _value(key: str, value: Any, where: str) -> Any:
    if key == "root":
        if not isinstance(value, str):
            raise PyggmlError(f"{where}: root is {value!r}", "It must be the name of a [root.NAME].")
        return value
    if key == "devices":
        whole = isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
        if not whole or len(value) != 2 or value[0] == value[1]:
            raise PyggmlError(f"{where}: devices is {value!r}", "It must be two numbers of devices: [0, 1].")
        return tuple(value)
    least = "more than 0" if key.endswith("_per_second") else "0 or more"
    number = type(value) in (int, float) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and key.endswith("_per_second")):
        raise PyggmlError(f"{where}: {key} is {value!r}", f"It must be a number, {least}.")
    return float(value)


def _only(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise PyggmlError(
                f"{where}: {key!r} is unknown", f"{did_you_mean(key, known)}There are: {', '.join(known)}."
            )


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PyggmlError(f"{where} is not a table", "docs/clock.md shows a file of costs.")
    return value


def _tables(value: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise PyggmlError(
            f"{where} must be written with double brackets", "docs/clock.md shows a file of costs."
        )
    return [_table(one, where) for one in value]
