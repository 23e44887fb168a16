"""What newer meta backends compute on slices and older ones do not: refused there, right here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Context, MetaDevice, Scheduler, SplitState, Tensor, cpu
from pyggml.ggml.mirrored import mirrors_attention

from .conftest import MakeDevices, by_name

pytestmark = pytest.mark.native

along = SplitState.along
Values = dict[Tensor, np.ndarray[Any, Any]]


@contextmanager
def newer() -> Iterator[None]:
    """The block works with a build that has the rules, and is refused with one that has not."""
    if mirrors_attention():
        yield
    else:
        with pytest.raises(PyggmlError, match=r"a MetaDevice cannot compute|does not know how"):
            yield


def compute(meta: MetaDevice, context: Context, made: Tensor, inputs: Values) -> np.ndarray[Any, Any]:
    scheduler = Scheduler([meta.backend(), cpu().backend()])
    if not made.is_view:
        scheduler.assign(made, scheduler.backends[0])
    result = context.ops.scale(made, 1.0).mark_output()
    graph = context.graph(result)
    scheduler.allocate(graph)
    for tensor, value in inputs.items():
        tensor.set(value)
    scheduler.compute(graph)
    return result.numpy()


@pytest.mark.parametrize("spread", [[2, 1, 3], [0, 6, 0]], ids=str)
def test_products_of_a_batch_are_spread_by_its_matrices(
    spread: list[int], devices: MakeDevices, rng: Any
) -> None:
    a, x = (
        rng.integers(-4, 5, shape).astype(np.float32) for shape in ((6, 4, 8), (6, 5, 8))
    )  # 6 matrices each
    meta = by_name(devices(3), a=along(2, spread), x=along(2, spread))
    weights, context = Context("weights"), Context("graph")
    t_a, t_x = (weights.tensor("f32", one.shape, name) for one, name in ((a, "a"), (x, "x")))
    weights.allocate(meta).usage = "weights"
    t_a.set(a)
    t_x.set(x)
    with newer():
        made = compute(meta, context, context.ops.mul_mat(t_a, t_x), {})
        assert (made == x @ a.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("split", [True, False], ids=["queries by head", "all mirrored"])
def test_attention_over_mirrored_keys_and_values(split: bool, devices: MakeDevices, rng: Any) -> None:
    """One KV head for all query heads, whole on every device."""
    heads, size, tokens, cells = 4, 8, 3, 32
    wq, x = (rng.integers(-4, 5, shape).astype(np.float32) / 8 for shape in ((heads * size, 6), (tokens, 6)))
    k, v = (rng.standard_normal((1, cells, size)).astype(np.float32) for _ in range(2))
    states = {"wq": along(1, [size, 3 * size])} if split else {}
    meta, weights, context = by_name(devices(2), **states), Context("weights"), Context("graph")
    t_wq = weights.tensor("f32", wq.shape, "wq")
    weights.allocate(meta).usage = "weights"
    t_wq.set(wq)
    ops = context.ops
    t_x, t_k, t_v = (
        context.tensor("f32", one.shape, name).mark_input() for one, name in ((x, "x"), (k, "k"), (v, "v"))
    )
    q = ops.permute(ops.reshape_3d(ops.mul_mat(t_wq, t_x), size, heads, tokens), 0, 2, 1, 3)
    out = ops.flash_attn_ext(q, t_k, t_v, None, 1.0, 0.0, 0.0)
    with newer():
        made = compute(meta, context, out, {t_x: x, t_k: k, t_v: v})
        scores = np.einsum("thd,cd->thc", (x @ wq.T).reshape(tokens, heads, size), k[0])
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        np.testing.assert_allclose(made, np.einsum("thc,cd->thd", weight, v[0]), rtol=1e-3, atol=1e-4)


def test_attention_of_split_queries_over_several_mirrored_heads_is_refused(devices: MakeDevices) -> None:
    """A device's first query head would meet the first KV head, whichever it is; upstream computes that."""
    with pytest.raises(PyggmlError, match="FLASH_ATTN_EXT"):
        attention_of_two_mirrored_heads(by_name(devices(2), wq=along(1, [8, 8])))


def test_upstream_refuses_split_queries_over_several_mirrored_heads(devices: MakeDevices) -> None:
    with pytest.raises(PyggmlError, match=r"Q is split by heads but the 2 heads of K .* are not"):
        attention_of_two_mirrored_heads(by_name(devices(2), trust=True, wq=along(1, [8, 8])))


def test_a_device_with_all_queries_may_have_several_mirrored_heads(devices: MakeDevices) -> None:
    attention_of_two_mirrored_heads(by_name(devices(2), trust=True, wq=along(1, [0, 16])))


def attention_of_two_mirrored_heads(meta: MetaDevice) -> None:
    """Allocate the graph, no more."""
    weights, context = Context("weights"), Context("graph")
    t_wq = weights.tensor("f32", (16, 6), "wq")
    weights.allocate(meta).usage = "weights"
    ops = context.ops
    q = ops.permute(
        ops.reshape_3d(ops.mul_mat(t_wq, context.tensor("f32", (3, 6), "x")), 8, 2, 3), 0, 2, 1, 3
    )
    k, v = (context.tensor("f32", (2, 32, 8), name) for name in "kv")
    scheduler = Scheduler([meta.backend(), cpu().backend()])
    out = ops.flash_attn_ext(q, k, v, None, 1.0, 0.0, 0.0)
    scheduler.assign(out, scheduler.backends[0])
    scheduler.allocate(context.graph(out))


@pytest.mark.patch("strided-readback")
def test_a_whole_row_on_one_device_keeps_its_place_in_a_reshape(devices: MakeDevices, rng: Any) -> None:
    """Newer trees move such a split to the axis of length 1 beside it; the result is the same."""
    meta, weights, context = by_name(devices(2), w=along(1, [0, 8])), Context("weights"), Context("graph")
    w, x = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((8, 6), (5, 6)))
    t_w = weights.tensor("f32", w.shape, "w")
    weights.allocate(meta).usage = "weights"
    t_w.set(w)
    t_x = context.tensor("f32", x.shape, "x").mark_input()
    made = context.ops.reshape_3d(context.ops.mul_mat(t_w, t_x), 8, 1, 5)
    assert (compute(meta, context, made, {t_x: x})[:, 0, :] == x @ w.T).all()
