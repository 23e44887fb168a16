"""Steps, tokens, per-node costs and broken timelines, on timelines written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyggml.clock.costs import Costs, DeviceCost, HostCost, LinkCost
from pyggml.clock.replay import replay
from pyggml.clock.report import report_lines
from pyggml.errors import PyggmlError
from pyggml.native.timeline import Timeline, TimelineNode, TimelineOperation, TimelineWait

COSTS = Costs((DeviceCost(8, 4, 0.5),), (LinkCost(8),), HostCost(0.0, 0.25))


def timeline(*events: dict[str, Any] | tuple[int, int]) -> Timeline:
    made = []
    for event in events:
        if isinstance(event, tuple):
            made.append(TimelineWait(*event))
            continue
        number = 1 + sum(isinstance(one, TimelineOperation) for one in made)
        made.append(TimelineOperation(**{"number": number, "queue": 1, "on": 0, "device": 0, **event}))
    return Timeline(("A", "B"), tuple(made))


def graph(tokens: int, *nodes: tuple[int, int]) -> dict[str, Any]:
    made = tuple(TimelineNode("ADD", "n", flops, moved) for flops, moved in nodes)
    return {"kind": "compute", "tokens": tokens, "nodes": made}


LOGITS = {"kind": "get", "tensor": "result_output", "bytes": 8}
WEIGHTS = {"kind": "set", "tensor": "w", "bytes": 80, "weight": True, "queue": 0, "on": None}


def test_a_node_takes_the_longer_of_computing_and_moving_and_its_launch() -> None:
    prediction = replay(timeline(graph(0, (8, 8), (4, 24))), COSTS)
    # After the host's quarter: 2 s of flops, 3 s of bytes, twice half a second.
    assert (prediction.spans[-1].start, prediction.seconds) == (0.25, 6.25)


def test_a_step_ends_when_the_logits_are_read_and_weights_are_not_in_it() -> None:
    step = [graph(4, (4, 0)), LOGITS, {**LOGITS, "device": 1}, (0, 4)]
    prediction = replay(
        timeline(WEIGHTS, *step, graph(1, (4, 0)), LOGITS, (0, 6), graph(1, (4, 0)), LOGITS, (0, 8)), COSTS
    )
    # Each step: a quarter for the call, 1.5 s, and the reads, a second each.
    steps = [(step.start, step.end, step.tokens) for step in prediction.steps]
    assert steps == [(10.0, 13.75, 4), (13.75, 16.5, 1), (16.5, 19.25, 1)]
    assert prediction.seconds_per_token == 2.75
    assert [span.kind for span in prediction.critical_path(prediction.steps[1])] == ["call", "compute", "get"]
    lines = "\n".join(report_lines(prediction, "test"))
    assert "1 token: 2.75 s (median of 2 steps)" in lines
    assert "4 tokens: 3.75 s, 937.5 ms a token (1 step)" in lines
    assert "   54.5%  A: compute (1 times)" in lines


def test_what_happened_before_the_recording_is_done() -> None:
    events = timeline((1, 99), graph(0, (4, 0)), (0, 98), {**LOGITS, "tensor": "x"})
    prediction = replay(events, COSTS)
    assert (prediction.seconds, prediction.steps) == (2.75, ())
    assert "no logits were read" in "\n".join(report_lines(prediction, "test"))
    assert replay(timeline(), COSTS).seconds == 0


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", "{}", '{"operation":1}', '{"wait":0}', '{"pyggml_vdev_timeline":2,"devices":[]}',
     '{"operation":1,"queue":0,"kind":"set","device":0,"colour":1}',
     '{"operation":1,"queue":0,"kind":"compute","device":0,"nodes":[["ADD"]]}'],
)  # fmt: skip
@pytest.mark.parametrize("after", ["", '{"pyggml_vdev_timeline":1,"devices":["A"]}\n'])
def test_what_is_no_timeline_is_named_with_its_line(line: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(after + line + "\n", "utf-8")
    with pytest.raises(PyggmlError, match=f"line {1 + bool(after)} is not a line of a timeline"):
        Timeline.read(path)
