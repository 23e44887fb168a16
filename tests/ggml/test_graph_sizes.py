"""Graphs of changing size on one meta backend: many nodes and no sum over the devices, few nodes and several sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, Scheduler, SplitState, cpu

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
