"""Queues of the virtual devices: what runs when, under each schedule. Expected values are sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pyggml.builder.record import Build
from tests.native.vdev_client import run_client

pytestmark = pytest.mark.native

SETUP = """
v.set_up(devices={devices}, schedule=b"{schedule}")
streams = [v.dev_init(v.device(i), None) for i in range({devices})]
def at(i, *names):
    x = v.context()
    made = [v.tensor(x, name, 4) for name in names]
    v.alloc_ctx_tensors(x, streams[i])
    return made
def adding(i, a, b):
    "A graph that adds b to a, in the memory of a."
    x = v.context(); r = v.add_inplace(x, a, b); v.alloc_ctx_tensors(x, streams[i])
    g = v.new_graph(x); v.build_forward_expand(g, r)
    return g
"""

REDUCTION = """
a, b = at(0, "a", "b")
tmp, r1, r2 = at(1, "tmp", "r1", "r2")
for tensor, value in ((a, 1), (b, 2), (r1, 10), (r2, 20)):
    v.put(tensor, [value] * 4)
done = v.event_new(v.device(1))
v.tensor_copy_async(streams[0], streams[1], a, tmp)
v.graph_compute_async(streams[1], adding(1, r1, tmp))
if {wait}:
    v.event_record(done, streams[1]); v.event_wait(streams[0], done)
v.tensor_copy_async(streams[0], streams[1], b, tmp)
v.graph_compute_async(streams[1], adding(1, r2, tmp))
for stream in streams:
    v.synchronize(stream)
answer([v.floats(r1)[0], v.floats(r2)[0]])
"""


def client(build: Build, schedule: str, code: str, devices: int = 2, **values: Any) -> Any:
    program = SETUP.format(devices=devices, schedule=schedule) + (code.format(**values) if values else code)
    return run_client(build, program)[0]


@pytest.mark.parametrize(
    ("schedule", "wait", "expected"),
    [
        ("at-once", False, [11, 22]),
        ("late", False, [12, 22]),  # the second copy overwrites what the first addition has not read yet
        ("late", True, [11, 22]),
        ("late/copies=both", False, [11, 22]),
        ("late/copies=source", False, [12, 22]),
        ("threads", True, [11, 22]),
        ("threads/copies=both", False, [11, 22]),
    ],
)
def test_a_temporary_used_twice_needs_a_wait(
    build: Build, schedule: str, wait: bool, expected: list[int]
) -> None:
    assert client(build, schedule, REDUCTION, wait=wait) == expected


def test_a_random_schedule_is_the_same_every_time_and_finds_both_orders(build: Build) -> None:
    code = """
answers = []
for seed in [*range(20), *range(20)]:
    v.set_up(devices=2, schedule=f"random:{seed}".encode())
    streams[:] = [v.dev_init(v.device(i), None) for i in range(2)]
REDUCTION
answer(answers)
""".replace(
        "REDUCTION",
        REDUCTION.format(wait=False).replace("answer(", "answers.append(").replace("\n", "\n    "),
    )
    answers = client(build, "at-once", code)
    assert answers[:20] == answers[20:]
    assert {tuple(one) for one in answers} == {(11, 22), (12, 22)}


def test_a_wait_is_for_what_was_recorded_then(build: Build) -> None:
    # The event is recorded again before anything runs; the first wait must not become a wait for the second.
    code = """
a, one = at(0, "a", "one"); b, c = at(1, "b", "c")
for tensor, value in ((a, 0), (one, 1), (b, 5), (c, 5)):
    v.put(tensor, [value] * 4)
event = v.event_new(v.device(0))
v.event_wait(streams[1], event)                      # never recorded: nothing to wait for
v.graph_compute_async(streams[0], adding(0, a, one))
v.event_record(event, streams[0]); v.event_wait(streams[1], event)
v.graph_compute_async(streams[0], adding(0, a, one))
v.event_record(event, streams[0])
v.synchronize(streams[1])
first = v.floats(a)[0]
v.event_synchronize(event)
v.event_free(event)
answer([first, v.floats(a)[0]])
"""
    assert client(build, "late", code) == [1, 2]


@pytest.mark.parametrize("schedule", ["at-once", "late", "random:3", "late/copies=both", "threads"])
def test_queues_that_wait_for_each_other_hundreds_of_times_do_not_stop(build: Build, schedule: str) -> None:
    code = """
sums = [at(i, "sum")[0] for i in range(3)]; incoming = [at(i, "in")[0] for i in range(3)]
for i in range(3):
    v.put(sums[i], [i + 1] * 4)
