"""Replaying a timeline under costs: a simulation of events, the same every time.

The host makes its calls one after another, each at a cost. What it puts into a queue begins when the queue has done
what came before, what it waits for is done, and its device is free. Bytes on a link in the same direction share it, and
what several links have in common, evenly: each transfer gets its max-min fair share (Bertsekas and Gallager, Data
Networks, section 6.5.2).
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pyggml.clock.costs import Costs
from pyggml.clock.prediction import HOST_LANE, TO_HOST, ClockSpan, ClockStep, LinkSpan, Prediction, on_device
from pyggml.native.timeline import HOST, Timeline, TimelineOperation, TimelineWait


def replay(timeline: Timeline, costs: Costs) -> Prediction:
    """When everything of a timeline would happen.

    An operation that a wait is for and that the timeline does not hold counts as done before it began.
    """
    return _Replay(timeline, costs).run()


def graph_seconds(operation: TimelineOperation, costs: Costs) -> list[float]:
    """Seconds of each node of a graph: its launch, and the longer of computing and moving its bytes."""
    cost = costs.device(operation.device)
    return [
        cost.launch + max(node.flops / cost.flops_per_second, node.bytes / cost.bytes_per_second)
        for node in operation.nodes
    ]


@dataclass(eq=False)
class _Task:
    """A span in the making."""

    number: int
    lane: str
    name: str
    kind: str
    operation: TimelineOperation | None = None
    start: float = 0.0
    end: float = 0.0
    cause: _Task | None = None
    why: str = ""

    def begin(self, now: float, causes: list[tuple[_Task | None, str]]) -> None:
        self.start = now
        for task, why in causes:
            if task is not None and (self.cause is None or task.end > self.cause.end):
                self.cause, self.why = task, why


@dataclass(eq=False)
class _Flow:
    """Bytes on their way; `left` of them at the time `since`."""

    task: _Task
    channels: tuple[str, ...]
    left: float
    since: float
    rate: float = 0.0

    @property
    def end(self) -> float:
        return self.since + self.left / self.rate


@dataclass(eq=False)
class _Queue:
    lane: str
    items: deque[tuple[TimelineOperation, _Task] | TimelineWait] = field(default_factory=deque)
    busy: bool = False
    last: _Task | None = None
    why: str = "order"  # it comes after `last`


@dataclass(eq=False)
class _Engine:
    """The one thing of a device that computes."""

    holder: _Task | None = None
    waiting: deque[tuple[_Task, float]] = field(default_factory=deque)


class _Replay:
    def __init__(self, timeline: Timeline, costs: Costs) -> None:
        self._timeline = timeline
        self._costs = costs
        self._known = {one.number for one in timeline.operations}
        self._now = 0.0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._flows: list[_Flow] = []
        self._tasks: list[_Task] = []
        self._links: list[LinkSpan] = []
        self._departed: dict[_Flow, float] = {}
        self._called: dict[int, _Task] = {}
        self._done: dict[int, _Task] = {}
        self._waiting: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._queues: dict[int, _Queue] = {}
        self._of_device: dict[int, int] = defaultdict(int)
        self._engines: dict[int, _Engine] = defaultdict(_Engine)
        self._next = 0
        self._host_last: tuple[_Task | None, str] = (None, "order")

    def run(self) -> Prediction:
        self._host()
        while self._coming or self._flows:
            times = [flow.end for flow in self._flows]
            if self._coming:
                times.append(self._coming[0][0])
            self._now = min(times)
            arrived = [flow for flow in self._flows if flow.end <= self._now]
            if arrived:
                self._flows = [flow for flow in self._flows if flow not in arrived]
                self._share()
                for flow in arrived:
                    self._arrive(flow)
            else:
                heapq.heappop(self._coming)[2]()
        spans = tuple(
            ClockSpan(
                task.lane, task.name, task.kind, task.start, task.end,
                None if task.cause is None else task.cause.number, task.why, task.operation,
            )
            for task in self._tasks
        )  # fmt: skip
        seconds = max((span.end for span in spans), default=0.0)
        return Prediction(self._timeline.devices, seconds, spans, tuple(self._links), self._steps())

    # The host

    def _host(self) -> None:
        """Go on with the host's calls until it is busy or waits."""
        events = self._timeline.events
        while self._next < len(events):
            event = events[self._next]
            if isinstance(event, TimelineWait):
                if event.queue != HOST:
                    queue = self._queues.get(event.queue)
                    if queue is None:  # its first operation has not been put in: no device is known yet
                        queue = self._queues[event.queue] = _Queue("")
                    queue.items.append(event)
                    self._advance(queue)
                elif event.operation in self._known:
                    done = self._done.get(event.operation)
                    if done is None:
                        self._waiting[event.operation].append(self._host)
                        return
                    last = self._host_last[0]
                    if last is None or done.end > last.end:
                        self._host_last = (done, "wait")
                self._next += 1
                continue
            self._next += 1
            task = self._task(HOST_LANE, event.kind, "call")
            task.begin(self._now, [self._host_last])
            seconds = self._costs.host.split if event.kind == "compute" else self._costs.host.call
            self._called[event.number] = task
            self._after(seconds, partial(self._issue, event, task))
            return

    def _issue(self, event: TimelineOperation, call: _Task) -> None:
        call.end = self._now
        self._host_last = (call, "order")
        if event.queue == HOST:
            self._start(self._task(HOST_LANE, event.tensor, event.kind, event), [(call, "issued")])
            return
        queue = self._queues.setdefault(event.queue, _Queue(""))
        if not queue.lane:
            queue.lane = self._lane(event)
        queue.items.append((event, call))
        self._advance(queue)
        self._host()

    def _lane(self, event: TimelineOperation) -> str:
        device = event.device if event.on is None else event.on
        self._of_device[device] += 1
        more = f" queue {self._of_device[device]}" if self._of_device[device] > 1 else ""
        return self._timeline.devices[device] + more

    # The queues and devices

    def _advance(self, queue: _Queue) -> None:
        """Begin what a queue can begin."""
        while queue.items and not queue.busy:
            head = queue.items[0]
            if isinstance(head, TimelineWait):
                done = self._done.get(head.operation)
                if done is None and head.operation in self._known:
                    self._waiting[head.operation].append(lambda: self._advance(queue))
                    return
                if done is not None and (queue.last is None or done.end > queue.last.end):
                    queue.last, queue.why = done, "wait"
                queue.items.popleft()
                continue
            queue.items.popleft()
            event, call = head
            queue.busy = True
            self._start(
                self._task(queue.lane, event.tensor, event.kind, event),
                [(queue.last, queue.why), (call, "issued")],
            )

    def _start(self, task: _Task, causes: list[tuple[_Task | None, str]]) -> None:
        event = task.operation
        assert event is not None  # noqa: S101
        task.begin(self._now, causes)
        cost = self._costs.device(event.device)
        if event.kind == "compute":
            self._occupy(task, sum(graph_seconds(event, self._costs)))
        elif on_device(event):  # a copy reads and writes
            self._occupy(task, event.bytes * (2 if event.kind == "cpy" else 1) / cost.bytes_per_second)
        else:
            channels, latency = self._path(event)
            self._after(latency, lambda: self._depart(_Flow(task, channels, event.bytes, self._now)))

    def _occupy(self, task: _Task, seconds: float) -> None:
        """Use a device as soon as it is free."""
        assert task.operation is not None  # noqa: S101
        engine = self._engines[task.operation.device]
        if engine.holder is not None:
            engine.waiting.append((task, seconds))
            return
        engine.holder = task
        self._after(seconds, lambda: self._release(engine, task))

    def _release(self, engine: _Engine, task: _Task) -> None:
        engine.holder = None
        task.end = self._now
        if engine.waiting:
            following, seconds = engine.waiting.popleft()
            following.begin(self._now, [(task, "device")])
            self._occupy(following, seconds)
        self._finish(task)

    def _finish(self, task: _Task) -> None:
        event = task.operation
        assert event is not None  # noqa: S101
        task.end = self._now
        self._done[event.number] = task
        if event.queue == HOST:
            self._host_last = (task, "order")
            self._host()
        else:
            queue = self._queues[event.queue]
            queue.busy, queue.last, queue.why = False, task, "order"
            self._advance(queue)
        for resume in self._waiting.pop(event.number, ()):
            resume()

    # The links

    def _path(self, event: TimelineOperation) -> tuple[tuple[str, ...], float]:
        """The channels that a transfer takes, and its latency."""
        names, link = self._timeline.devices, self._costs.link(event.device)
        here = names[event.device]
        if event.kind != "cpy" or event.peer is None:
            to_host = event.kind in TO_HOST
            own = f"{here} > host" if to_host else f"host > {here}"
            return (own, *self._root(event.device, to_host)), link.latency
        there = names[event.peer]
        peer = self._costs.peer(event.device, event.peer)
        if peer is not None:
            return (f"{there} > {here}",), peer.latency
        up, down = self._root(event.peer, True), self._root(event.device, False)
        if up and down and self._costs.link(event.peer).root == link.root:
            up = down = ()
        latency = self._costs.link(event.peer).latency + link.latency
        return (f"{there} > host", *up, *down, f"host > {here}"), latency

    def _root(self, device: int, to_host: bool) -> tuple[str, ...]:
        root = self._costs.link(device).root
        if root is None:
            return ()
        return (f"{root} > host" if to_host else f"host > {root}",)

    def _capacity(self, channel: str) -> float:
        start, _, end = channel.partition(" > ")
        names = self._timeline.devices
        a, b = (names.index(one) if one in names else None for one in (start, end))
        if a is not None and b is not None:
            peer = self._costs.peer(a, b)
            assert peer is not None  # noqa: S101
            return peer.bytes_per_second
        device = a if a is not None else b
        if device is not None:
            return self._costs.link(device).bytes_per_second
        return self._costs.roots[end if start == "host" else start]

    def _depart(self, flow: _Flow) -> None:
        flow.since = self._now
        if not flow.left:
            self._arrive(flow)
            return
        self._flows.append(flow)
        self._share()

    def _arrive(self, flow: _Flow) -> None:
        operation = flow.task.operation
        assert operation is not None  # noqa: S101
        start = self._departed.pop(flow, self._now)
        for channel in flow.channels:
            self._links.append(LinkSpan(channel, start, self._now, operation.bytes, flow.task.number))
        self._finish(flow.task)

    def _share(self) -> None:
        """Give every flow its max-min fair rate."""
        left = {channel: self._capacity(channel) for flow in self._flows for channel in flow.channels}
        open_ = list(self._flows)
        rates: dict[_Flow, float] = {}
        while open_:
            users = {channel: sum(channel in flow.channels for flow in open_) for channel in left}
            fair, narrow = min((left[channel] / count, channel) for channel, count in users.items() if count)
            for flow in [flow for flow in open_ if narrow in flow.channels]:
                rates[flow] = fair
                open_.remove(flow)
                for channel in flow.channels:
                    left[channel] -= fair
        for flow, rate in rates.items():
            self._departed.setdefault(flow, self._now)
            if rate != flow.rate:
                flow.left -= (self._now - flow.since) * flow.rate
                flow.since, flow.rate = self._now, rate

    # The rest

    def _task(self, lane: str, name: str, kind: str, operation: TimelineOperation | None = None) -> _Task:
        self._tasks.append(_Task(len(self._tasks), lane, name, kind, operation))
        return self._tasks[-1]

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._counter += 1
        heapq.heappush(self._coming, (self._now + seconds, self._counter, action))

    def _steps(self) -> tuple[ClockStep, ...]:
        steps: list[ClockStep] = []
        start: float | None = None
        last: _Task | None = None
        tokens = 0

        def close() -> None:
            if last is not None and start is not None:
                steps.append(ClockStep(start, last.end, tokens, last.number))

        for event in self._timeline.operations:
            task = self._done[event.number]
            if event.weight or event.kind in ("clear", "memset"):
                continue
            reads = event.kind in TO_HOST
            if last is not None and not reads:
                close()
                start, last, tokens = None, None, 0
            if start is None:
                start = self._called[event.number].start
            tokens = max(tokens, event.tokens)
            if reads and event.tensor.startswith("result_"):
                last = task
        close()
        return tuple(steps)
