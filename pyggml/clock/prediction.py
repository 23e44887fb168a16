"""What the clock says: spans of time, steps, the critical path and how busy each lane was."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pyggml.native.timeline import TimelineOperation

HOST_LANE = "host"
TO_HOST = ("get", "get_2d")
"""Kinds of operations that bring bytes to the host."""


@dataclass(frozen=True)
class ClockSpan:
    """Something that took time.

    Attributes:
        lane: `host`, or a queue: `VDEV0`, of a device's further queues `VDEV0 queue 2`, ….
        name: the tensor's, or what the host calls.
        kind: of the operation, or `call` for the host's own time.
        start, end: seconds from the beginning.
        cause: number of the span that had to end before this one could begin; None if nothing had to.
        why: what made it wait for that: `issued` by the host, `order` in its queue, a `wait`, or the `device` was busy.
        operation: that it is; None for the host's own time.
    """

    lane: str
    name: str
    kind: str
    start: float
    end: float
    cause: int | None = None
    why: str = ""
    operation: TimelineOperation | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class LinkSpan:
    """Bytes on their way over a link in one direction; those of other transfers may be on it at the same time.

    Attributes:
        lane: the direction, `host > VDEV0`.
        span: number of the span in Prediction.spans.
    """

    lane: str
    start: float
    end: float
    bytes: int
    span: int


@dataclass(frozen=True)
class ClockStep:
    """From the first transfer or graph, weights apart, to the reading of the logits (`result_*`).

    Attributes:
        tokens: the most columns that a graph of it multiplied weights with; 0 if none did.
        last: number of the span that ends it.
    """

    start: float
    end: float
    tokens: int
    last: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class PathShare:
    """What a part of the critical path was spent on.

    Attributes:
        where: `host`, a device, or the direction of transfers, `host > VDEV0`.
        what: the kind of the operations; of the host `graphs`, given to devices, and `other calls`.
        count: how many spans.
    """

    where: str
    what: str
    seconds: float
    count: int


@dataclass(frozen=True)
class Busy:
    """How long a lane was busy, and bytes that went over a link."""

    lane: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Prediction:
    """The replay of a timeline under costs.

    Attributes:
        seconds: until everything is done.
        spans: of host and queues, in the order in which they began to be known.
        links: what was on the links.
        steps: as the reading of logits shows them; empty if none were read.
    """

    devices: tuple[str, ...]
    seconds: float
    spans: tuple[ClockSpan, ...]
    links: tuple[LinkSpan, ...]
    steps: tuple[ClockStep, ...]

    def critical_path(self, step: ClockStep | None = None) -> tuple[ClockSpan, ...]:
        """The chain of spans that ends last, each the cause of the next, in the order of time.

        Args:
            step: the chain that ends it, back to its beginning; by default that of everything.
        """
        if not self.spans:
            return ()
        last = max(range(len(self.spans)), key=lambda number: self.spans[number].end)
        number: int | None = step.last if step is not None else last
        start = step.start if step is not None else 0.0
        path: list[ClockSpan] = []
        while number is not None and (self.spans[number].end > start or not path):
            path.append(self.spans[number])
            number = self.spans[number].cause
        return tuple(reversed(path))

    def path_shares(self, step: ClockStep | None = None) -> tuple[PathShare, ...]:
        """The critical path by kind of work and by device, or by the direction of a transfer; the longest first."""
        start = step.start if step is not None else 0.0
        seconds: dict[tuple[str, str], float] = defaultdict(float)
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for span in self.critical_path(step):
            key = self._work(span)
            seconds[key] += span.end - max(span.start, start)
            counts[key] += 1
        shares = (PathShare(*key, seconds[key], counts[key]) for key in seconds)
        return tuple(sorted(shares, key=lambda share: -share.seconds))

    def _work(self, span: ClockSpan) -> tuple[str, str]:
        operation = span.operation
        if operation is None:
            return HOST_LANE, "graphs" if span.name == "compute" else "other calls"
        device = self.devices[operation.device]
        if on_device(operation):
            return device, operation.kind
        other = HOST_LANE if operation.peer is None else self.devices[operation.peer]
        to_host = operation.kind in TO_HOST
        return f"{device if to_host else other} > {other if to_host else device}", operation.kind

    def busy(self, step: ClockStep | None = None) -> tuple[Busy, ...]:
        """How busy the host, each device and each link were: host, devices, then links in the order of their use."""
        start, end = (step.start, step.end) if step is not None else (0.0, self.seconds)
        lanes: dict[str, list[tuple[float, float]]] = {HOST_LANE: [], **{name: [] for name in self.devices}}
        moved: dict[str, int] = defaultdict(int)
        for span in self.spans:
            if span.kind == "call":
                lanes[HOST_LANE].append((span.start, span.end))
            elif span.operation is not None and on_device(span.operation):
                lanes[self.devices[span.operation.device]].append((span.start, span.end))
        for link in self.links:
            lanes.setdefault(link.lane, []).append((link.start, link.end))
            if start <= link.end <= end:
                moved[link.lane] += link.bytes
        return tuple(Busy(lane, _covered(spans, start, end), moved[lane]) for lane, spans in lanes.items())

    def steps_by_tokens(self) -> dict[int, list[ClockStep]]:
        """The steps by their number of tokens, the fewest first."""
        groups: dict[int, list[ClockStep]] = defaultdict(list)
        for step in self.steps:
            groups[step.tokens].append(step)
        return dict(sorted(groups.items()))

    @property
    def seconds_per_token(self) -> float | None:
        """Of the steps with the fewest tokens, the median; None if there is no step with tokens."""
        groups = [(tokens, steps) for tokens, steps in self.steps_by_tokens().items() if tokens]
        if not groups:
            return None
        tokens, steps = groups[0]
        return statistics.median(step.seconds for step in steps) / tokens


def on_device(operation: TimelineOperation) -> bool:
    """Whether it keeps a device busy and not a link: a graph, a fill, or a copy within the device."""
    return operation.kind in ("compute", "memset", "clear") or (
        operation.kind == "cpy" and operation.peer == operation.device
    )


def _covered(spans: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Seconds from start to end that at least one of the spans covers."""
    covered, reached = 0.0, start
    for begins, ends in sorted(spans):
        begins, ends = max(begins, reached), min(ends, end)
        if ends > begins:
            covered += ends - begins
            reached = ends
    return covered
