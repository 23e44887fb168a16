"""What a program sees when a device fails on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Allocator, Context, Scheduler, Tensor, VirtualDevices, cpu

from .conftest import MakeDevices
from .test_reduction import Pair

pytestmark = pytest.mark.native


def two_steps(vdev: VirtualDevices) -> tuple[Scheduler, Any, Tensor, Tensor]:
    backends, context = [*(one.backend() for one in vdev), cpu().backend()], Context()
    scheduler, x = Scheduler(backends), context.tensor("f32", 8, "x").mark_input()
    first = context.ops.scale(x, 2.0)
    last = context.ops.scale(first, 3.0).mark_output()
    scheduler.assign(first, backends[0])
    scheduler.assign(last, backends[1])
    return scheduler, context.graph(last), x, last


def test_an_allocation_that_fails_is_an_exception_and_the_next_one_works(devices: MakeDevices) -> None:
    vdev = devices(1)
    fault = vdev.fault("alloc:nth=1")
    context = Context()
    tensor = context.tensor("f32", 8, "t")
    with pytest.raises(PyggmlError, match=r"no memory for the tensors of .* \(128 bytes\) in VDEV0.*'t'"):
        context.allocate(vdev[0])
    assert vdev.hits(fault) == 1
    context.allocate(vdev[0])
    tensor.set(np.zeros(8, np.float32))


@pytest.mark.parametrize("nth", [1, 2])
def test_a_scheduler_without_memory_is_an_exception(nth: int, devices: MakeDevices) -> None:
    vdev = devices(2)
    vdev.fault(f"alloc:nth={nth}")
    scheduler, graph, _, _ = two_steps(vdev)
    with pytest.raises(PyggmlError, match="memory for a graph of context"):
        scheduler.allocate(graph)
    context = Context()
    made = context.ops.scale(context.tensor("f32", 8).mark_input(), 1.0)
    scheduler.compute(context.graph(made))


def test_an_allocator_without_memory_is_an_exception(devices: MakeDevices) -> None:
    vdev = devices(1, faults=("alloc:nth=1",))
    context = Context()
    with pytest.raises(PyggmlError, match=r"no memory for a graph of .* in VDEV0"):
        Allocator(vdev[0]).allocate(context.graph(context.ops.scale(context.tensor("f32", 8), 1.0)))


def test_a_refused_copy_takes_the_way_over_the_host(devices: MakeDevices) -> None:
    vdev = devices(2)
    scheduler, graph, x, last = two_steps(vdev)
    scheduler.allocate(graph)
    x.set(np.arange(8, dtype=np.float32))
    fault = vdev.fault("copy:device=1")
    vdev.clear_ledger()
    scheduler.compute(graph)
    assert (last.numpy() == 6 * np.arange(8)).all() and vdev.hits(fault) >= 1
    assert vdev.ledger().filter(device=1).transfers().sums("kind", of="count") == {"set": 1, "get": 1}


def test_a_failed_computation_is_an_exception_and_can_be_repeated(devices: MakeDevices) -> None:
    vdev = devices(2)
    scheduler, graph, x, last = two_steps(vdev)
    scheduler.allocate(graph)
    x.set(np.ones(8, np.float32))
    vdev.fault("compute:device=1,nth=1")
    with pytest.raises(
        PyggmlError, match=r"scheduler of VDEV0, VDEV1, CPU computing a graph of context .* failed"
    ):
        scheduler.compute(graph)
    scheduler.compute(graph)
    assert (last.numpy() == 6).all()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_in_any_part_of_a_reduction_comes_out(
    count: int, nth: int, devices: MakeDevices, rng: Any
) -> None:
    vdev = devices(count)
    lengths = [8, 8] if count == 2 else [8, 4, 4]
    pair = Pair(vdev, lengths, rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    fault = vdev.fault(f"compute:device=0,nth={nth}")
    with pytest.raises(PyggmlError, match="failed"):
        pair.run(result)
    assert vdev.hits(fault) == 1


@pytest.mark.parametrize("direction", ["set", "get"])
def test_one_flipped_byte_changes_one_number(direction: str, devices: MakeDevices) -> None:
    vdev = devices(1)
    context = Context()
    tensor = context.tensor("i32", (3, 4), "t")
    context.allocate(vdev[0])
    vdev.fault(f"{direction}:tensor=t,byte=21,mask=128")
    tensor.set(np.zeros((3, 4), np.int32))
    expected = np.zeros((3, 4), np.int32)
    expected[1, 1] = 128 << 8
    assert (tensor.numpy() == expected).all()
    assert len(vdev.ledger().filter(kind=direction)) == 1


@pytest.mark.isolated
def test_no_memory_for_the_summands_is_an_exception(devices: MakeDevices, rng: Any) -> None:
    vdev = devices(2)
    pair = Pair(vdev, [8, 8], rng)
    result = pair.context.ops.scale(pair.product, 1.0).mark_output()
    graph = pair.context.graph(result)
    pair.scheduler.allocate(graph)
    pair.t_x.set(pair.x)
    vdev.fault("alloc:device=1")
    with pytest.raises(PyggmlError, match="could not get memory"):
        pair.scheduler.compute(graph)
    vdev.clear_faults()
    pair.scheduler.compute(graph)
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()
