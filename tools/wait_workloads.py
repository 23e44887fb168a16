"""Work for virtual devices that depends on every wait of ggml's scheduler and meta backend; for missing_waits.py.

    python tools/wait_workloads.py

Each workload is small and returns numbers. Printed is a JSON document: for each workload a hash of its numbers, and its
races in words. Work runs as late as it may (docs/schedules.md), so without a wait that a workload needs its numbers
differ, or operations race.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.ggml import Backend, Context, MetaDevice, Scheduler, SplitState, Tensor, VirtualDevices, cpu
from pyggml.ggml.library import load
from pyggml.llama import LlamaContext, Model
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.native.load import active_build
from pyggml.native.load import load as load_build
from pyggml.native.races import read_races

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 64
Arrays = list[np.ndarray[Any, Any]]


class Rig:
    """Two devices and the CPU, each with a tensor of its own, and raw calls: nothing of pyggml's waits in between."""

    def __init__(self, devices: VirtualDevices) -> None:
        bindings = load()
        self.lib, self.ffi = bindings.lib, bindings.ffi
        self.host = cpu().backend(1)
        self.backends: list[Backend] = [*(one.backend() for one in devices), self.host]
        self.resident: list[Tensor] = []
        self.contexts = [Context(f"resident {number}") for number in range(len(self.backends))]
        for number, backend in enumerate(self.backends):
            tensor = self.contexts[number].tensor("f32", WIDTH, f"resident{number}")
            self.contexts[number].allocate(backend).usage = "weights"
            tensor.set(self.row(10 * (number + 1)))
            self.resident.append(tensor)

    @staticmethod
    def row(first: float) -> np.ndarray[Any, Any]:
        return np.arange(first, first + WIDTH, dtype=np.float32)

    def put(self, tensor: Tensor, values: np.ndarray[Any, Any]) -> None:
        self.lib.ggml_backend_tensor_set(tensor.raw, self.ffi.from_buffer(values), 0, values.nbytes)

    def get(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        values = np.empty(WIDTH, np.float32)
        self.lib.ggml_backend_tensor_get(tensor.raw, self.ffi.from_buffer(values), 0, values.nbytes)
        return values

    def scheduler(self, *, copies: bool) -> Scheduler:
        made = Scheduler(self.backends, parallel=copies)
        assert made.copies == (4 if copies else 1)
        return made

    def place(self, scheduler: Scheduler, *placed: tuple[Tensor, int]) -> None:
        for tensor, number in placed:
            scheduler.assign(tensor, self.backends[number])

    def start(self, scheduler: Scheduler, graph: Any) -> None:
        assert self.lib.ggml_backend_sched_graph_compute_async(scheduler.raw, graph.raw) == 0

    def started_twice(
        self, scheduler: Scheduler, graph: Any, x: Tensor, result: Tensor, number: int
    ) -> np.ndarray[Any, Any]:
        """The results of two runs with another x, each read behind its run in the queue of the device."""
        read = np.zeros((2, WIDTH), np.float32)
        for turn in range(2):
            self.put(x, self.row(1000 * turn))
            self.start(scheduler, graph)
            target = self.ffi.from_buffer(read[turn])
            self.lib.ggml_backend_tensor_get_async(
                self.backends[number].raw, result.raw, target, 0, WIDTH * 4
            )
        self.lib.ggml_backend_sched_synchronize(scheduler.raw)
        return read

    def on_device(self, number: int, *tensors: str) -> tuple[Context, list[Tensor]]:
        """Tensors in a device's memory, in a context of their own: 100, 101, …; 200, 201, …"""
        context = Context("own")
        made = [context.tensor("f32", WIDTH, name) for name in tensors]
        context.allocate(self.backends[number])
        for position, tensor in enumerate(made):
            self.put(tensor, self.row(100 * (position + 1)))
        return context, made

    def adding(self, number: int, context: Context, to: Tensor, what: Tensor) -> Any:
        """A graph that adds `what` to `to`, in the memory of `to`."""
        graph = context.graph(context.ops.cpy(context.ops.add(to, what), to))
        self.lib.ggml_backend_alloc_ctx_tensors(context.raw, self.backends[number].raw)
        return graph


def graph_then_read(rig: Rig) -> Arrays:
    """A graph computed on one backend, then read."""
    context, (a, b) = rig.on_device(0, "a", "b")
    graph = rig.adding(0, context, a, b)
    rig.lib.ggml_backend_graph_compute(rig.backends[0].raw, graph.raw)
    return [rig.get(a)]


def queued_transfers(rig: Rig) -> Arrays:
    """A graph is queued, its result is read and then overwritten, both asynchronously."""
    context, (a, b) = rig.on_device(0, "a", "b")
    graph, backend = rig.adding(0, context, a, b), rig.backends[0]
    read, written = np.zeros(WIDTH, np.float32), rig.row(7)
    rig.lib.ggml_backend_graph_compute_async(backend.raw, graph.raw)
    buffer = rig.ffi.from_buffer(read)
    rig.lib.ggml_backend_tensor_get_async(backend.raw, a.raw, buffer, 0, read.nbytes)
    rig.lib.ggml_backend_synchronize(backend.raw)
    rig.lib.ggml_backend_graph_compute_async(backend.raw, graph.raw)
    buffer = rig.ffi.from_buffer(written)
    rig.lib.ggml_backend_tensor_set_async(backend.raw, a.raw, buffer, 0, written.nbytes)
    rig.lib.ggml_backend_synchronize(backend.raw)
    return [read, rig.get(a)]


def refused_copy(rig: Rig) -> Arrays:
    """Both devices are busy with the tensors of a copy that they refuse."""
    near, (a, b) = rig.on_device(0, "a", "b")
    far, (c, d) = rig.on_device(1, "c", "d")
    first, second = rig.backends[:2]
    # A graph's memory goes with it, so each is kept while C reads it.
    left, right = rig.adding(0, near, a, b), rig.adding(1, far, c, d)
    rig.lib.ggml_backend_graph_compute_async(first.raw, left.raw)
    rig.lib.ggml_backend_graph_compute_async(second.raw, right.raw)
    rig.lib.ggml_backend_tensor_copy_async(first.raw, second.raw, a.raw, c.raw)
    for backend in (first, second):
        rig.lib.ggml_backend_synchronize(backend.raw)
    return [rig.get(c)]


def chain(rig: Rig, places: list[int], *, copies: bool) -> Arrays:
    """x + 1 + 2 + …, each sum elsewhere; started again and again, with another x, before anything is done."""
    context = Context("chain")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    ops = context.ops
    sums, last = [], x
    for number in places:
        last = ops.add(last, rig.resident[number])
        sums.append((last, number))
    graph = context.graph(last.mark_output())
    scheduler = rig.scheduler(copies=copies)
    rig.place(scheduler, *sums)
    scheduler.allocate(graph)
    results = []
    for turn in range(6):
        rig.put(x, rig.row(1000 * turn))
        rig.start(scheduler, graph)
        if turn in (2, 5):
            rig.lib.ggml_backend_sched_synchronize(scheduler.raw)
            results.append(rig.get(last))
    return results


def from_the_cpu(rig: Rig, *, copies: bool) -> Arrays:
    """A device adds what the CPU computes, which is not an input of the user's; started twice."""
    context = Context("from the CPU")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    ops = context.ops
    here = ops.scale(x, 2.0)
    there = ops.add(here, rig.resident[0])
    graph, scheduler = context.graph(there.mark_output()), rig.scheduler(copies=copies)
    rig.place(scheduler, (here, 2), (there, 0))
    scheduler.allocate(graph)
    return [rig.started_twice(scheduler, graph, x, there, 0)]


def between_devices(rig: Rig, *, copies: bool) -> Arrays:
    """The second device adds what the first computes, and has no other input; started twice."""
    context = Context("between devices")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    ops = context.ops
    first = ops.add(x, rig.resident[0])
    second = ops.add(first, rig.resident[1])
    graph, scheduler = context.graph(second.mark_output()), rig.scheduler(copies=copies)
    rig.place(scheduler, (first, 0), (second, 1))
    scheduler.allocate(graph)
    return [rig.started_twice(scheduler, graph, x, second, 1)]


def without_inputs(rig: Rig, *, copies: bool) -> Arrays:
    """The CPU's second split has no inputs, and its memory is that of what the device has not read yet."""
    context = Context("without inputs")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    ops = context.ops
    here = ops.scale(ops.add(x, rig.resident[2]), 2.0)
    there = ops.add(here, rig.resident[0])
    other = ops.scale(ops.add(rig.resident[2], rig.resident[2]), 3.0)
    both = ops.add(there, other)
    graph, scheduler = context.graph(there.mark_output(), both.mark_output()), rig.scheduler(copies=copies)
    rig.place(
        scheduler, (here.sources[0], 2), (here, 2), (there, 0), (other.sources[0], 2), (other, 2), (both, 0)
    )
    scheduler.allocate(graph)
    rig.put(x, rig.row(1000))
    rig.start(scheduler, graph)
    rig.lib.ggml_backend_sched_synchronize(scheduler.raw)
    return [rig.get(there), rig.get(both)]


def another_layout(rig: Rig) -> Arrays:
    """A graph that lays the memory out differently follows one that is still to run; there is memory for both."""
    scheduler, lib, kept = rig.scheduler(copies=True), rig.lib, []

    def sum_of(inputs: int, width: int) -> tuple[Any, list[Tensor], Tensor]:
        context = Context(f"{inputs} inputs")
        kept.append(context)
        tensors = [context.tensor("f32", width, f"x{number}").mark_input() for number in range(inputs)]
        last = context.ops.add(tensors[0], rig.resident[0])
        for tensor in tensors[1:]:
            last = context.ops.add(last, tensor)
        graph = context.graph(last.mark_output())
        for node in graph.nodes:
            lib.ggml_backend_sched_set_tensor_backend(scheduler.raw, node.raw, rig.backends[0].raw)
        return graph, tensors, last

    lib.ggml_backend_sched_reserve(scheduler.raw, sum_of(6, 3 * WIDTH)[0].raw)
    read: Arrays = []
    for turn, width in enumerate((WIDTH, 3 * WIDTH)):
        graph, tensors, last = sum_of(5, width)
        lib.ggml_backend_sched_alloc_graph(scheduler.raw, graph.raw)
        for number, tensor in enumerate(tensors):
            rig.put(tensor, np.arange(width, dtype=np.float32) + 1000 * turn + 100 * number)
        rig.start(scheduler, graph)
        read.append(np.zeros(width, np.float32))
        target = rig.ffi.from_buffer(read[turn])
        lib.ggml_backend_tensor_get_async(rig.backends[0].raw, last.raw, target, 0, 4 * width)
        lib.ggml_backend_sched_reset(scheduler.raw)
    lib.ggml_backend_sched_synchronize(scheduler.raw)
    return read


def every_node_watched(rig: Rig) -> Arrays:
    """Every node is read as soon as the scheduler says that it is there."""
    context = Context("watched")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    ops = context.ops
    first = ops.add(x, rig.resident[0])
    last = ops.add(first, rig.resident[1])
    graph, scheduler = context.graph(last.mark_output()), rig.scheduler(copies=False)
    rig.place(scheduler, (first, 0), (last, 1))
    seen: Arrays = []

    def read(tensor: Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(rig.get(tensor))
        return True

    scheduler.on_eval(read)
    scheduler.allocate(graph)
    rig.put(x, rig.row(1))
    scheduler.compute(graph)
    return [*seen, rig.get(last)]


def computed_then_read(rig: Rig) -> Arrays:
    """A graph computed by the scheduler, then read."""
    context = Context("computed")
    x = context.tensor("f32", WIDTH, "x").mark_input()
    last = context.ops.add(x, rig.resident[0])
    graph, scheduler = context.graph(last.mark_output()), rig.scheduler(copies=False)
    rig.place(scheduler, (last, 0))
    scheduler.allocate(graph)
    rig.put(x, rig.row(1))
    scheduler.compute(graph)
    return [rig.get(last)]


def on_a_meta_device(devices: VirtualDevices) -> Arrays:
    """A sum over two devices, computed and read."""
    generator = np.random.default_rng(1)
    up, down = generator.integers(-2, 3, (2, 16, 16)).astype(np.float32)
    x = generator.integers(-2, 3, (3, 16)).astype(np.float32)
    states = {"up": SplitState.along(1, [8, 8]), "down": SplitState.along(0, [8, 8])}
    meta = MetaDevice(list(devices), lambda tensor: states.get(tensor.name, SplitState.mirrored()))
    weights, context = Context("weights"), Context("graph")
    t_up, t_down = (weights.tensor("f32", (16, 16), name) for name in ("up", "down"))
    weights.allocate(meta).usage = "weights"
    t_up.set(up)
    t_down.set(down)
    t_x = context.tensor("f32", x.shape, "x").mark_input()
    ops = context.ops
    result = ops.scale(ops.mul_mat(t_down, ops.mul_mat(t_up, t_x)), 1.0)
    graph, scheduler = context.graph(result.mark_output()), Scheduler([meta.backend(), cpu().backend()])
    scheduler.allocate(graph)
    t_x.set(x)
    scheduler.compute(graph)
    return [result.numpy()]


def llama(
    devices: VirtualDevices, model: Path, *, pipelined: bool = False, loading: dict[str, Any], **options: Any
) -> Arrays:
    """A prompt in many small parts, then single tokens.

    A graph that is used again is waited for, so there is no pipeline unless each part has a graph of its own.
    """
    os.environ["LLAMA_GRAPH_REUSE_DISABLE"] = str(int(pipelined))
    tokens = np.random.default_rng(1).integers(0, 100, 120)
    options = {"n_ctx": 256, "n_batch": 128, "n_ubatch": 8, "flash_attn": True, "threads": 1, **options}
    devices.clear_ledger()
    with (
        Model.load(model, devices=devices.names, **loading) as loaded,
        LlamaContext(loaded, **options) as context,
    ):
        logits = [context.decode([(tokens[:96], 0)], logits="all")]
        logits += [context.decode([(tokens[at : at + 1], 0)], logits="all") for at in range(96, 104)]
    # The scheduler's copies of an input are named `<backend>#<input>#<number>`.
    copies = {record.tensor.rpartition("#")[2] for record in devices.ledger() if "#" in record.tensor}
    assert ("3" in copies) == pipelined, f"copies {sorted(copies)}"
    return logits


def workloads(place: Path) -> dict[str, tuple[dict[str, Any], Callable[[VirtualDevices], Arrays]]]:
    """By name: the devices, and what to do on them."""
    deep = place / "deep.gguf"
    if not deep.exists():
        make_llama(ModelShape(embd=64, k_size=16, ff=96, vocab=300, layers=6), deep)
    layer, tensor = {"split_mode": "layer"}, {"split_mode": "tensor"}
    two: dict[str, Any] = {"count": 2}
    queued, blocking = (
        {**two, "schedule": f"late/{option}"} for option in ("uploads=queued", "transfers=blocking")
    )

    def on_rig(work: Callable[..., Arrays], **options: Any) -> Callable[[VirtualDevices], Arrays]:
        return lambda devices: work(Rig(devices), **options)

    def decode(loading: dict[str, Any], **options: Any) -> Callable[[VirtualDevices], Arrays]:
        return lambda devices: llama(devices, deep, loading=loading, **options)

    made: dict[str, tuple[dict[str, Any], Callable[[VirtualDevices], Arrays]]] = {
        "a graph, then read": (two, on_rig(graph_then_read)),
        "queued transfers": (two, on_rig(queued_transfers)),
        "transfers that are not queued": (blocking, on_rig(queued_transfers)),
        "a refused copy": ({"count": 2, "faults": ("copy:",)}, on_rig(refused_copy)),
        "computed, then read": (two, on_rig(computed_then_read)),
        "another layout": (two, on_rig(another_layout)),
        "every node watched": (two, on_rig(every_node_watched)),
        "a sum over the devices": (two, on_a_meta_device),
    }
    for name, copies in (("", False), (", copies", True)):
        made |= {
            f"device, device, CPU, device{name}": (two, on_rig(chain, places=[0, 1, 2, 0], copies=copies)),
            f"a device{name}": (two, on_rig(chain, places=[0], copies=copies)),
            f"what the CPU computes{name}": (two, on_rig(from_the_cpu, copies=copies)),
            f"from device to device{name}": (two, on_rig(between_devices, copies=copies)),
            f"a split without inputs{name}": (queued, on_rig(without_inputs, copies=copies)),
        }
    return made | {
        "llama: layer, pipelined": ({"count": 3}, decode(layer, pipelined=True)),
        "llama: layer": ({"count": 3}, decode(layer)),
        "llama: layer, cache on the host": ({"count": 3}, decode(layer, offload_kqv=False)),
        "llama: half of the layers": (two, decode({**layer, "gpu_layers": 3}, op_offload=False)),
        "llama: tensor": (two, decode(tensor)),
        "llama: tensor, cache on the host": (two, decode(tensor, offload_kqv=False)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="workloads whose name contains this")
    arguments = parser.parse_args()
    load_build(active_build(ROOT))
    place = Path(tempfile.gettempdir()) / "pyggml-missing-waits"
    place.mkdir(exist_ok=True)
    answer = {}
    for name, (config, work) in workloads(place).items():
        if arguments.only is not None and arguments.only not in name:
            continue
        with VirtualDevices(**{"schedule": "late", "races": True, **config}) as devices:
            numbers = work(devices)
            races = [race.text for race in read_races(load())]
        answer[name] = {
            "hash": hashlib.sha256(b"".join(one.tobytes() for one in numbers)).hexdigest(),
            "races": races,
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
