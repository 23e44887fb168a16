"""Races between queued operations of the virtual devices, as `vdev/races.cpp` finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyggml.native.load import Bindings


@dataclass(frozen=True)
class RacingOperation:
    """One of the two operations of a race.

    Attributes:
        operation: `set`, `get`, `cpy`, …, `free`, or the name of a graph's operation such as `ADD`.
        tensor: its name (of a copy, the destination's); of a tensor without one, that of its first source with one.
        source: the source of a copy; otherwise empty.
        queue: the device whose queue it is in; empty for the host's own.
        device: whose memory a transfer writes or reads, or which device computes.
        graph: how many graphs that device had been given before.
        writes: whether it writes the memory or reads it.
    """

    operation: str
    tensor: str
    source: str
    queue: str
    device: str
    graph: int
    writes: bool


@dataclass(frozen=True)
class Race:
    """Two operations on the same bytes, at least one of them a write, that nothing orders.

    Attributes:
        bytes: of the first piece of memory that both use.
        missing: the wait that would order them.
        text: all of it in a line.
    """

    first: RacingOperation
    second: RacingOperation
    bytes: int
    missing: str
    text: str

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Race:
        """Read what dataclasses.asdict, or the library as JSON, has written."""
        return cls(**{**values, **{name: RacingOperation(**values[name]) for name in ("first", "second")}})


def read_races(bindings: Bindings) -> tuple[Race, ...]:
    """The races since the devices were made with `races`; each pair of operations and tensors once."""
    ffi, lib = bindings.ffi, bindings.lib
    lines = (lib.pyggml_vdev_races_read(number) for number in range(lib.pyggml_vdev_races_count()))
    return tuple(Race.from_dict(json.loads(ffi.string(line).decode("utf-8", "replace"))) for line in lines)
