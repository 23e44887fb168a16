"""Schedulers: where a graph is cut, what is copied, and what becomes of the graph afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import (
    Allocator,
    Backend,
    ClosedError,
    Context,
    Graph,
    InUseError,
    Scheduler,
    StaleError,
    Tensor,
    VirtualDevices,
    cpu,
)
from pyggml.ggml.library import load

from .conftest import MakeDevices

pytestmark = pytest.mark.native


class Chain:
    """w2 @ (w1 @ x) + x with w1 on one device and w2 on another, x on the host."""

    def __init__(self, vdev: VirtualDevices, rng: Any, **options: Any) -> None:
        self.backends: list[Backend] = [*(one.backend() for one in vdev), cpu().backend()]
        self.values = [rng.random((6, 6), np.float32) for _ in range(2)]
        self.weights = []
        self.kept = []
        for number, value in enumerate(self.values):
            context = Context(f"weights {number}")
            tensor = context.tensor("f32", value.shape, f"w{number}")
            context.allocate(vdev[number]).usage = "weights"
            tensor.set(value)
            self.weights.append(tensor)
            self.kept.append(context)
        self.scheduler = Scheduler(self.backends, **options)
        self.x = rng.random((5, 6), np.float32)
        self.expected = self.x @ self.values[0].T @ self.values[1].T + self.x

    def build(self) -> tuple[Graph, Tensor, list[Tensor]]:
        """graph, its input, and its nodes"""
        context = Context("graph")
        x = context.tensor("f32", self.x.shape, "x").mark_input()
        first = context.ops.mul_mat(self.weights[0], x)
        second = context.ops.mul_mat(self.weights[1], first)
        last = context.ops.add(second, x)
        for name, tensor in zip(("first", "second", "last"), (first, second, last), strict=True):
            tensor.name = name
        return context.graph(last.mark_output()), x, [first, second, last]


def shown(scheduler: Scheduler) -> list[tuple[str, int, int, list[tuple[str, int]]]]:
    return [
        (one.backend.name, one.start, one.end, [(copy.name, copy.bytes) for copy in one.inputs])
        for one in scheduler.splits
    ]


def test_a_graph_is_cut_where_weights_are_elsewhere(devices: MakeDevices, rng: Any) -> None:
    vdev = devices(2)
    chain = Chain(vdev, rng)
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    assert shown(chain.scheduler) == [
        ("VDEV0", 0, 1, [("VDEV0#x#0", 120)]),
        ("VDEV1", 1, 3, [("VDEV1#first#0", 120), ("VDEV1#x#0", 120)]),
    ]
    assert [chain.scheduler.assignment(one) for one in nodes] == [chain.backends[i] for i in (0, 1, 1)]
    x.set(chain.x)
    vdev.clear_ledger()
    chain.scheduler.compute(graph)
    moved = vdev.ledger().transfers().sums("kind", "device", "tensor")
    assert moved == {
        ("set", "VDEV0", "VDEV0#x#0"): 120,
        ("cpy", "VDEV1", "VDEV1#first#0"): 120,
        ("set", "VDEV1", "VDEV1#x#0"): 120,
    }
    np.testing.assert_allclose(nodes[2].numpy(), chain.expected, rtol=1e-5)


def test_a_node_goes_where_it_is_assigned(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, x, nodes = chain.build()
    chain.scheduler.assign(nodes[2], chain.backends[2])
    chain.scheduler.assign(nodes[0], chain.backends[1])
    chain.scheduler.allocate(graph)
    assert shown(chain.scheduler) == [
        ("VDEV1", 0, 2, [("VDEV1#w0#0", 144), ("VDEV1#x#0", 120)]),
        ("CPU", 2, 3, [("CPU#second#0", 120)]),
    ]
    x.set(chain.x)
    chain.scheduler.compute(graph)
    np.testing.assert_allclose(nodes[2].numpy(), chain.expected, rtol=1e-5)
    chain.scheduler.reset()
    graph, _, nodes = chain.build()
    chain.scheduler.allocate(graph)
    assert [one.backend.name for one in chain.scheduler.splits] == ["VDEV0", "VDEV1"]


def test_weights_from_elsewhere_begin_a_split_of_their_own(devices: MakeDevices, rng: Any) -> None:
    """So that the memory of the copy before can be used again."""
    vdev = devices(1)
    backends = [vdev[0].backend(), cpu().backend()]
    weights, context = Context(), Context()
    tensors = [weights.tensor("f32", (6, 6), f"w{number}") for number in range(3)]
    weights.allocate(cpu()).usage = "weights"
    scheduler, made = Scheduler(backends), context.tensor("f32", (5, 6), "x").mark_input()
    for tensor in tensors:
        made = context.ops.mul_mat(tensor, made)
        scheduler.assign(made, backends[0])
    scheduler.allocate(context.graph(made))
    assert shown(scheduler) == [
        ("VDEV0", 0, 1, [("VDEV0#w0#0", 144), ("VDEV0#x#0", 120)]),
        ("VDEV0", 1, 2, [("VDEV0#w1#0", 144)]),
        ("VDEV0", 2, 3, [("VDEV0#w2#0", 144)]),
    ]


def test_forty_inputs_are_one_split_or_two(devices: MakeDevices) -> None:
    """Older trees begin a new split after 30."""
    backends, context = [devices(1)[0].backend(), cpu().backend()], Context()
    inputs = [context.tensor("f32", 4, f"in{number}").mark_input() for number in range(40)]
    scheduler, total = Scheduler(backends), inputs[0]
    for one in inputs[1:]:
        total = context.ops.add(total, one)
        scheduler.assign(total, backends[0])
    graph = context.graph(total.mark_output())
    scheduler.allocate(graph)
    found = [(one.start, one.end, len(one.inputs)) for one in scheduler.splits]
    assert found in ([(0, 29, 30), (29, 39, 10)], [(0, 39, 40)])
    for number, one in enumerate(inputs):
        one.set(np.full(4, number, np.float32))
    scheduler.compute(graph)
    assert total.numpy().tolist() == [780.0] * 4


def test_several_copies_are_in_flight_in_turn(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng, parallel=True)
    assert chain.scheduler.copies == 4
    seen = []
    for round_number in range(6):
        graph, x, nodes = chain.build()
        chain.scheduler.reset()
        chain.scheduler.allocate(graph)
        seen.append(shown(chain.scheduler)[0][3][0][0])
        x.set(chain.x + round_number)
        chain.scheduler.compute(graph)
        chain.x, kept = chain.x + round_number, chain.x
        expected = chain.x @ chain.values[0].T @ chain.values[1].T + chain.x
        chain.x = kept
        np.testing.assert_allclose(nodes[2].numpy(), expected, rtol=1e-5)
    # Growing the memory for the first graph begins the count, as the scheduler's reserve does.
    assert [name.rpartition("#")[2] for name in seen] == ["0", "1", "2", "3", "0", "1"]
    chain.scheduler.reset()
    chain.scheduler.synchronize()
    graph, _, _ = chain.build()
    chain.scheduler.allocate(graph)
    assert shown(chain.scheduler)[0][3][0][0] == "VDEV0#x#0"


@pytest.mark.parametrize("whole", [True, False], ids=["an input", "a view of one"])
def test_inputs_are_copied_before_the_call_returns(devices: MakeDevices, rng: Any, whole: bool) -> None:
    """The program may overwrite an input then: a backend is not asked to copy it when it has time."""
    vdev = devices(1)
    bindings = load()
    backend, asked = vdev[0].backend(), []

    def copy_async(source: Any, target: Any, tensor: Any, copy: Any) -> bool:
        asked.append(bindings.ffi.string(tensor.name).decode())
        return False

    kept = bindings.ffi.callback(bindings.ffi.typeof(backend.raw.iface.cpy_tensor_async), copy_async)
    backend.raw.iface.cpy_tensor_async = kept
    weights, context = Context("weights"), Context("graph")
    w, value, data = (
        weights.tensor("f32", (6, 6), "w"),
        rng.random((6, 6), np.float32),
        rng.random((8, 6), np.float32),
    )
    weights.allocate(vdev[0]).usage = "weights"
    w.set(value)
    x = context.tensor("f32", data.shape, "x").mark_input()
    read = x if whole else context.ops.view_2d(x, 6, 4, x.nb[1], 2 * x.nb[1])
    result = context.ops.mul_mat(w, read).mark_output()
    scheduler = Scheduler([backend, cpu().backend()])
    graph = context.graph(result)
    scheduler.allocate(graph)
    x.set(data)
    scheduler.compute(graph)
    assert scheduler.splits[-1].inputs and asked == []
    assert np.allclose(result.numpy(), (data if whole else data[2:6]) @ value.T)


def test_without_parallel_there_is_one_copy(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    assert chain.scheduler.copies == 1
    for _ in range(2):
        graph, _, _ = chain.build()
        chain.scheduler.allocate(graph)
        assert shown(chain.scheduler)[0][3] == [("VDEV0#x#0", 120)]


def test_what_is_reserved_is_enough_for_the_graph(devices: MakeDevices, rng: Any) -> None:
    vdev = devices(2)
    chain = Chain(vdev, rng)
    measured, _, _ = chain.build()
    chain.scheduler.reserve(measured)
    sizes = [chain.scheduler.buffer_size(one) for one in chain.backends]
    assert all(sizes) and chain.scheduler.splits == []
    vdev.clear_ledger()
    graph, x, _ = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    chain.scheduler.compute(graph)
    assert [chain.scheduler.buffer_size(one) for one in chain.backends] == sizes
    assert len(vdev.ledger().filter(kind=("alloc", "free"))) == 0
    with pytest.raises(StaleError, match="a graph of context graph"):
        chain.scheduler.compute(measured)


def test_a_reserved_graph_is_used_up(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, _, _ = chain.build()
    chain.scheduler.reserve(graph)
    with pytest.raises(StaleError):
        chain.scheduler.allocate(graph)
    with pytest.raises(PyggmlError, match="taken already"):
        chain.scheduler.reserve(graph)


def test_a_graph_and_its_tensors_are_stale_after_a_reset(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    chain.scheduler.compute(graph)
    chain.scheduler.compute(graph)
    chain.scheduler.reset()
    for use in (
        lambda: chain.scheduler.compute(graph),
        lambda: chain.scheduler.allocate(graph),
        lambda: nodes[2].numpy(),
        lambda: x.set(chain.x),
        lambda: nodes[1].sources,
        lambda: x.context.ops.scale(nodes[2], 1.0),
        lambda: x.context.graph(nodes[2]),
    ):
        with pytest.raises(
            StaleError, match="scheduler of VDEV0, VDEV1, CPU was reset, or got another graph"
        ):
            use()
    assert (chain.weights[0].numpy() == chain.values[0]).all()
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    chain.scheduler.compute(graph)
    np.testing.assert_allclose(nodes[2].numpy(), chain.expected, rtol=1e-5)


def test_the_next_graph_makes_the_one_before_stale(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    first, x, _ = chain.build()
    second, _, _ = chain.build()
    chain.scheduler.allocate(first)
    chain.scheduler.allocate(second)
    with pytest.raises(StaleError):
        chain.scheduler.compute(first)
    with pytest.raises(StaleError):
        x.numpy()


def test_operations_on_what_became_stale_cannot_reach_a_graph(devices: MakeDevices, rng: Any) -> None:
    """`later` was built while its source was good, and has freed memory behind it now."""
    chain = Chain(devices(2), rng)
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    later = x.context.ops.scale(nodes[2], 2.0)
    chain.scheduler.reset()
    with pytest.raises(StaleError, match="'last'"):
        x.context.graph(later)


def test_a_graph_belongs_to_one_scheduler(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, _, _ = chain.build()
    chain.scheduler.allocate(graph)
    other = Scheduler(chain.backends)
    with pytest.raises(StaleError, match="has its memory from scheduler"):
        other.allocate(graph)
    with pytest.raises(PyggmlError, match="nothing can be added"):
        graph.add(graph.nodes[0])


def test_the_callback_sees_every_node_that_it_asks_for(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, x, _ = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    asked, told = [], {}

    def look(tensor: Tensor, ask: bool) -> bool:
        if ask:
            asked.append(tensor.name)
            return tensor.name != "second"
        told[tensor.name] = tensor.numpy()
        return True

    chain.scheduler.on_eval(look)
    chain.scheduler.compute(graph)
    assert asked == ["first", "second", "last"] and list(told) == ["first", "last"]
    np.testing.assert_allclose(told["first"], chain.x @ chain.values[0].T, rtol=1e-5)
    np.testing.assert_allclose(told["last"], chain.expected, rtol=1e-5)
    chain.scheduler.on_eval(None)
    chain.scheduler.compute(graph)
    assert len(asked) == 3


def test_false_stops_the_split_and_upstream_goes_on_with_the_next(devices: MakeDevices) -> None:
    """ggml-backend.h says "the scheduler will cancel the graph compute"; the code leaves one split."""
    vdev = devices(2)
    backends, context = [vdev[0].backend(), vdev[1].backend(), cpu().backend()], Context()
    x = context.tensor("f32", 4, "x").mark_input()
    scheduler, nodes, made = Scheduler(backends), [], x
    for number in range(4):
        made = context.ops.scale(made, 2.0).mark_output()
        made.name = f"n{number}"
        nodes.append(made)
        scheduler.assign(made, backends[number // 2])
    graph, seen = context.graph(made), []
    scheduler.allocate(graph)
    x.set(np.ones(4, np.float32))

    def cancel(tensor: Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(tensor.name)
        return ask or tensor.name != "n0"

    scheduler.on_eval(cancel)
    vdev.clear_ledger()
    scheduler.compute(graph)
    assert seen == ["n0", "n2", "n3"]
    assert vdev.ledger().filter(kind="compute").sums("device", of="rows") == {"VDEV0": 1, "VDEV1": 2}
    assert (nodes[0].numpy() == 2).all() and np.isnan(nodes[1].numpy()).all()


def test_an_exception_in_the_callback_comes_out_and_the_scheduler_goes_on(
    devices: MakeDevices, rng: Any
) -> None:
    chain = Chain(devices(2), rng)
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)

    def fail(tensor: Tensor, ask: bool) -> bool:
        raise LookupError(f"at {tensor.name}, {ask}")

    chain.scheduler.on_eval(fail)
    with pytest.raises(LookupError, match="at first, True"):
        chain.scheduler.compute(graph)
    chain.scheduler.on_eval(lambda tensor, ask: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="None"):
        chain.scheduler.compute(graph)
    chain.scheduler.on_eval(None)
    chain.scheduler.compute(graph)
    np.testing.assert_allclose(nodes[2].numpy(), chain.expected, rtol=1e-5)


def test_the_callback_may_not_change_its_scheduler(devices: MakeDevices, rng: Any) -> None:
    chain = Chain(devices(2), rng)
    graph, x, _ = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    for change in (
        chain.scheduler.reset,
        lambda: chain.scheduler.compute(graph),
        lambda: chain.scheduler.allocate(chain.build()[0]),
        lambda: chain.scheduler.on_eval(None),
    ):

        def call(tensor: Tensor, ask: bool, change: Any = change) -> bool:
            change()
            return True

        chain.scheduler.on_eval(call)
        with pytest.raises(PyggmlError, match="is computing"):
            chain.scheduler.compute(graph)
    chain.scheduler.on_eval(None)
    chain.scheduler.compute(graph)


@pytest.mark.parametrize("what", ["scheduler", "graph", "context", "backend", "weights", "buffer", "devices"])
def test_nothing_that_a_computation_uses_can_be_closed_in_its_callback(
    what: str, devices: MakeDevices, rng: Any
) -> None:
    vdev = devices(2)
    chain = Chain(vdev, rng)
    graph, x, nodes = chain.build()
    chain.scheduler.allocate(graph)
    x.set(chain.x)
    closes = {
        "scheduler": chain.scheduler.close,
        "graph": graph.close,
        "context": x.context.close,
        "backend": chain.backends[0].close,
        "weights": chain.kept[0].close,
        "buffer": chain.weights[0].stamp().owner.close,
        "devices": vdev.close,
    }

    def call(tensor: Tensor, ask: bool) -> bool:
        closes[what]()
        return True

    chain.scheduler.on_eval(call)
    with pytest.raises(InUseError, match="cannot be closed now: a call that has not returned") as raised:
        chain.scheduler.compute(graph)
    assert raised.value.hint is not None and "not in a callback" in raised.value.hint
    # Nothing was closed: the same graph computes.
    chain.scheduler.on_eval(None)
    chain.scheduler.compute(graph)
    np.testing.assert_allclose(nodes[2].numpy(), chain.expected, rtol=1e-5)


def test_impossible_schedulers_are_refused(devices: MakeDevices) -> None:
    vdev = devices(1)
    device, host = vdev[0].backend(), cpu().backend()
    for backends, words in (
        ([], "1 to 16 backends, not 0"),
        ([device], "last backend must be the CPU's"),
        ([host, device], "last backend must be the CPU's"),
        ([host, host], "is given twice"),
        ([vdev[0], host], "not a Device"),
        ([*(cpu().backend() for _ in range(17))], "not 17"),
    ):
        with pytest.raises(PyggmlError, match=words):
            Scheduler(backends)  # type: ignore[arg-type]
    with pytest.raises(PyggmlError, match="1 buffer types are given for 2"):
        Scheduler([device, host], [vdev[0].buffer_type])
    with pytest.raises(PyggmlError, match="backend CPU cannot compute in <BufferType VDEV0>"):
        Scheduler([device, host], [vdev[0].buffer_type, vdev[0].buffer_type])
    with pytest.raises(PyggmlError, match="graph size of 0"):
        Scheduler([host], graph_size=0)
    host.close()
    with pytest.raises(ClosedError):
        Scheduler([device, host])


def test_graphs_that_a_scheduler_cannot_take_are_refused(devices: MakeDevices, rng: Any) -> None:
    first, second = devices(1), None
    foreign = Context("foreign")
    tensor = foreign.tensor("f32", 4, "far")
    foreign.allocate(first[0])
    second = devices(1)
    scheduler, context = Scheduler([second[0].backend(), cpu().backend()], graph_size=8), Context()
    with pytest.raises(PyggmlError, match=r"'far' .*is in VDEV0, which no backend of scheduler"):
        scheduler.allocate(context.graph(context.ops.scale(tensor, 1.0)))
    with pytest.raises(PyggmlError, match="is empty"):
        scheduler.allocate(context.graph())
    made = context.tensor("f32", 4)
    for _ in range(8):
        made = context.ops.scale(made, 1.0)
    with pytest.raises(PyggmlError, match=r"8 nodes and 1 leaves, and .* takes 8 in all"):
        scheduler.allocate(context.graph(made))
    view = context.ops.view_1d(made, 2, 0)
    with pytest.raises(PyggmlError, match="is a view"):
        scheduler.assign(view, scheduler.backends[0])
    with pytest.raises(PyggmlError, match="is not a backend of"):
        scheduler.assign(made, cpu().backend())


def test_results_larger_than_a_devices_memory_are_an_exception(devices: MakeDevices) -> None:
    vdev = devices(1, memory=1 << 16)
    scheduler, context = Scheduler([vdev[0].backend(), cpu().backend()]), Context("big")
    made = context.ops.scale(context.tensor("f32", 100_000, "in").mark_input(), 1.0)
    made.name = "large"
    scheduler.assign(made, scheduler.backends[0])
    with pytest.raises(PyggmlError, match=r"65536 of 65536 bytes free.*'large'.*400000 bytes"):
        scheduler.allocate(context.graph(made))
    small = Context()
    made = small.ops.scale(small.tensor("f32", 10).mark_input(), 1.0)
    scheduler.assign(made, scheduler.backends[0])
    graph = small.graph(made)
    scheduler.compute(graph)
    assert scheduler.splits[0].backend is scheduler.backends[0]


def test_an_allocator_gives_a_graph_memory_once(devices: MakeDevices) -> None:
    vdev = devices(1)
    context, allocator, backend = Context(), Allocator(vdev[0]), vdev[0].backend()
    x = context.tensor("f32", 4, "x").mark_input()
    made = context.ops.scale(x, 3.0).mark_output()
    graph = context.graph(made)
    with pytest.raises(PyggmlError, match=r"tensor .* has no memory yet"):
        backend.compute(graph)
    allocator.allocate(graph)
    x.set(np.ones(4, np.float32))
    backend.compute(graph)
    assert made.numpy().tolist() == [3.0] * 4
    with pytest.raises(PyggmlError, match="VDEV0, which backend CPU cannot use"):
        cpu().backend().compute(graph)
    other = Context()
    allocator.allocate(other.graph(other.ops.scale(other.tensor("f32", 4), 1.0)))
    with pytest.raises(StaleError):
        backend.compute(graph)
    allocator.close()
    with pytest.raises(ClosedError):
        made.numpy()


def test_an_allocator_without_memory_says_so_twice_and_recovers(devices: MakeDevices) -> None:
    vdev = devices(1, memory=1 << 16)
    allocator, context = Allocator(vdev[0]), Context()
    graph = context.graph(context.ops.scale(context.tensor("f32", 100_000, "in"), 1.0))
    for _ in range(2):
        with pytest.raises(PyggmlError, match=r"no memory for a graph of .* in VDEV0"):
            allocator.allocate(graph)
    small = Context()
    allocator.allocate(small.graph(small.ops.scale(small.tensor("f32", 10), 1.0)))
    assert allocator.size > 0


@pytest.mark.parametrize("schedule", ["at-once", "late", "threads"])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_copy_of_an_input_is_not_overwritten_while_it_is_read(
    parallel: bool, schedule: str, devices: MakeDevices
) -> None:
    """pipelined-copies: the second device has no input of the user's, for which the host would wait.

    A copy between devices runs in the source's queue, so it is not enough that the destination's waits.
    """
    vdev = devices(2, schedule=schedule, races=True)
    backends = [*(one.backend() for one in vdev), cpu().backend()]
    weights = [Context(f"weights {number}") for number in range(2)]
    added = [one.tensor("f32", 64, "added") for one in weights]
    for number, one in enumerate(weights):
        one.allocate(vdev[number]).usage = "weights"
        added[number].set(np.full(64, 10.0 ** (number + 1), np.float32))
    context = Context("graph")
    x = context.tensor("f32", 64, "x").mark_input()
    last = context.ops.add(context.ops.add(x, added[0]), added[1])
    graph, scheduler = context.graph(last.mark_output()), Scheduler(backends, parallel=parallel)
    scheduler.allocate(graph)
    bindings, seen = load(), np.zeros((3, 64), np.float32)
    for turn in range(3):
        x.set(np.full(64, turn, np.float32))
        assert bindings.lib.ggml_backend_sched_graph_compute_async(scheduler.raw, graph.raw) == 0
        target = bindings.ffi.from_buffer(seen[turn])
        bindings.lib.ggml_backend_tensor_get_async(backends[1].raw, last.raw, target, 0, 256)
    scheduler.synchronize()
    assert (seen == 110 + np.arange(3)[:, None]).all(), "a copy was overwritten"
    assert not vdev.races(), vdev.races()[0].text
