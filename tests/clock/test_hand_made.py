"""Three graphs on virtual devices whose times are computed by hand here.

Every tensor has 16 bytes. Costs are chosen so that a tensor takes a second over a link, an addition (three tensors)
three seconds and a second for its launch, a call of the host a quarter and a graph half a second.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyggml.builder.record import Build
from pyggml.clock.costs import Costs, DeviceCost, HostCost, LinkCost, PeerCost
from pyggml.clock.prediction import Prediction
from pyggml.clock.replay import replay
from pyggml.clock.trace import trace_events, write_trace
from pyggml.native.load import active_build
from pyggml.native.timeline import Timeline, TimelineNode, TimelineOperation
from pyggml.project import find_project
from tests.native.test_vdev_queues import REDUCTION, client

pytestmark = pytest.mark.native

HOST = HostCost(call=0.25, split=0.5)
DEVICE = DeviceCost(bytes_per_second=16, flops_per_second=1e9, launch=1)
LINK = LinkCost(bytes_per_second=16, latency=0.125)
COSTS = Costs((DEVICE,), (LINK,), HOST)

OVERLAP = """
other = v.dev_init(v.device(0), None)
a, b, c_, d = at(0, "a", "b", "c", "d")
data = (c.c_float * 4)()
v.timeline_enable(1)
v.graph_compute_async(streams[0], adding(0, a, b))
v.tensor_set_async(other, d, data, 0, 16)
v.graph_compute_async(other, adding(0, c_, d))
v.synchronize(other)
answer(v.timeline())
"""
SHARED = """
(a,), (b,) = at(0, "a"), at(1, "b")
data = (c.c_float * 4)()
v.timeline_enable(1)
v.tensor_set_async(streams[0], a, data, 0, 16)
v.tensor_set_async(streams[1], b, data, 0, 16)
answer(v.timeline())
"""


@pytest.fixture(scope="module")
def build() -> Build:
    return active_build(find_project(Path(__file__).parent).root)


@pytest.fixture
def recorded(build: Build, tmp_path: Path) -> Any:
    """`recorded(code, schedule)`: the timeline of a program of tests.native.vdev_client."""

    def record(code: str, schedule: str = "at-once") -> Timeline:
        path = tmp_path / "timeline"
        path.write_text("".join(f"{line}\n" for line in client(build, schedule, code)), "utf-8")
        return Timeline.read(path)

    return record


def not_nested(events: list[dict[str, Any]]) -> list[str]:
    """Spans that overlap others of their lane without lying within them, in whole nanoseconds as Perfetto counts."""
    wrong = []
    around: dict[tuple[int, int], list[int]] = {}
    spans = [
        (round(e["ts"] * 1e3), -round(e["dur"] * 1e3), (e["pid"], e["tid"]), e["name"])
        for e in events
        if e["ph"] == "X"
    ]
    for start, minus, lane, name in sorted(spans):
        ends = around.setdefault(lane, [])
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and start - minus > ends[-1]:
            wrong.append(name)
        ends.append(start - minus)
    return wrong


def work(prediction: Prediction) -> list[tuple[str, str, float, float]]:
    """What is not a call of the host, in the order of the calls: lane, kind and name, start and end."""
    spans = [(span.operation.number, span) for span in prediction.spans if span.operation is not None]
    return [
        (one.lane, f"{one.kind} {one.name}", one.start, one.end)
        for _, one in sorted(spans, key=lambda s: s[0])
    ]


@pytest.mark.parametrize("schedule", ["at-once", "late", "random:1"])
def test_a_transfer_and_a_graph_of_two_queues_overlap(recorded: Any, schedule: str) -> None:
    prediction = replay(recorded(OVERLAP, schedule), COSTS)
    # The calls end at 0.5, 0.75 and 1.25. The set begins at 0.75, has its latency until 0.875 and a second of bytes.
    # The second addition is ready at 1.875, when the device still has the first one.
    assert work(prediction) == [
        ("VDEV0", "compute a (view)", 0.5, 4.5),
        ("VDEV0 queue 2", "set d", 0.75, 1.875),
        ("VDEV0 queue 2", "compute c (view)", 4.5, 8.5),
    ]
    assert prediction.seconds == 8.5
    path = prediction.critical_path()
    assert [(span.kind, span.why) for span in path] == [
        ("call", ""), ("compute", "issued"), ("compute", "device")
    ]  # fmt: skip
    assert [(busy.lane, busy.seconds, busy.bytes) for busy in prediction.busy()] == [
        ("host", 1.25, 0), ("VDEV0", 8.0, 0), ("VDEV1", 0, 0), ("host > VDEV0", 1.0, 16)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("links", "ends"),
    [
        # Calls end at 0.25 and 0.5. Alone, each takes a second.
        ((LinkCost(16), LinkCost(16)), (1.25, 1.5)),
        # The first has sent 4 bytes when the second begins; both then send 8 a second, so the first has 1.5 s left; the
        # second has sent 12 by then and sends the last 4 in a quarter of a second.
        ((LinkCost(16, root="r"), LinkCost(16, root="r")), (2.0, 2.25)),
        # The second link takes 4 a second and leaves 12: 12 bytes of the first in a second, 16 of the second in four.
        ((LinkCost(16, root="r"), LinkCost(4, root="r")), (1.5, 4.5)),
    ],
    ids=["links of their own", "a shared root", "a narrow link under it"],
)
def test_links_that_share_a_root_share_its_bandwidth(
    recorded: Any, links: tuple[LinkCost, ...], ends: tuple[float, float]
) -> None:
    prediction = replay(recorded(SHARED), Costs((DEVICE,), links, HOST, {"r": 16}))
    assert work(prediction) == [("VDEV0", "set a", 0.25, ends[0]), ("VDEV1", "set b", 0.5, ends[1])]


@pytest.mark.parametrize(
    ("wait", "peers", "expected"),
    [
        # A copy takes both latencies and a second. The first begins with its call, at 0.25. The first addition waits
        # for it. The second copy waits for the addition, and the second addition for that copy.
        (True, (), [(0.25, 1.5), (1.5, 5.5), (5.5, 6.75), (6.75, 10.75)]),
        # Without the wait the second copy follows the first; the second addition follows the first one.
        (False, (), [(0.25, 1.5), (1.5, 5.5), (1.5, 2.75), (5.5, 9.5)]),
        # A link of their own, of 32 bytes a second and without latency.
        (True, (PeerCost((1, 0), 32),), [(0.25, 0.75), (0.75, 4.75), (4.75, 5.25), (5.25, 9.25)]),
    ],
    ids=["with the wait", "without", "over a link of their own"],
)
def test_a_reduction_is_a_chain_of_waits(
    recorded: Any, wait: bool, peers: tuple[PeerCost, ...], expected: list[tuple[float, float]]
) -> None:
    code = REDUCTION.format(wait=wait).replace("done =", "v.timeline_enable(1); done =")
    code = code[: code.index("for stream in streams")] + "answer(v.timeline())"
    prediction = replay(recorded(code), Costs((DEVICE,), (LINK,), HOST, peers=peers))
    assert [(start, end) for _, _, start, end in work(prediction)] == expected
    assert [name for _, name, _, _ in work(prediction)] == [
        "cpy tmp", "compute r1 (view)", "cpy tmp", "compute r2 (view)"
    ]  # fmt: skip
    if wait:
        whys = [(span.kind, span.why) for span in prediction.critical_path()]
        assert whys == [
            ("call", ""),
            ("cpy", "issued"),
            *[("compute", "wait"), ("cpy", "wait")],
            ("compute", "wait"),
        ]
        shares = {
            (share.where, share.what): (share.seconds, share.count) for share in prediction.path_shares()
        }
        copies = 2 * (expected[0][1] - expected[0][0])
        assert shares == {
            ("VDEV1", "compute"): (8.0, 2), ("VDEV0 > VDEV1", "cpy"): (copies, 2), ("host", "other calls"): (0.25, 1)
        }  # fmt: skip


def test_the_trace_has_a_lane_for_everything_and_no_overlap_in_it(recorded: Any, tmp_path: Path) -> None:
    costs = Costs((DEVICE,), (LinkCost(16, root="r"),), HOST, {"r": 16})
    prediction = replay(recorded(OVERLAP), costs)
    write_trace(prediction, costs, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    events = document["traceEvents"]
    assert events == list(trace_events(prediction, costs))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) >= {"host", "VDEV0", "VDEV0 queue 2", "host > VDEV0", "host > r"}
    complete = [event for event in events if event["ph"] == "X"]
    assert all(
        event["dur"] >= 0 and event["ts"] >= 0 and (event["pid"], event["tid"]) in names for event in complete
    )
    assert not_nested(events) == []
    (graph,) = [event for event in complete if event["name"] == "compute a (view)"]
    (node,) = [event for event in complete if event["name"] == "ADD a (view)"]
    assert (graph["ts"], graph["dur"]) == (node["ts"], node["dur"]) == (0.5e6, 4e6)


def test_the_nodes_of_a_graph_end_with_it_to_the_nanosecond() -> None:
    # Sums of thirds and sevenths, of which none is a whole number of nanoseconds.
    nodes = tuple(TimelineNode("ADD", str(n), 7 * n % 11, 3 * n % 5) for n in range(1, 200))
    graph = TimelineOperation(1, 1, 0, "compute", 0, nodes=nodes)
    costs = Costs((DeviceCost(7e7, 3e7, 1e-7 / 3),), (LINK,), HostCost(1e-7 / 3, 1e-7 / 7))
    following = replace(graph, number=2)
    events = list(trace_events(replay(Timeline(("A",), (graph, following)), costs), costs))
    assert not_nested(events) == []
    assert all(
        event["ts"] * 1e3 == pytest.approx(round(event["ts"] * 1e3)) for event in events if "ts" in event
    )
