"""A prediction in the Chrome trace format, which Perfetto and chrome://tracing read.

The format is Google's "Trace Event Format": complete events (`X`) on threads, names as metadata (`M`), flow arrows (`s`
and `f`); times are in microseconds, here with three digits: Perfetto counts whole nanoseconds, and drops a span that
does not end within the one around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyggml.clock.costs import Costs
from pyggml.clock.prediction import HOST_LANE, ClockSpan, LinkSpan, Prediction
from pyggml.clock.replay import graph_seconds
from pyggml.files import write_output

_HOST, _QUEUES, _LINKS = 1, 2, 3
_GROUPS = {_HOST: "host", _QUEUES: "queues", _LINKS: "links"}


def write_trace(prediction: Prediction, costs: Costs, file: Path) -> None:
    """Write the trace of a prediction, as JSON.

    Args:
        costs: with which it was made; they divide a graph's time among its nodes.

    Raises:
        PyggmlError: the file cannot be written.
    """
    document = {"displayTimeUnit": "ns", "traceEvents": list(trace_events(prediction, costs))}
    write_output(file, json.dumps(document, separators=(",", ":")).encode())


def trace_events(prediction: Prediction, costs: Costs) -> Iterator[dict[str, Any]]:
    """The events: lanes for the host, queues and links, a span each; graphs hold their nodes; arrows for waits."""
    for pid, name in _GROUPS.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    threads: dict[tuple[int, str], int] = {}

    def thread(pid: int, lane: str) -> Iterator[dict[str, Any]]:
        if (pid, lane) not in threads:
            tid = threads[pid, lane] = len(threads) + 1
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane}}

    for number, span in enumerate(prediction.spans):
        pid = _HOST if span.lane == HOST_LANE else _QUEUES
        yield from thread(pid, span.lane)
        tid = threads[pid, span.lane]
        yield _complete(pid, tid, _title(span), span.kind, (span.start, span.end), _arguments(span))
        if span.operation is not None and span.kind == "compute":
            start = span.start
            for node, seconds in zip(span.operation.nodes, graph_seconds(span.operation, costs), strict=True):
                about = {"tensor": node.tensor, "flops": node.flops, "bytes": node.bytes}
                end = min(start + seconds, span.end)
                yield _complete(pid, tid, f"{node.operation} {node.tensor}", "node", (start, end), about)
                start = end
        if span.why == "wait" and span.cause is not None:
            cause = prediction.spans[span.cause]
            before = _HOST if cause.lane == HOST_LANE else _QUEUES
            for phase, at, where in (
                ("s", cause.end, (before, threads[before, cause.lane])),
                ("f", span.start, (pid, tid)),
            ):
                arrow: dict[str, Any] = {"ph": phase, "name": "wait", "cat": "wait", "id": number}
                yield {
                    **arrow,
                    "pid": where[0],
                    "tid": where[1],
                    "ts": _microseconds(at),
                    "bp": "e",
                }
    for link, lane in _side_by_side(prediction.links):
        yield from thread(_LINKS, lane)
        span = prediction.spans[link.span]
        tid = threads[_LINKS, lane]
        yield _complete(_LINKS, tid, _title(span), span.kind, (link.start, link.end), _arguments(span))


def _side_by_side(links: tuple[LinkSpan, ...]) -> Iterator[tuple[LinkSpan, str]]:
    """What is on a link at the same time goes into lanes next to each other: spans of a thread must not overlap."""
    free: dict[str, list[float]] = {}
    for link in sorted(links, key=lambda link: link.start):
        lanes = free.setdefault(link.lane, [])
        number = next((n for n, end in enumerate(lanes) if end <= link.start), len(lanes))
        lanes[number:] = [link.end, *lanes[number + 1 :]]
        yield link, link.lane if number == 0 else f"{link.lane} ({number + 1})"


def _complete(
    pid: int, tid: int, name: str, category: str, times: tuple[float, float], arguments: dict[str, Any]
) -> dict[str, Any]:
    start, end = (round(time * 1e9) for time in times)
    span = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **span, "args": arguments}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e9) / 1e3


def _title(span: ClockSpan) -> str:
    if span.kind == "call":
        return f"call {span.name}"
    return f"{span.kind} {span.name}".strip()


def _arguments(span: ClockSpan) -> dict[str, Any]:
    operation = span.operation
    if operation is None:
        return {}
    about: dict[str, Any] = {"operation": operation.number}
    if operation.kind == "compute":
        return {**about, "nodes": len(operation.nodes), "tokens": operation.tokens}
    return {**about, "bytes": operation.bytes, "rows": operation.rows}
