"""The timeline of the virtual devices: operations in the order of the host's calls, and who waits for which."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.files import whole_lines

if TYPE_CHECKING:
    from pyggml.native.load import Bindings

HOST = 0
"""The number of the host among the queues."""

_HEADER = "pyggml_vdev_timeline"


@dataclass(frozen=True)
class TimelineNode:
    """A node of a graph that computes something.

    Attributes:
        operation: as ggml_op_desc calls it, `MUL_MAT`, `GELU`.
        flops: multiplications and additions of a product; for others one for every element of the result.
        bytes: that it must read and write at least.
    """

    operation: str
    tensor: str
    flops: int
    bytes: int


@dataclass(frozen=True)
class TimelineOperation:
    """Something that a queue or the host does.

    Attributes:
        number: from 1.
        queue: that it is in; HOST if the host does it and waits for it.
        on: number of the device whose queue it is; None for the host.
        kind: one of pyggml.native.ledger.KINDS; `compute` is a graph.
        device: number of the device whose memory is written or read, of a copy the destination, or that computes.
        peer: number of the device that a copy comes from.
        tensor: its name; of a graph, its last node's.
        bytes: that are moved.
        rows: of a 2-D transfer; else 1.
        weight: a transfer of a model's weights.
        tokens: the most columns that a graph multiplies weights with; 0 if it does not.
        nodes: of a graph, without views.
    """

    number: int
    queue: int
    on: int | None
    kind: str
    device: int
    peer: int | None = None
    tensor: str = ""
    bytes: int = 0
    rows: int = 1
    weight: bool = False
    tokens: int = 0
    nodes: tuple[TimelineNode, ...] = ()


@dataclass(frozen=True)
class TimelineWait:
    """What a queue, or the HOST, does from here on comes after an operation."""

    queue: int
    operation: int


@dataclass(frozen=True)
class Timeline:
    """Operations and waits in the order of the host's calls.

    Attributes:
        devices: their names, by number.
    """

    devices: tuple[str, ...]
    events: tuple[TimelineOperation | TimelineWait, ...]

    @classmethod
    def read(cls, path: Path) -> Timeline:
        """Read a file that PYGGML_VDEV_TIMELINE made, without a last line that was cut off.

        Raises:
            PyggmlError: the file cannot be read or is not a timeline; the message names the line.
        """
        return _parse(whole_lines(path, "timeline"), str(path))

    @property
    def operations(self) -> tuple[TimelineOperation, ...]:
        """The operations alone."""
        return tuple(event for event in self.events if isinstance(event, TimelineOperation))


def read_timeline(bindings: Bindings) -> Timeline:
    """The timeline in this process, since `pyggml_vdev_timeline_enable`.

    Raises:
        PyggmlError: lines were dropped because there were too many.
    """
    ffi, lib = bindings.ffi, bindings.lib
    dropped = lib.pyggml_vdev_timeline_dropped()
    if dropped:
        raise PyggmlError(f"{dropped} lines of the timeline were dropped", "Start it again more often.")
    return _parse(
        (
            ffi.string(lib.pyggml_vdev_timeline_read(number))
            for number in range(lib.pyggml_vdev_timeline_count())
        ),
        "the timeline",
    )


def _parse(lines: Iterable[bytes], where: str) -> Timeline:
    devices: tuple[str, ...] = ()
    events: list[TimelineOperation | TimelineWait] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line.decode("utf-8", "replace"))
            if _HEADER in entry or (not devices and "wait" not in entry):
                if entry[_HEADER] != 1:
                    raise ValueError("another version")
                devices = tuple(str(name) for name in entry["devices"])
            elif "wait" in entry:
                events.append(TimelineWait(int(entry["wait"]), int(entry["for"])))
            else:
                events.append(_operation(entry))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PyggmlError(
                f"{where}, line {number} is not a line of a timeline",
                "PYGGML_VDEV_TIMELINE=FILE makes one.",
            ) from error
    return Timeline(devices, tuple(events))


def _operation(entry: dict[str, Any]) -> TimelineOperation:
    nodes = entry.pop("nodes", ())
    return TimelineOperation(
        number=entry.pop("operation"),
        on=entry.pop("on", None),
        nodes=tuple(TimelineNode(*node) for node in nodes),
        **entry,
    )
