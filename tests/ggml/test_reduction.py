"""Products on slices: by columns, by rows, and the sum over the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Context, MetaDevice, Scheduler, SplitState, Tensor, VirtualDevices, cpu
from pyggml.ggml.library import load

from .conftest import MakeDevices, by_name

pytestmark = pytest.mark.native

along = SplitState.along


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Small whole numbers: sums of their products are exact in any order."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def shares(length: int, devices: int, granularity: int = 1) -> list[int]:
    base, over = divmod(length // granularity, devices)
    return [(base + (number < over)) * granularity for number in range(devices)]


class Pair:
    """down @ (up @ x), `up` split by rows and `down` by columns."""

    def __init__(
        self,
        vdev: VirtualDevices,
        lengths: list[int],
        rng: np.random.Generator,
        outputs: int = 9,
        trust: bool = False,
    ) -> None:
        hidden = sum(lengths)
        self.up, self.down = whole_numbers(rng, hidden, 12), whole_numbers(rng, outputs, hidden)
        self.x = whole_numbers(rng, 5, 12)
        self.meta = by_name(vdev, trust=trust, up=along(1, lengths), down=along(0, lengths))
        self.weights, self.context = Context("weights"), Context("graph")
        self.t_up = self.weights.tensor("f32", self.up.shape, "up")
        self.t_down = self.weights.tensor("f32", self.down.shape, "down")
        self.weights.allocate(self.meta).usage = "weights"
        self.t_up.set(self.up)
        self.t_down.set(self.down)
        self.t_x = self.context.tensor("f32", self.x.shape, "x").mark_input()
        self.hidden = self.context.ops.mul_mat(self.t_up, self.t_x)
        self.product = self.context.ops.mul_mat(self.t_down, self.hidden)
        self.scheduler = Scheduler([self.meta.backend(), cpu().backend()])

    def run(self, *outputs: Tensor) -> None:
        graph = self.context.graph(*(one.mark_output() for one in outputs))
        self.scheduler.allocate(graph)
        self.t_x.set(self.x)
        self.scheduler.compute(graph)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8])
def test_sums_over_devices_are_numpys(count: int, devices: MakeDevices, rng: Any) -> None:
    pair = Pair(devices(count), shares(16, count), rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(pair.hidden, result)
    assert (pair.hidden.numpy() == pair.x @ pair.up.T).all()
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_the_sum_takes_the_copies_of_a_butterfly(count: int, devices: MakeDevices, rng: Any) -> None:
    vdev = devices(count)
    pair = Pair(vdev, shares(16, count), rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    graph = pair.context.graph(result.mark_output())
    pair.scheduler.allocate(graph)
    pair.t_x.set(pair.x)
    vdev.clear_ledger()
    pair.scheduler.compute(graph)
    copies = vdev.ledger().filter(kind="cpy")
    whole = 1 << (count.bit_length() - 1)
    beyond = count - whole
    # Each of a power of two copies to a partner in every step; the others are folded in and told the result.
    assert len(copies) == whole * (whole.bit_length() - 1) + 2 * beyond
    assert copies.bytes == len(copies) * 5 * 9 * 4


def test_uneven_slices_are_numpys(devices: MakeDevices, rng: Any) -> None:
    pair = Pair(devices(3), [11, 1, 4], rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(result)
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


@pytest.mark.parametrize("count", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("schedule", ["late", "random:1", "random:2"])
def test_reductions_in_a_row_do_not_depend_on_the_schedule(
    count: int, schedule: str, devices: MakeDevices, rng: Any
) -> None:
    """reduction-temporaries: sums of sums, computed twice, with devices that may be ahead of each other."""
    hidden, layers = 16, 4
    lengths = shares(hidden, count)
    ups, downs = rng.integers(-1, 2, (2, layers, hidden, hidden)).astype(np.float32)
    x = whole_numbers(rng, 3, hidden)
    states = {f"up{layer}": along(1, lengths) for layer in range(layers)}
    states |= {f"down{layer}": along(0, lengths) for layer in range(layers)}
    meta = by_name(devices(count, schedule=schedule), **states)
    weights, context = Context("weights"), Context("graph")
    tensors = [
        [weights.tensor("f32", (hidden, hidden), f"{name}{layer}") for name in ("up", "down")]
        for layer in range(layers)
    ]
    weights.allocate(meta).usage = "weights"
    t_x = context.tensor("f32", x.shape).mark_input()
    result, expected = t_x, x
    for (t_up, t_down), up, down in zip(tensors, ups, downs, strict=True):
        t_up.set(up)
        t_down.set(down)
        result = context.ops.mul_mat(t_down, context.ops.mul_mat(t_up, result))
        result = context.ops.clamp(context.ops.scale(result, 0.25), -8.0, 8.0)
        expected = np.clip(expected @ up.T @ down.T * np.float32(0.25), -8, 8)
    graph, scheduler = context.graph(result.mark_output()), Scheduler([meta.backend(), cpu().backend()])
    scheduler.allocate(graph)
    t_x.set(x)
    for _ in range(2):
        scheduler.compute(graph)
    assert (result.numpy() == expected).all(), "the sum depends on the schedule"


@pytest.mark.parametrize("lengths", [[8, 8, 0], [0, 16], [4, 4, 8, 0]])
def test_a_device_without_work_adds_nothing(lengths: list[int], devices: MakeDevices, rng: Any) -> None:
    # More than the input takes, whose memory it gets first and which is finite.
    pair = Pair(devices(len(lengths)), lengths, rng, outputs=100)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(result)
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


@pytest.mark.parametrize("lengths", [[8, 8, 0], [0, 16]])
def test_a_device_without_work_adds_nothing_in_clean_memory(
    lengths: list[int], devices: MakeDevices, rng: Any
) -> None:
    pair = Pair(devices(len(lengths), poison=False), lengths, rng, outputs=100)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(result)
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_sum_that_ends_a_graph_is_taken(count: int, devices: MakeDevices, rng: Any) -> None:
    """sum-at-graph-end: with an eval callback each node that is watched ends a graph of the devices."""
    pair = Pair(devices(count), shares(16, count), rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.scheduler.on_eval(lambda tensor, ask: True)
    pair.run(result)
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


@pytest.mark.parametrize("inputs", [28, 29, 30, 31])
def test_a_sum_before_an_input_that_needs_another_split(inputs: int, devices: MakeDevices, rng: Any) -> None:
    """sum-at-graph-end: a split of the scheduler has room for 30 inputs, the next one begins another split."""
    pair = Pair(devices(2), [8, 8], rng)
    context, values = pair.context, [whole_numbers(rng, 5, 9) for _ in range(inputs)]
    tensors = [context.tensor("f32", value.shape).mark_input() for value in values]
    before = tensors[0]
    for tensor in tensors[1:-1]:
        before = context.ops.add(before, tensor)
    # The last input is the first node's after the product.
    result = context.ops.add(context.ops.add(pair.product, tensors[-1]), before)
    graph = context.graph(before, result.mark_output())
    for node in graph.nodes:
        pair.scheduler.assign(node, pair.scheduler.backends[0])
    pair.scheduler.allocate(graph)
    for tensor, value in zip([pair.t_x, *tensors], [pair.x, *values], strict=True):
        tensor.set(value)
    pair.scheduler.compute(graph)
    # Newer trees do not limit the inputs of a split.
    assert len(pair.scheduler.splits) in (1, 1 + (inputs > 29))
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T + sum(values)).all()


def test_a_sum_that_nothing_follows_is_refused(devices: MakeDevices, rng: Any) -> None:
    pair = Pair(devices(2), [8, 8], rng)
    pair.run(pair.product)
    with pytest.raises(PyggmlError, match="a sum whose summands are still on the devices"):
        pair.product.numpy()


def read_raw(tensor: Tensor, meta: MetaDevice | None = None) -> np.ndarray[Any, Any]:
    """Without the check of the typed layer, which knows no build that can read a sum; asynchronously with `meta`."""
    bindings = load()
    data = np.full(tensor.shape, np.nan, np.float32)
    target = bindings.ffi.from_buffer("char[]", data)
    if meta is None:
        bindings.lib.ggml_backend_tensor_get(tensor.raw, target, 0, tensor.nbytes)
    else:
        backend = meta.backend()
        bindings.lib.ggml_backend_tensor_get_async(backend.raw, tensor.raw, target, 0, tensor.nbytes)
        bindings.lib.ggml_backend_synchronize(backend.raw)
    return data


@pytest.mark.isolated
@pytest.mark.parametrize("how", ["at once", "asynchronously"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sum_at_the_end_of_a_graph_is_read(devices: MakeDevices, rng: Any, count: int, how: str) -> None:
    pair = Pair(devices(count), shares(16, count), rng)
    pair.run(pair.product)
    expected = pair.x @ pair.up.T @ pair.down.T
    assert (read_raw(pair.product, None if how == "at once" else pair.meta) == expected).all()


@pytest.mark.isolated
@pytest.mark.parametrize("how", ["at once", "asynchronously"])
def test_a_tensor_that_is_stored_as_partial_sums_is_read(devices: MakeDevices, rng: Any, how: str) -> None:
    meta = by_name(devices(4), t=SplitState.partial())
    context = Context()
    tensor = context.tensor("f32", (3, 5), "t")
    context.allocate(meta)
    data = whole_numbers(rng, 3, 5)
    tensor.set(data)
    assert (read_raw(tensor, None if how == "at once" else meta) == data).all()


@pytest.mark.isolated
@pytest.mark.parametrize("reader", ["an output", "a second operation"])
def test_a_sum_with_other_readers_is_complete(devices: MakeDevices, rng: Any, reader: str) -> None:
    """A factor after a sum lets upstream add up later, behind the product with it."""
    pair = Pair(devices(2), [8, 8], rng)
    ops, factor = pair.context.ops, whole_numbers(rng, 9)
    t_factor = pair.context.tensor("f32", factor.shape, "factor").mark_input()
    expected = pair.x @ pair.up.T @ pair.down.T
    scaled = ops.mul(pair.product, t_factor)
    other = pair.product if reader == "an output" else ops.scale(pair.product, 2.0)
    graph = pair.context.graph(scaled.mark_output(), other.mark_output())
    pair.scheduler.allocate(graph)
    pair.t_x.set(pair.x)
    t_factor.set(factor)
    pair.scheduler.compute(graph)
    assert (read_raw(scaled) == expected * factor).all()
    assert (read_raw(other) == (expected if reader == "an output" else 2 * expected)).all()


def test_a_partial_bias_is_added_once(devices: MakeDevices, rng: Any) -> None:
    """add_id is where upstream takes a partial tensor: the bias joins the summands before they are added."""
    count, tokens = 4, 3
    up, down, bias = whole_numbers(rng, 8, 6), whole_numbers(rng, 5, 8), whole_numbers(rng, 2, 5) * count
    x, picks = whole_numbers(rng, tokens, 1, 6), np.array([[1], [0], [1]], np.int32)
    meta = by_name(devices(count), up=along(1, [2] * 4), down=along(0, [2] * 4), bias=SplitState.partial())
    weights, context = Context(), Context()
    tensors = {name: weights.tensor("f32", array.shape, name) for name, array in
               (("up", up), ("down", down), ("bias", bias))}  # fmt: skip
    weights.allocate(meta).usage = "weights"
    for name, array in (("up", up), ("down", down), ("bias", bias)):
        tensors[name].set(array)
    t_x, t_picks = (
        context.tensor("f32", x.shape).mark_input(),
        context.tensor("i32", picks.shape).mark_input(),
    )
    ops = context.ops
    product = ops.mul_mat(tensors["down"], ops.mul_mat(tensors["up"], t_x))
    result = ops.scale(ops.add_id(product, tensors["bias"], t_picks), 1.0).mark_output()
    graph, scheduler = context.graph(result), Scheduler([meta.backend(), cpu().backend()])
    scheduler.allocate(graph)
    t_x.set(x)
    t_picks.set(picks)
    scheduler.compute(graph)
    expected = (x @ up.T @ down.T)[:, 0, :] + bias[picks[:, 0]]
    assert (result.numpy().reshape(tokens, 5) == expected).all()


def test_splits_that_do_not_fit_are_refused_before_upstream_aborts(devices: MakeDevices, rng: Any) -> None:
    meta = by_name(devices(2), a=along(0, [4, 4]), b=along(1, [3, 3]))
    weights, context = Context(), Context()
    a, b = weights.tensor("f32", (6, 8), "a"), weights.tensor("f32", (6, 8), "b")
    weights.allocate(meta).usage = "weights"
    scheduler = Scheduler([meta.backend(), cpu().backend()])
    for made, words in (
        (
            context.ops.mul_mat(a, context.tensor("f32", (2, 8), "x")),
            "MUL_MAT of tensor 'a'.*along axis 0.*mirrored",
        ),
        (context.ops.add(a, b), "ADD of tensor 'a'.*along axis 0.*'b'.*along axis 1"),
        (context.ops.rms_norm(a, 1e-5), "RMS_NORM of tensor 'a'.*along axis 0"),
    ):
        with pytest.raises(PyggmlError, match=words):
            scheduler.allocate(context.graph(made))


def test_a_device_with_too_little_memory_for_results_says_so(devices: MakeDevices, rng: Any) -> None:
    vdev = devices(2, memory=1 << 15)
    pair = Pair(vdev, [8, 8], rng)
    big = pair.context.tensor("f32", (4000, 12), "many").mark_input()
    made = pair.context.ops.mul_mat(pair.t_up, big)
    with pytest.raises(
        PyggmlError, match=r"no memory for \d+ bytes on each of 2 devices: VDEV0 has \d+ of 32768"
    ):
        pair.scheduler.allocate(pair.context.graph(made))
    pair.run(pair.hidden)
    assert (pair.hidden.numpy() == pair.x @ pair.up.T).all()


@pytest.mark.isolated
def test_a_row_strided_result_is_read_back(devices: MakeDevices, rng: Any) -> None:
    """The raw level, as for a fused QKV: every device holds its part of the window."""
    pair = Pair(devices(2), [8, 8], rng, trust=True)
    window = pair.context.ops.view_2d(pair.hidden, 8, 5, 64, 0)
    pair.run(pair.hidden, pair.context.ops.cont(window))
    bindings, row = load(), np.empty((5, 16), np.float32)
    nbytes = window.nbytes
    bindings.lib.ggml_backend_tensor_get(window.raw, bindings.ffi.from_buffer(row), 0, nbytes)


def test_a_row_strided_result_is_refused_by_the_typed_layer(devices: MakeDevices, rng: Any) -> None:
    """It cannot know whether the build has the patch that lets upstream read it."""
    pair = Pair(devices(2), [8, 8], rng, trust=True)
    window = pair.context.ops.view_2d(pair.hidden, 8, 5, 64, 0)
    result = pair.context.ops.scale(pair.context.ops.cont(window), 1.0)
    pair.scheduler.assign(result.sources[0], pair.scheduler.backends[1])
    pair.scheduler.assign(result, pair.scheduler.backends[1])
    with pytest.raises(PyggmlError, match="has gaps or is permuted"):
        pair.run(result)


@pytest.mark.isolated
def test_a_graph_may_end_in_a_view_of_host_memory(devices: MakeDevices, rng: Any) -> None:
    pair = Pair(devices(2), [8, 8], rng, trust=True)
    host = Context("host")
    cache = host.tensor("f32", 16, "cache")
    host.allocate(cpu())
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(result, pair.context.ops.view_1d(cache, 8, 0))
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()


def test_a_graph_that_ends_in_a_host_view_is_refused(devices: MakeDevices, rng: Any) -> None:
    pair = Pair(devices(2), [8, 8], rng)
    host = Context("host")
    cache = host.tensor("f32", 16, "cache")
    host.allocate(cpu())
    with pytest.raises(PyggmlError, match="ends in a view of host memory"):
        pair.run(pair.context.ops.scale(pair.product, 1.0), pair.context.ops.view_1d(cache, 8, 0))


def test_what_pyggml_does_not_know_is_refused_unless_upstream_is_trusted(
    devices: MakeDevices, rng: Any
) -> None:
    for trust in (False, True):
        pair = Pair(devices(2), [8, 8], rng, trust=trust)
        made = pair.context.ops.cpy(pair.hidden, pair.context.tensor("f32", (5, 16), "to").mark_input())
        if trust:
            continue
        with pytest.raises(
            PyggmlError, match=r"does not know how a MetaDevice computes CPY.*\n.*trust_upstream"
        ):
            pair.run(made)


def test_what_upstream_asserts_of_a_trusted_graph_is_an_exception_with_its_text(
    devices: MakeDevices, rng: Any
) -> None:
    """A child has died of it, not this process, and the scheduler goes on."""
    pair = Pair(devices(2), [8, 8], rng, trust=True)
    ops = pair.context.ops
    with pytest.raises(PyggmlError, match=r"upstream cannot split .*ggml-backend-meta\.cpp:\d+: GGML_ASSERT"):
        pair.run(ops.rms_norm(pair.hidden, 1e-5))
    other = Pair(devices(2), [8, 8], rng)
    other.run(other.hidden)
    assert (other.hidden.numpy() == other.x @ other.up.T).all()


@pytest.mark.isolated
def test_attention_with_a_cache_on_the_host_is_split_by_heads(devices: MakeDevices, rng: Any) -> None:
    heads, size, tokens, cells = 4, 8, 3, 32
    wq, x = whole_numbers(rng, heads * size, 6) / 8, whole_numbers(rng, tokens, 6) / 8
    k, v = (rng.standard_normal((cells, heads * size), np.float32) for _ in range(2))
    meta = by_name(
        devices(2),
        trust=True,
        wq=along(1, [size, 3 * size]),
        # The scheduler's copies are offered under their sources' names: [size, cells, heads] in ne.
        **{f"cache_{kv}_l0 (view) (permuted)": along(2, [1, 3]) for kv in "kv"},
    )
    weights, host, context = Context("weights"), Context("host"), Context("graph")
    t_wq = weights.tensor("f32", wq.shape, "wq")
    weights.allocate(meta).usage = "weights"
    t_k, t_v = host.tensor("f32", k.shape, "cache_k_l0"), host.tensor("f32", v.shape, "cache_v_l0")
    host.allocate(cpu())
    for tensor, value in ((t_wq, wq.astype(np.float32)), (t_k, k), (t_v, v)):
        tensor.set(value)
    ops, t_x = context.ops, context.tensor("f32", x.shape, "x").mark_input()
    q = ops.permute(ops.reshape_3d(ops.mul_mat(t_wq, t_x), size, heads, tokens), 0, 2, 1, 3)
    row = heads * size * 4
    kv = [
        ops.permute(ops.view_3d(one, size, heads, cells, size * 4, row, 0), 0, 2, 1, 3) for one in (t_k, t_v)
    ]
    out = ops.flash_attn_ext(q, kv[0], kv[1], None, 1.0, 0.0, 0.0)
    scheduler, graph = Scheduler([meta.backend(), cpu().backend()]), context.graph(out.mark_output())
    scheduler.assign(out, scheduler.backends[0])
    scheduler.allocate(graph)
    t_x.set(x.astype(np.float32))
    scheduler.compute(graph)
    queries = (x @ wq.T).reshape(tokens, heads, size)
    scores = np.einsum("thd,chd->thc", queries, k.reshape(cells, heads, size))
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    expected = np.einsum("thc,chd->thd", weight, v.reshape(cells, heads, size))
    # The raw level: how a copy is spread is the split function's to say, and pyggml takes copies for mirrored.
    bindings, read = load(), np.empty(out.shape, np.float32)
    bindings.lib.ggml_backend_tensor_get(out.raw, bindings.ffi.from_buffer(read), 0, read.nbytes)
    np.testing.assert_allclose(read, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_view_that_another_backend_reads_is_split_like_its_source(
    tokens: int, devices: MakeDevices, rng: Any
) -> None:
    # What llama.cpp does with K and a cache on the host: heads of the devices, read as rows by the CPU.
    up, x = whole_numbers(rng, 8, 12), whole_numbers(rng, tokens, 12)
    meta = by_name(devices(2), trust=True, up=along(1, [4, 4]))
    weights, cached, context = Context("weights"), Context("cache"), Context("graph")
    t_up, cache = weights.tensor("f32", up.shape, "up"), cached.tensor("f32", (6, 8), "cache")
    weights.allocate(meta).usage = "weights"
    cached.allocate(cpu())
    t_up.set(up)
    cache.set(np.zeros((6, 8), np.float32))
    t_x = context.tensor("f32", x.shape, "x").mark_input()
    rows = context.tensor("i64", (tokens,), "rows").mark_input()
    ops = context.ops
    heads = ops.scale(ops.reshape_3d(ops.mul_mat(t_up, t_x), 4, 2, tokens), 1.0)
    written = ops.set_rows(cache, ops.view_2d(heads, 8, tokens, heads.nb[2], 0), rows)
    scheduler, graph = Scheduler([meta.backend(), cpu().backend()]), context.graph(written.mark_output())
    scheduler.allocate(graph)
    t_x.set(x)
    rows.set(np.arange(tokens) + 2)
    scheduler.compute(graph)
    assert (cache.numpy()[2 : 2 + tokens] == x @ up.T).all()