events = [v.event_new(v.device(i)) for i in range(3)]
graphs = [adding(i, sums[i], incoming[i]) for i in range(3)]
for turn in range(300):
    i, j = turn % 3, (turn + 1) % 3
    v.event_wait(streams[i], events[j])              # until the last sum of j is done
    v.tensor_copy_async(streams[i], streams[j], sums[i], incoming[j])
    v.graph_compute_async(streams[j], graphs[j])
    v.event_record(events[j], streams[j])
    if turn % 9 == 8:                                # small again, still exact
        for k in range(3):
            v.synchronize(streams[k]); v.put(sums[k], [v.floats(sums[k])[0] % 17] * 4)
answer([v.floats(one)[0] for one in sums])
"""
    sums = [1, 2, 3]
    for turn in range(300):
        sums[(turn + 1) % 3] += sums[turn % 3]
        if turn % 9 == 8:
            sums = [one % 17 for one in sums]
    # The last turns after the last synchronisation are still queued when the values are read.
    got = client(
        build, schedule, code.replace("answer(", "[v.synchronize(s) for s in streams]\nanswer("), devices=3
    )
    assert got == sums


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("at-once", [3, 3, 3]),
        ("late", [1, 1, 3]),
        ("late/access=passes", [1, 1, 3]),
        ("late/access=waits", [3, 3, 3]),
        ("threads/access=waits", [3, 3, 3]),
    ],
)
def test_blocking_access_passes_the_queue(build: Build, schedule: str, expected: list[int]) -> None:
    code = """
a, b, other = at(0, "a", "b", "other")
v.put(a, [1] * 4); v.put(b, [2] * 4)
v.graph_compute_async(streams[0], adding(0, a, b))
first = v.floats(a)[0]
v.tensor_copy(a, other)
copied = v.floats(other)[0]
v.synchronize(streams[0])
answer([first, copied, v.floats(a)[0]])
"""
    assert client(build, schedule, code) == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("at-once", [1, 1, 1]),
        ("late", [9, 0, 9]),
        ("late/host=pinned", [9, 0, 9]),
        ("late/host=pageable", [1, 0, 1]),
    ],
)
def test_when_the_memory_of_the_host_is_read_and_written(
    build: Build, schedule: str, expected: list[int]
) -> None:
    code = """
a, = at(0, "a")
source, target = (c.c_float * 4)(1, 1, 1, 1), (c.c_float * 4)()
v.tensor_set_async(streams[0], a, source, 0, 16)
v.tensor_get_async(streams[0], a, target, 0, 16)
source[0] = 9
before = target[0]
v.synchronize(streams[0])
answer([v.floats(a)[0], before, target[0]])
"""
    assert client(build, schedule, code) == expected


def test_a_queued_graph_is_the_graph_of_the_call(build: Build) -> None:
    # A tensor begins with its type, then the buffer, ne, nb and the operation; all of it is overwritten.
    code = """
a, b = at(0, "a", "b")
v.put(a, [1] * 4); v.put(b, [2] * 4)
x = v.context(); r = v.add_inplace(x, a, b); v.alloc_ctx_tensors(x, streams[0])
g = v.new_graph(x); v.build_forward_expand(g, r)
before = [c.string_at(t, 300) for t in (a, r)]
v.graph_compute_async(streams[0], g)
for t in (a, r):
    c.memset(t, 0, 300)
v.synchronize(streams[0])
for t, bytes_ in zip((a, r), before):
    c.memmove(t, bytes_, 300)
answer(v.floats(a))
"""
    assert client(build, "late", code) == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("late", [5, 9]),
        ("late/uploads=refused", [5, 9]),  # ggml waits and copies at the call
        ("late/uploads=queued", [7, 9]),  # the host's memory is read when the work runs
        ("late/uploads=queued/host=pageable", [5, 9]),
    ],
)
def test_when_a_copy_from_the_cpu_backend_is_made(build: Build, schedule: str, expected: list[int]) -> None:
    code = """
cpu = v.dev_init(v.dev_by_type(0), None)
x = v.context(); there = v.tensor(x, "there", 4); v.alloc_ctx_tensors(x, cpu)
a, b = at(0, "a", "b")
v.put(there, [5] * 4)
v.tensor_copy_async(cpu, streams[0], there, a)
v.put(there, [7] * 4)
v.synchronize(streams[0])
first = v.floats(a)[0]
v.put(there, [9] * 4)
v.tensor_copy_async(cpu, streams[0], there, a)
v.synchronize(streams[0])
answer([first, v.floats(a)[0]])
"""
    assert client(build, schedule, code) == expected


@pytest.mark.parametrize(
    "schedule", ["late", "late/transfers=blocking", "threads", "threads/transfers=blocking"]
)
def test_transfers_come_after_what_was_queued(build: Build, schedule: str) -> None:
    # Without asynchronous transfers ggml waits for the queue, then uses the buffer's functions.
    code = """
