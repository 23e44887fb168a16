"""The fixture `clock` as a user's test takes it, on graphs driven through pyggml.ggml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyggml.clock import Costs
from pyggml.clock.costs import DeviceCost, LinkCost
from pyggml.ggml import Context, VirtualDevices

pytestmark = pytest.mark.native


@pytest.fixture
def two() -> Iterator[VirtualDevices]:
    with VirtualDevices(2) as devices:
        yield devices


def node(operation: str, prediction: Any) -> tuple[int, int]:
    """Flops and bytes of the node with that operation."""
    nodes = [n for span in prediction.spans if span.operation for n in span.operation.nodes]
    (one,) = [n for n in nodes if n.operation == operation]
    return one.flops, one.bytes


def test_a_product_takes_its_flops_or_its_bytes(two: VirtualDevices, clock: Any) -> None:
    context = Context()
    weight, x = context.tensor("f32", (3, 8), "weight"), context.tensor("f32", (5, 8), "x")
    graph = context.graph(context.ops.mul_mat(weight, x))
    context.allocate(two[0])
    backend = two[0].backend()

    def work() -> None:
        x.set(np.ones((5, 8), np.float32))
        backend.compute(graph)

    # 3 x 5 sums of 8 products, 240 flops; 96 + 160 bytes are read and 60 written; x has 160 bytes.
    prediction = clock(Costs((DeviceCost(316, 120, 0.5),), (LinkCost(160),)), work)
    assert node("MUL_MAT", prediction) == (240, 316)
    assert prediction.seconds == 1 + 2.5
    prediction = clock(Costs((DeviceCost(79, 240, 0.5),), (LinkCost(160, 0.25),)), work)
    assert prediction.seconds == 1.25 + 4.5


def test_only_the_rows_and_experts_that_are_used_count(two: VirtualDevices, clock: Any) -> None:
    context = Context()
    ops = context.ops
    table, rows = context.tensor("f32", (100, 8), "table"), context.tensor("i32", (3,), "rows")
    new, where = context.tensor("f32", (2, 8), "new"), context.tensor("i64", (2,), "where")
    experts, picked = context.tensor("f32", (10, 4, 8), "experts"), context.tensor("i32", (1, 2), "picked")
    x = context.tensor("f32", (1, 1, 8), "x")
    graph = context.graph(
        ops.get_rows(table, rows), ops.set_rows(table, new, where), ops.mul_mat_id(experts, x, picked)
    )
    context.allocate(two[1])
    rows.set(np.array([1, 5, 7], np.int32))
    where.set(np.array([2, 4], np.int64))
    picked.set(np.array([[0, 3]], np.int32))
    prediction = clock("one-gpu", lambda: two[1].backend().compute(graph))
    assert node("GET_ROWS", prediction) == (24, 96 + 96 + 12)
    assert node("SET_ROWS", prediction)[1] == 64 + 64 + 16
    assert node("MUL_MAT_ID", prediction) == (2 * 2 * 4 * 8, 2 * 128 + 32 + 8 + 32)


def test_nothing_is_recorded_outside(two: VirtualDevices, clock: Any) -> None:
    context = Context()
    x = context.tensor("f32", (4,), "x")
    context.allocate(two[0])
    assert clock("two-gpus", lambda: None).spans == ()
    x.set(np.ones(4, np.float32))
    two.start_timeline()
    x.set(np.ones(4, np.float32))
    assert [(one.kind, one.tensor, one.bytes) for one in two.timeline().operations] == [("set", "x", 16)]
