"""What is computed, compared with formulas in numpy and with the same tokens in other batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml import InUseError
from pyggml.llama import AbortedError, LlamaContext, Model, NoRoomError
from pyggml.testing.fixtures import MakeDevices

from .conftest import Floats, Open, nmse, prompt
from .forward import forward

pytestmark = pytest.mark.native

ARCHS = ("llama", "gemma2", "gpt2", "mamba", "falcon-h1")
"""Plain, with sliding windows, with a table of positions, recurrent, hybrid."""


@pytest.mark.parametrize("shape", [{"layers": 1}, {"layers": 3, "heads": 6, "kv_heads": 2}])
@pytest.mark.parametrize("flash", [False, True])
def test_logits_are_those_of_the_formulas(
    made: Callable[..., Path], open_context: Open, shape: dict[str, int], flash: bool
) -> None:
    path = made(**shape)
    context = open_context(path, type_k="f32", type_v="f32", flash_attn=flash)
    tokens = prompt(context, 50)
    logits = context.decode(tokens, logits="all")
    expected = forward(path, tokens)
    assert logits.dtype == np.float32 and logits.shape == expected.shape == (50, 300)
    # Flash attention casts K and V to f16 (build_attn_mha, src/llama-graph.cpp).
    assert nmse(expected, logits) < (1e-5 if flash else 1e-10)


@pytest.mark.parametrize("arch", ARCHS)
def test_one_batch_equals_token_by_token(tiny: Callable[[str], Path], open_context: Open, arch: str) -> None:
    context = open_context(tiny(arch))
    tokens = prompt(context, 40)
    at_once = context.decode(tokens, logits="all")
    context.memory.clear()
    one_by_one = np.concatenate([context.decode([token]) for token in tokens])
    # Not bit for bit: the CPU multiplies a vector and a matrix in different orders.
    assert nmse(at_once, one_by_one) < 1e-6


@pytest.mark.parametrize("arch", ARCHS)
def test_the_same_decode_twice_is_bit_identical(
    tiny: Callable[[str], Path], open_context: Open, arch: str
) -> None:
    context = open_context(tiny(arch), threads=2)
    tokens = prompt(context, 40)
    first = context.decode(tokens, logits="all")
    context.memory.clear()
    assert np.array_equal(first, context.decode(tokens, logits="all"))


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_two_sequences_in_one_batch_equal_each_alone(
    tiny: Callable[[str], Path], open_context: Open, arch: str, unified: bool
) -> None:
    path = tiny(arch)
    alone = open_context(path)
    one, two = prompt(alone, 17, seed=1), prompt(alone, 23, seed=2)
    expected = []
    for tokens in (one, two):
        alone.memory.clear()
        expected.append(alone.decode(tokens, logits="all"))
    context = open_context(path, n_ctx=512, n_seq_max=2, kv_unified=unified)
    logits = context.decode([(one, 0), (two, 1)], logits="all")
    assert nmse(np.concatenate(expected), logits) < 1e-6


def test_wanted_rows(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_ctx=512, n_seq_max=2)
    batch = [([5, 6, 7], 0), ([8, 9], 1)]
    every = context.decode(batch, logits="all")
    for wanted, rows in (
        ("last", [2, 4]),
        ("none", []),
        ([True, False, False, True, False], [0, 3]),
        (np.zeros(5, bool), []),
    ):
        context.memory.clear()
        logits = context.decode(batch, logits=wanted)
        assert logits.shape == (len(rows), 300)
        # The output matrix is multiplied with fewer rows, in another order.
        assert np.allclose(logits, every[rows], rtol=1e-4, atol=1e-5)
        assert np.array_equal(context.logits(), logits)


def test_returned_logits_are_copies(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made())
    first = context.decode([1, 2, 3])
    kept = first.copy()
    context.decode(prompt(context, 100), logits="all")
    assert np.array_equal(first, kept)
    context.logits()[:] = 0
    assert context.logits().any()


def test_tokens_that_belong_to_two_sequences(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_seq_max=2, kv_unified=True)
    context.decode([5, 6, 7], seq=[0, 1])
    assert context.memory.pos_max(0) == context.memory.pos_max(1) == 2
    both = context.decode([([8], 0), ([8], 1)])
    assert np.array_equal(both[0], both[1])
    separate = open_context(made(), n_ctx=512, n_seq_max=2)
    with pytest.raises(UsageError, match=r"(?s)2 sequences.*kv_unified"):
        separate.decode([5, 6, 7], seq=[0, 1])


def test_greedy_takes_the_largest_logit_of_each_step(made: Callable[..., Path], open_context: Open) -> None:
    path = made(layers=1)
    context = open_context(path)
    tokens = prompt(context, 6)
    chosen = context.greedy(tokens, 5)
    expected = list(tokens)
    for _ in range(5):
        expected.append(int(forward(path, expected)[-1].argmax()))
    assert chosen == expected[6:]
    assert context.memory.pos_max() == 6 + 5 - 2


def test_embeddings(made: Callable[..., Path], open_context: Open) -> None:
    plain = open_context(made())
    tokens = [5, 6, 7]
    logits = plain.decode(tokens, logits="all")
    context = open_context(made(), embeddings=True, pooling="none")
    assert np.array_equal(context.decode(tokens, logits="last"), logits[-1:])
    assert context.embeddings().shape == (1, 64)
    with pytest.raises(PyggmlError, match="does not keep embeddings"):
        plain.embeddings()
    mean = open_context(made(), embeddings=True, pooling="mean")
    mean.decode(tokens)
    every = open_context(made(), embeddings=True, pooling="none")
    every.decode(tokens, logits="all")
    assert np.allclose(mean.pooled(0), every.embeddings().mean(axis=0), rtol=1e-5)


def test_no_room_changes_nothing(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_ctx=256)
    context.decode(prompt(context, 250))
    with pytest.raises(NoRoomError, match=r"no room for 10 tokens.*256 cells.*sequence 0 ends at 249"):
        context.decode(prompt(context, 10))
    assert context.memory.pos_max() == 249
    assert context.decode([1]).shape == (1, 300)
    with pytest.raises(NoRoomError):
        context.decode(prompt(context, 10))
    with pytest.raises(PyggmlError, match="no logits"):
        context.logits()


def test_abort_callback_ends_the_decode(made: Callable[..., Path], open_context: Open) -> None:
    stop = False
    context = open_context(made(), abort=lambda: stop)
    first = context.decode([1, 2])
    stop = True
    with pytest.raises(AbortedError, match="abort callback ended the decode of 1 tokens"):
        context.decode([3])
    stop = False
    context.memory.clear()
    assert np.array_equal(context.decode([1, 2]), first)


def test_exceptions_of_callbacks_are_raised(made: Callable[..., Path], open_context: Open) -> None:
    def broken() -> bool:
        raise ZeroDivisionError("of the test")

    context = open_context(made(), abort=broken)
    with pytest.raises(ZeroDivisionError, match="of the test"):
        context.decode([1])

    def node(tensor: object, ask: bool) -> bool:
        raise LookupError("a node")

    context = open_context(made(), on_node=node)
    with pytest.raises(LookupError, match="a node"):
        context.decode([1])


@pytest.mark.parametrize("what", ["context", "model"])
@pytest.mark.parametrize("callback", ["on_node", "abort", "log"])
def test_nothing_that_a_decode_uses_can_be_closed_in_its_callback(
    made: Callable[..., Path], open_context: Open, what: str, callback: str
) -> None:
    armed = False
    opened: list[LlamaContext] = []

    def close(*_: object) -> bool:
        if armed:
            (opened[0] if what == "context" else opened[0].model).close()
        return False

    class Closes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            close()

    handler = Closes()
    context = open_context(made(), **({} if callback == "log" else {callback: close}))
    opened.append(context)
    first = context.decode([1, 2, 3])
    armed = True
    logging.getLogger("pyggml.llama").addHandler(handler)
    try:
        with pytest.raises(InUseError, match="cannot be closed now: a call that has not returned uses"):
            # Too many for the cache, which is a line in the log.
            context.decode([1] * (254 if callback == "log" else 1))
    finally:
        logging.getLogger("pyggml.llama").removeHandler(handler)
    armed = False
    context.memory.clear()
    assert np.array_equal(context.decode([1, 2, 3]), first)


def test_the_model_cannot_be_closed_while_a_context_is_made(
    made: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyggml.llama")
    model = Model.load(made(), devices=())

    class Closes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            model.close()

    handler = Closes()
    logging.getLogger("pyggml.llama").addHandler(handler)
    try:
        with pytest.raises(InUseError, match=r"model .* cannot be closed now"):
            LlamaContext(model, n_ctx=256)
    finally:
        logging.getLogger("pyggml.llama").removeHandler(handler)
    with model, LlamaContext(model, n_ctx=256, threads=1) as context:
        assert context.decode([1]).shape == (1, 300)


def test_a_computing_context_cannot_be_used_in_its_callback(
    made: Callable[..., Path], open_context: Open
) -> None:
    uses: list[Callable[[], object]] = []

    context = open_context(made(), on_node=lambda *_: bool(uses and uses[0]()))
    context.decode([1])
    for use in (
        lambda: context.decode([2]),
        lambda: context.memory.clear(),
        lambda: context.memory.seq_rm(0),
        lambda: context.memory.pos_max(0),
        lambda: context.save_state(),
        lambda: context.logits(),
    ):
        uses[:] = [use]
        with pytest.raises(InUseError, match="is computing\nUse it, and its memory, after that call"):
            context.decode([3])
    uses.clear()
    context.memory.clear()
    assert context.decode([1]).shape == (1, 300)


def test_eval_callback_sees_every_layer(made: Callable[..., Path], open_context: Open) -> None:
    from pyggml.native.load import load

    ffi, names = load().ffi, []

    def node(tensor: object, ask: bool) -> bool:
        names.append(ffi.string(tensor.name).decode())  # type: ignore[attr-defined]
        return not ask

    open_context(made(layers=2), on_node=node).decode([1])
    assert {"l_out-0", "l_out-1", "result_output"} <= set(names)


@pytest.mark.isolated
def test_an_eval_callback_reads_sums_over_devices(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices
) -> None:
    from pyggml.native.load import load

    virtual_devices(2)
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib

    def sums(**where: Any) -> dict[str, Floats]:
        found = {}

        def node(tensor: Any, ask: bool) -> bool:
            name = ffi.string(tensor.name).decode()
            wanted = name.startswith("ffn_out")
            if wanted and not ask:
                found[name] = np.empty(lib.ggml_nelements(tensor), np.float32)
                target = ffi.from_buffer("char[]", found[name])
                lib.ggml_backend_tensor_get(tensor, target, 0, lib.ggml_nbytes(tensor))
            return wanted if ask else True

        open_context(made(layers=2), on_node=node, flash_attn=True, **where).decode([1, 2, 3])
        return found

    expected, actual = sums(), sums(devices=["VDEV0", "VDEV1"], split_mode="tensor")
    assert set(actual) == {"ffn_out-0", "ffn_out-1"}
    for name, values in actual.items():
        assert nmse(expected[name], values) < 1e-4


def test_perf_counts_tokens(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made())
    context.reset_perf()
    context.decode(prompt(context, 30))
    context.decode([1])
    context.decode([2])
    perf = context.perf
    assert (perf.prompt_tokens, perf.eval_tokens) == (30, 2)
    assert perf.prompt_ms > 0 and perf.eval_ms > 0
