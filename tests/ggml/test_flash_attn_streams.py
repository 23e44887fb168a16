"""Attention with a tensor for each stream: as many ops as streams give the bits of one op over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, Scheduler, cpu
from pyggml.ggml.library import load

pytestmark = pytest.mark.native
HEADS, SIZE, STREAMS = 3, 32, 2


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("cells", [511, 512, 1280])
def test_a_stream_is_computed_like_all_of_them(tokens: int, cells: int, rng: Any) -> None:
    """From 512 cells on the processor divides those of a single token among its threads.

    A build without the patch flash-attn-streams has no way to say that an op is for one of several streams.
    """
    patched = hasattr(load().lib, "ggml_flash_attn_ext_set_n_stream")
    context = Context("graph")
    ops = context.ops
    shapes = {
        "q": (STREAMS, HEADS, tokens, SIZE),
        "k": (STREAMS, HEADS, cells, SIZE),
        "v": (STREAMS, HEADS, cells, SIZE),
    }
    whole = [
        context.tensor("f32" if name == "q" else "f16", shape, name).mark_input()
        for name, shape in shapes.items()
    ]
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]

    def one(tensor: Any, stream: int) -> Any:
        """The stream as a tensor of its own, in numpy's order (1, ...)."""
        strides = [tensor.raw.nb[axis] for axis in (1, 2, 3)]
        width, rows, heads = (tensor.raw.ne[axis] for axis in (0, 1, 2))
        return ops.view_4d(tensor, width, rows, heads, 1, *strides, stream * strides[2])

    together = ops.flash_attn_ext(*whole, None, 0.2, 0.0, 0.0).mark_output()
    alone = []
    for stream in range(STREAMS):
        op = ops.flash_attn_ext(*(one(tensor, stream) for tensor in whole), None, 0.2, 0.0, 0.0)
        if patched:
            ops.flash_attn_ext_set_n_stream(op, STREAMS)
        alone.append(op.mark_output())
    scheduler, graph = Scheduler([cpu().backend(threads=3)]), context.graph(together, *alone)
    scheduler.allocate(graph)
    for tensor, value in zip(whole, values, strict=True):
        tensor.set(value.astype(np.float32 if tensor is whole[0] else np.float16))
    scheduler.compute(graph)
    expected = together.numpy()
    for stream, op in enumerate(alone):
        found = op.numpy().reshape(expected[stream].shape)
        assert np.array_equal(found.view(np.uint32), expected[stream].view(np.uint32))
    q, k, v = (value.astype(np.float16).astype(np.float64) for value in values)
    scores = 0.2 * np.einsum("shtd,shcd->shtc", q, k)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    wanted = np.einsum("shtc,shcd->sthd", weight, v)
    np.testing.assert_allclose(expected, wanted, rtol=2e-2, atol=2e-3)
