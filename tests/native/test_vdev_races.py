"""Races: what is found, in whatever order the work runs, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from pyggml.builder.record import Build
from tests.native.test_vdev_queues import REDUCTION, client

pytestmark = pytest.mark.native

SCHEDULES = pytest.mark.parametrize("schedule", ["at-once", "late", "random:1", "threads"])


def races(build: Build, schedule: str, code: str, devices: int = 2) -> Any:
    body = "v.races_enable(1)\n" + code + "\nanswer(v.races())"
    return client(build, schedule, body, devices)


def reduction(wait: bool) -> str:
    return REDUCTION.format(wait=wait).rsplit("answer(", 1)[0]


@SCHEDULES
def test_both_operations_are_named_under_any_schedule(build: Build, schedule: str) -> None:
    assert races(build, schedule, reduction(wait=False)) == [
        ["ADD", "r1 (view)", "VDEV1", "cpy", "tmp", "VDEV0", 16]
    ]
    assert races(build, schedule, reduction(wait=True)) == []
    assert races(build, f"{schedule}/copies=both", reduction(wait=False)) == []


def test_a_race_says_which_wait_is_missing(build: Build) -> None:
    code = "v.races_enable(1)\n" + reduction(wait=False) + "\nanswer(v.races_read(0).decode())"
    line = client(build, "at-once", code)
    assert (
        "cpy of 'b' to 'tmp' in the queue of VDEV0 (writes) is not ordered after ADD 'r1 (view)' in" in line
    )
    assert "16 bytes: the queue of VDEV0 does not wait for the queue of VDEV1" in line


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("pass", [["ADD", "a (view)", "VDEV0", "get", "a", "", 16]]),
        ("v.synchronize(streams[1])", [["ADD", "a (view)", "VDEV0", "get", "a", "", 16]]),
        ("v.synchronize(streams[0])", []),
        ("e = v.event_new(v.device(0)); v.event_record(e, streams[0]); v.event_synchronize(e)", []),
        (
            "e = v.event_new(v.device(0)); v.event_record(e, streams[0]); v.event_wait(streams[1], e); "
            "v.synchronize(streams[1])",
            [],
        ),
    ],
    ids=["nothing", "another queue", "queue", "event", "event and another queue"],
)
@SCHEDULES
def test_the_host_must_wait_before_it_reads(
    build: Build, schedule: str, between: str, expected: list[Any]
) -> None:
    code = f"""
a, b = at(0, "a", "b"); v.put(a, [1] * 4); v.put(b, [2] * 4)
v.graph_compute_async(streams[0], adding(0, a, b))
{between}
v.floats(a)
"""
    assert races(build, schedule, code) == expected


@pytest.mark.parametrize(
    ("schedule", "count"), [("at-once", 1), ("at-once/access=waits", 0), ("late/access=waits", 0)]
)
def test_access_that_waits_is_ordered(build: Build, schedule: str, count: int) -> None:
    code = """
a, b = at(0, "a", "b"); v.put(a, [1] * 4); v.put(b, [2] * 4)
v.graph_compute_async(streams[0], adding(0, a, b))
v.floats(a)
"""
    assert len(races(build, schedule, code)) == count


def test_two_reads_and_neighbours_are_no_race(build: Build) -> None:
    # Columns 0 and 1 of a matrix are set by two queues: their bytes alternate and do not overlap.
    code = """
m, = at(0, "m")
x = v.context(); m = v.tensor(x, "m", 4, 4); v.alloc_ctx_tensors(x, streams[0])
second = v.dev_init(v.device(0), None)
data = (c.c_float * 16)()
v.tensor_set_2d_async(streams[0], m, data, 0, 8, 4, 16, 16)
v.tensor_set_2d_async(second, m, c.byref(data, 8), 8, 8, 4, 16, 16)
if OVERLAP:
    v.tensor_get_async(streams[0], m, data, 0, 4)
"""
    assert races(build, "at-once", code.replace("OVERLAP", "False")) == []
    # The host's memory counts too: the get writes what the queue itself has read before, in order.
    assert races(build, "at-once", code.replace("OVERLAP", "True")) == []
    overlapping = code.replace("8, 8, 4, 16, 16", "4, 8, 4, 16, 16").replace("OVERLAP", "False")
    assert races(build, "at-once", overlapping) == [["set_2d", "m", "VDEV0", "set_2d", "m", "VDEV0", 4]]


def test_memory_of_the_host_that_is_still_read(build: Build) -> None:
    code = """
a, b = at(0, "a", "b"); v.put(b, [1] * 4)
data = (c.c_float * 4)()
v.tensor_set_async(streams[0], a, data, 0, 16)
v.tensor_get(b, data, 0, 16)
"""
    assert races(build, "at-once", code) == [["set", "a", "VDEV0", "get", "b", "", 16]]
    assert races(build, "late/host=pageable", code) == []


@SCHEDULES
def test_memory_that_the_cpu_backend_computes_in(build: Build, schedule: str) -> None:
    code = """
cpu = v.dev_init(v.dev_by_type(0), None)
x = v.context(); h, k = v.tensor(x, "h", 4), v.tensor(x, "k", 4); r = v.add_inplace(x, h, k)
v.alloc_ctx_tensors(x, cpu); v.put(h, [1] * 4); v.put(k, [1] * 4)
graph = v.new_graph(x); v.build_forward_expand(graph, r)
a, = at(0, "a")
v.tensor_copy_async(cpu, streams[0], h, a)
WAIT
v.graph_compute(cpu, graph)
"""
    queued = f"{schedule}/uploads=queued"
    expected = ["set", "a", "VDEV0", "ADD", "h (view)", "", 16]
    assert races(build, queued, code.replace("WAIT", "")) == [expected]
    assert races(build, queued, code.replace("WAIT", "v.synchronize(streams[0])")) == []
    # Then ggml waits for the destination and copies before it returns.
    assert races(build, schedule, code.replace("WAIT", "")) == []


def test_memory_that_is_freed_while_another_device_uses_it(build: Build) -> None:
    code = """
v.set_up(devices=2, strict=0, schedule=b"SCHEDULE")
streams[:] = [v.dev_init(v.device(i), None) for i in range(2)]
x = v.context(); far = v.tensor(x, "far", 4); buffer = v.alloc_ctx_tensors(x, streams[1]); v.put(far, [1] * 4)
a, = at(0, "a"); v.put(a, [1] * 4)
if COPY:
    v.tensor_copy_async(streams[0], streams[1], a, far)
else:
    v.graph_compute_async(streams[0], adding(0, a, far))
v.buffer_free(buffer)
"""
    for schedule in ("at-once", "late"):
        # Freeing waits for the queues of the memory's device. A copy into it is something that they wait for.
        this = code.replace("SCHEDULE", schedule)
        assert races(build, schedule, this.replace("COPY", "True")) == []
        assert races(build, schedule, this.replace("COPY", "False")) == [
            ["ADD", "a (view)", "VDEV0", "free", "", "", 16]
        ]


def test_nothing_is_looked_for_unless_asked(build: Build) -> None:
    assert client(build, "at-once", reduction(wait=False) + "answer(v.races())") == []
