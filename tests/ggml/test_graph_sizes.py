"""Graphs of changing size on one meta backend: many nodes and no sum over the devices, few nodes and several sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, Scheduler, SplitState, cpu
from pyggml.ggml.library import load

from .conftest import MakeDevices, by_name

pytestmark = pytest.mark.native

SCALES, SUMS = 501, 3


@pytest.mark.isolated
@pytest.mark.parametrize("order", [["scales", "sums"] * 2, ["sums", "scales"] * 2], ids="-".join)
def test_graphs_of_changing_size_are_numpys(order: list[str], devices: MakeDevices, rng: Any) -> None:
    """meta-graph-sizes: `scales` has many nodes in one subgraph, `sums` has few in several.

    The devices' graphs are made for the first two; what they were made for must hold the two after them.
    """
    up, down, x = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((16, 12), (12, 16), (5, 12)))
    meta = by_name(devices(2), up=SplitState.along(1, [8, 8]), down=SplitState.along(0, [8, 8]))
    weights = Context("weights")
    t_up, t_down = weights.tensor("f32", up.shape, "up"), weights.tensor("f32", down.shape, "down")
    weights.allocate(meta).usage = "weights"
    t_up.set(up)
    t_down.set(down)
    scheduler = Scheduler([meta.backend(), cpu().backend()])
    for name in order:
        context = Context(name)
        t_x = context.tensor("f32", x.shape, "x").mark_input()
        # Whole numbers below 2^24: exact in float, in any order.
        if name == "scales":
            made, expected = context.ops.mul_mat(t_up, t_x), -x @ up.T
            for _ in range(SCALES):
                made = context.ops.scale(made, -1.0)
        else:
            made, expected = t_x, x
            for _ in range(SUMS):
                product = context.ops.mul_mat(t_down, context.ops.mul_mat(t_up, made))
                made, expected = context.ops.scale(product, 1.0), expected @ up.T @ down.T
        graph = context.graph(made.mark_output())
        scheduler.reset()
        scheduler.allocate(graph)
        t_x.set(x)
        scheduler.compute(graph)
        assert (made.numpy() == expected).all(), name


@pytest.mark.isolated
def test_the_graphs_of_every_split_are_made_once(devices: MakeDevices, rng: Any) -> None:
    """A product on the devices, a step on the CPU, and another product: two splits that take turns."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    up, x = rng.integers(-1, 2, (12, 12)).astype(np.float32), rng.integers(-1, 2, (5, 12)).astype(np.float32)
    meta = by_name(devices(2), up=SplitState.along(1, [6, 6]))
    weights, context = Context("weights"), Context("graph")
    t_up = weights.tensor("f32", up.shape, "up")
    weights.allocate(meta).usage = "weights"
    t_up.set(up)
    t_x = context.tensor("f32", x.shape, "x").mark_input()
    ops = context.ops
    between = ops.scale(ops.mul_mat(t_up, t_x), 2.0)
    last = ops.mul_mat(t_up, between).mark_output()
    scheduler = Scheduler([meta.backend(), cpu().backend()])
    scheduler.assign(between, scheduler.backends[1])
    graph = context.graph(last)
    scheduler.allocate(graph)
    assert len(scheduler.splits) == 3

    simple = lib.ggml_backend_meta_simple_backend(scheduler.backends[0].raw, 0)
    original, computed = simple.iface.graph_compute, []

    def compute(backend: Any, part: Any) -> int:
        computed.append(int(ffi.cast("uintptr_t", part)))
        return int(original(backend, part))

    kept = ffi.callback(ffi.typeof(original), compute)
    simple.iface.graph_compute = kept
    for _ in range(3):
        t_x.set(x)
        scheduler.compute(graph)
        assert (last.numpy() == 2 * x @ up.T @ up.T).all()
    assert len(set(computed)) == 2 and computed == 3 * computed[:2]
    simple.iface.graph_compute = original