a, b = at(0, "a", "b"); target = (c.c_float * 4)(); source = (c.c_float * 4)(8, 8, 8, 8)
v.put(a, [1] * 4); v.put(b, [2] * 4)
v.graph_compute_async(streams[0], adding(0, a, b))
v.tensor_get_async(streams[0], a, target, 0, 16)
v.tensor_set_async(streams[0], a, source, 0, 16)
at_the_call = target[0]
v.synchronize(streams[0])
answer([SEEN, target[0], v.floats(a)[0]])
"""
    if "blocking" in schedule:
        assert client(build, schedule, code.replace("SEEN", "at_the_call")) == [3, 3, 8]
    else:
        assert client(build, schedule, code.replace("SEEN", "0")) == [0, 3, 8]


def test_a_thread_gets_on_with_its_work_by_itself(build: Build) -> None:
    code = """
import time
a, = at(0, "a"); target = (c.c_float * 4)()
v.put(a, [4] * 4)
v.tensor_get_async(streams[0], a, target, 0, 16)
until = time.monotonic() + 30
while target[0] == 0 and time.monotonic() < until:
    time.sleep(0.001)
answer(target[0])
"""
    assert client(build, "threads", code) == 4


@pytest.mark.parametrize("which", ["own", "other"])
def test_memory_that_is_given_back_is_not_used_after_it(build: Build, which: str) -> None:
    code = """
a, = at(0, "a")
x = v.context(); far = v.tensor(x, "far", 4); buffer = v.alloc_ctx_tensors(x, streams[1])
target = (c.c_float * 4)()
v.put(a, [4] * 4); v.put(far, [7] * 4)
if "WHICH" == "own":
    v.tensor_get_async(streams[1], far, target, 0, 16)
else:
    v.tensor_copy_async(streams[0], streams[1], a, far)
    v.tensor_get_async(streams[0], a, target, 0, 16)
before = target[0]
v.buffer_free(buffer)
after = target[0]
v.synchronize(streams[0])
answer([before, after, target[0], v.memory_used(1)])
""".replace("WHICH", which)
    # Freeing waits for the device. Of another device's queue only what is in the memory is done: the copy, not the get.
    assert client(build, "late", code) == ([0, 7, 7, 0] if which == "own" else [0, 0, 4, 0])
    # A thread may have done more by itself, and no less.
    after, synchronized = client(build, "threads", code)[1:3]
    assert (after, synchronized) == (7, 7) if which == "own" else synchronized == 4


def test_the_last_work_is_done_when_a_stream_is_freed(build: Build) -> None:
    code = """
a, = at(0, "a"); target = (c.c_float * 4)()
v.put(a, [4] * 4)
v.tensor_get_async(streams[0], a, target, 0, 16)
before = target[0]
v.free(streams[0])
answer([before, target[0]])
"""
    assert client(build, "late", code) == [0, 4]
    assert client(build, "threads", code)[1] == 4


def test_faults_and_the_ledger_do_not_depend_on_the_schedule(build: Build) -> None:
    code = """
v.ledger_enable(1)
v.fault_parse(b"get:nth=1,byte=0,mask=1;copy:nth=1;compute:nth=2")
a, b = at(0, "a", "b"); far, = at(1, "far"); target = (c.c_float * 4)()
v.put(a, [1] * 4); v.put(b, [2] * 4)
g = adding(0, a, b)
status = [v.graph_compute_async(streams[0], g)]
v.tensor_get_async(streams[0], a, target, 0, 16)
v.tensor_copy_async(streams[0], streams[1], a, far)  # refused: the slow way, after synchronising both
status.append(v.graph_compute_async(streams[0], g))
records = [(r.kind, r.device, r.tensor, r.bytes, r.flipped, r.refused) for r in v.read_ledger().records()]
answer([records, status, bytes(target).hex(), v.floats(far), v.fault_hits(1)])
"""
    at_once, late = (client(build, schedule, code) for schedule in ("at-once", "late"))
    assert at_once == late
    assert client(build, "threads", code) == at_once
    assert at_once[1] == [0, -1]
    assert at_once[3] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("soon", 'the schedule "soon" is none of at-once, late, random:SEED'),
        ("random", "is none of"),
        ("random:x", "is none of"),
        ("late/copies=never", 'has the option "copies=never"; there are copies=source'),
    ],
)
def test_a_schedule_that_is_none_is_refused(build: Build, schedule: str, message: str) -> None:
    got, _ = run_client(build, f"answer(v.set_up(schedule={schedule.encode()!r}))")
    assert message in got
