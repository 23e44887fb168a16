"""Handles: closed once, refused afterwards, freed when nothing uses the memory any more."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import ClosedError, Context, Handle, InUseError, Scheduler, ThreadError, cpu


class Probe(Handle):
    """Notes when its C object would be freed."""

    def __init__(self, log: list[str], name: str, *parents: Handle) -> None:
        self._log, self._name = log, name
        super().__init__(f"probe {name}", *parents)

    def _release(self) -> None:
        self._log.append(self._name)


def test_a_second_close_is_harmless_and_use_after_it_names_the_handle() -> None:
    log: list[str] = []
    probe = Probe(log, "a")
    probe.close()
    probe.close()
    assert log == ["a"]
    with pytest.raises(ClosedError, match="probe a is closed"):
        probe.check()
    with pytest.raises(ClosedError, match="probe a is closed"), probe.using():
        pass
    with pytest.raises(ClosedError, match="probe a"):
        probe.lease()
    with pytest.raises(ClosedError, match="probe a"):
        Probe(log, "late", probe)


def test_closing_a_parent_closes_its_children_youngest_first() -> None:
    log: list[str] = []
    parent = Probe(log, "parent")
    first, second = Probe(log, "first", parent), Probe(log, "second", parent)
    grandchild = Probe(log, "grandchild", first)
    parent.close()
    assert log == ["second", "grandchild", "first", "parent"]
    assert first.closed and second.closed and grandchild.closed


def test_a_lease_postpones_the_freeing_but_not_the_closing_of_the_whole_family() -> None:
    log: list[str] = []
    parent = Probe(log, "parent")
    child = Probe(log, "child", parent)
    lease = child.lease()
    parent.close()
    assert parent.closed and child.closed and log == []
    lease.give_back()
    lease.give_back()
    assert log == ["child", "parent"]


@pytest.mark.parametrize("how", ["using", "lease"])
def test_what_a_call_uses_cannot_be_closed_and_neither_can_its_parents(how: str) -> None:
    log: list[str] = []
    parent = Probe(log, "parent")
    used, other = Probe(log, "used", parent), Probe(log, "other", parent)
    with used.using() if how == "using" else used.lease(in_call=True):
        with pytest.raises(InUseError, match=r"probe used cannot be closed now: .* uses it\nClose it after"):
            used.close()
        with pytest.raises(InUseError, match=r"probe parent cannot be closed now: .* uses probe used, which"):
            parent.close()
        assert log == [] and not other.closed
        other.close()
    parent.close()
    assert log == ["other", "used", "parent"]


def test_a_child_keeps_its_parent_until_it_is_collected() -> None:
    log: list[str] = []
    child = Probe(log, "child", Probe(log, "parent"))
    gc.collect()
    assert log == []
    del child
    assert log == ["child", "parent"]


def test_a_collected_cycle_frees_the_child_first() -> None:
    log: list[str] = []
    parent: Any = Probe(log, "parent")
    parent.child = Probe(log, "child", parent)
    del parent
    gc.collect()
    assert log == ["child", "parent"]


def test_another_thread_is_refused_and_the_same_may_nest() -> None:
    probe, told = Probe([], "a"), []

    def other() -> None:
        for attempt in (probe.close, probe.using().__enter__):
            try:
                attempt()
            except ThreadError as error:
                told.append(str(error))

    with probe.using(), probe.using():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(told) == 2 and all("probe a is in use by another thread" in text for text in told)
    assert not probe.closed


@pytest.mark.native
def test_a_numpy_view_outlives_its_closed_buffer() -> None:
    context = Context("numbers")
    tensor = context.tensor("f32", (1000, 100), "numbers")
    buffer = context.allocate(cpu())
    view = tensor.view()
    view[...] = 3
    part = view[10:20, 5]
    buffer.close()
    del view
    assert (part == 3).all()
    part[...] = 4
    with pytest.raises(
        ClosedError, match=r"'numbers' .*has lost its memory: buffer CPU of 400\d+ bytes is closed"
    ):
        tensor.numpy()


@pytest.mark.native
def test_tensors_graphs_and_users_of_a_closed_context_are_closed() -> None:
    weights, context = Context("weights"), Context("graph")
    weight = weights.tensor("f32", (2, 3))
    made = context.ops.scale(weight, 2.0)
    graph = context.graph(made)
    weights.close()
    assert context.closed and graph.closed
    for use in (
        lambda: weight.name,
        lambda: made.shape,
        lambda: graph.nodes,
        lambda: context.tensor("f32", 3),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert repr(made) == "<Tensor of a closed context>"


@pytest.mark.native
def test_closing_a_backend_closes_its_scheduler_and_stales_its_results() -> None:
    backend, context = cpu().backend(), Context()
    scheduler, made = Scheduler([backend]), context.ops.scale(context.tensor("f32", 8).mark_input(), 2.0)
    scheduler.allocate(context.graph(made))
    made.numpy()
    backend.close()
    assert scheduler.closed
    with pytest.raises(ClosedError, match="scheduler of CPU is closed"):
        made.numpy()


@pytest.mark.native
def test_two_threads_in_one_context_raise_instead_of_racing() -> None:
    context, errors, made = Context(capacity=100_000), [], []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(3000):
            try:
                context.tensor("f32", 4)
                made.append(1)
            except ThreadError:
                errors.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) + len(errors) == 12_000
    assert len(context.tensors()) == len(made)


@pytest.mark.native
def test_everything_may_be_left_open_at_exit() -> None:
    code = """
import pyggml.ggml as g
devices = g.VirtualDevices(2).open()
meta = g.MetaDevice(list(devices), lambda tensor: g.SplitState.mirrored())
context = g.Context(); tensor = context.tensor("f32", 8); context.allocate(meta)
scheduler = g.Scheduler([meta.backend(), g.cpu().backend()])
graph = context.graph(context.ops.scale(tensor, 2.0)); scheduler.allocate(graph)
host = g.Context(); t = host.tensor("f32", 8); host.allocate(g.cpu()); view = t.view()
scheduler.on_eval(lambda tensor, ask: True)
cycle = [scheduler, view]; cycle.append(cycle)
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.native
def test_a_view_collected_in_another_thread_frees_the_buffer(devices: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", 1000)
    context.allocate(cpu()).close()
    kept = [np.zeros(1)]
    context = Context()
    tensor = context.tensor("f32", 1000)
    buffer = context.allocate(cpu())
    kept[0] = tensor.view()
    buffer.close()
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert buffer._released
