"""Memory operations: what the sequences hold afterwards, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import PyggmlError, UsageError

from .conftest import Floats, Open, nmse, prompt

pytestmark = pytest.mark.native


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2"])
def test_removed_positions_are_forgotten(tiny: Callable[[str], Path], open_context: Open, arch: str) -> None:
    context = open_context(tiny(arch))
    tokens = prompt(context, 20)
    context.decode(tokens[:10])
    expected = context.decode([7])
    context.memory.clear()
    context.decode(tokens)
    context.memory.seq_rm(0, 10)
    assert (context.memory.pos_min(), context.memory.pos_max()) == (0, 9)
    assert nmse(expected, context.decode([7])) < 1e-6


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "mamba", "falcon-h1"])
def test_copied_sequence_continues_like_its_source(
    tiny: Callable[[str], Path], open_context: Open, arch: str, unified: bool
) -> None:
    context = open_context(tiny(arch), n_ctx=768, n_seq_max=3, kv_unified=unified)
    context.decode(prompt(context, 12), seq=0)
    context.memory.seq_cp(0, 2)
    assert (context.memory.pos_max(2), context.memory.pos_max(1)) == (11, -1)
    both = context.decode([([5], 0), ([5], 2)])
    assert nmse(both[0], both[1]) < 1e-10
    context.memory.seq_rm(0)
    assert context.memory.pos_max(0) == -1
    assert context.memory.pos_max(2) == 12


def test_part_of_a_sequence_is_copied_in_a_unified_cache(
    made: Callable[..., Path], open_context: Open
) -> None:
    unified = open_context(made(), n_seq_max=2, kv_unified=True)
    unified.decode(prompt(unified, 12))
    unified.memory.seq_cp(0, 1, 0, 5)
    assert (unified.memory.pos_min(1), unified.memory.pos_max(1)) == (0, 4)
    separate = open_context(made(), n_ctx=512, n_seq_max=2)
    separate.decode(prompt(separate, 12))
    with pytest.raises(PyggmlError, match=r"0 to before 5 of sequence 0 \(0 to 11\) cannot be copied"):
        separate.memory.seq_cp(0, 1, 0, 5)
    assert separate.memory.pos_max(1) == -1


def test_keep_removes_the_others(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_seq_max=3, kv_unified=True)
    context.decode([([1, 2], 0), ([3, 4, 5], 1), ([6], 2)])
    context.memory.seq_keep(1)
    assert [context.memory.pos_max(seq) for seq in range(3)] == [-1, 2, -1]


LAYOUTS = [{}, {"kv_unified": True}, {"kv_per_stream": True}]
LAYOUT_NAMES = ["one tensor", "unified", "per stream"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=LAYOUT_NAMES)
@pytest.mark.parametrize("arch", ["llama", "gemma2", "lfm2", "qwen35", "falcon-h1"])
def test_after_keep_the_others_are_as_if_they_had_never_been(
    tiny: Callable[[str], Path], open_context: Open, arch: str, layout: dict[str, bool]
) -> None:
    options = {"n_ctx": 768, "n_seq_max": 3, "flash_attn": True, **layout}
    expected = open_context(tiny(arch), **options).decode([5, 6], seq=1, logits="all")
    context = open_context(tiny(arch), **options)
    context.decode([([1, 2], 0), ([9, 8, 7], 1), ([4], 2)])
    context.memory.seq_keep(0)
    assert [context.memory.pos_max(seq) for seq in range(3)] == [1, -1, -1]
    assert_same_sequence(context.decode([5, 6], seq=1, logits="all"), expected, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=LAYOUT_NAMES)
@pytest.mark.parametrize("arch", ["llama", "gemma2", "lfm2", "qwen35", "falcon-h1"])
def test_the_state_of_an_empty_sequence_empties_another(
    tiny: Callable[[str], Path], open_context: Open, arch: str, layout: dict[str, bool]
) -> None:
    options = {"n_ctx": 512, "n_seq_max": 2, "flash_attn": True, **layout}
    expected = open_context(tiny(arch), **options).decode([5, 6], seq=1, logits="all")
    context = open_context(tiny(arch), **options)
    context.decode([9, 8, 7], seq=1)
    context.restore_state(context.save_state(0), 1)
    assert context.memory.pos_max(1) == -1
    assert_same_sequence(context.decode([5, 6], seq=1, logits="all"), expected, layout)


def assert_same_sequence(actual: Floats, expected: Floats, layout: dict[str, bool]) -> None:
    """Bit for bit, except in a unified cache, where a sequence can have other cells and so another order of sums."""
    assert nmse(expected, actual) < 1e-6 if layout.get("kv_unified") else np.array_equal(actual, expected)


def test_shifted_sequence_equals_one_decoded_there(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(layers=1), type_k="f32", type_v="f32", flash_attn=False)
    tokens = prompt(context, 10)
    context.decode(tokens, pos=30)
    expected = context.decode([7])
    context.memory.clear()
    context.decode(tokens)
    context.memory.seq_add(0, 30)
    assert (context.memory.pos_min(), context.memory.pos_max()) == (30, 39)
    # With one layer, keys only depend on token and position.
    assert nmse(expected, context.decode([7])) < 1e-8


def test_quantised_keys_are_shifted(tiny: Callable[[str], Path], open_context: Open) -> None:
    context = open_context(tiny("llama"), type_k="q8_0", type_v="q8_0")
    context.decode([1, 2, 3])
    context.memory.seq_add(0, 5)
    assert np.isfinite(context.decode([1])).all()


def test_divided_positions(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made())
    context.decode(prompt(context, 11))
    context.memory.seq_div(0, 2)
    assert context.memory.pos_max() == 5
    assert np.isfinite(context.decode([1])).all()


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("llama", {"type_k": "bf16"}),
        ("qwen2vl", {}),
        ("falcon-h1", {}),
        ("lfm2", {}),
        ("deepseek2", {"type_k": "q8_0", "type_v": "q8_0"}),
    ],
)
def test_caches_that_cannot_be_shifted(
    tiny: Callable[[str], Path], open_context: Open, arch: str, options: dict[str, str]
) -> None:
    context = open_context(tiny(arch), **options)
    context.decode([1, 2, 3])
    assert not context.memory.can_shift
    with pytest.raises(PyggmlError, match=f"cannot be moved: architecture {arch}, K cache"):
        context.memory.seq_add(0, 5)
    with pytest.raises(PyggmlError, match="cannot be moved"):
        context.memory.seq_div(0, 2)
    assert np.isfinite(context.decode([1])).all()


def test_sliding_window_in_every_layer_cannot_be_shifted(
    made: Callable[..., Path], open_context: Open
) -> None:
    context = open_context(made(arch="mimo2", layers=1))
    context.decode([1, 2, 3])
    with pytest.raises(PyggmlError, match="cannot be moved"):
        context.memory.seq_add(0, 5)


def test_recurrent_state_is_only_removed_whole(tiny: Callable[[str], Path], open_context: Open) -> None:
    context = open_context(tiny("mamba"), n_ctx=512, n_seq_max=2)
    first = context.decode([([1, 2, 3], 0), ([4], 1)])
    with pytest.raises(PyggmlError, match="positions 2 to the end of sequence 0 cannot be removed"):
        context.memory.seq_rm(0, 2)
    with pytest.raises(PyggmlError, match="of all sequences cannot be removed"):
        context.memory.seq_rm(None, 0, 2)
    assert context.memory.pos_max(0) == 2
    # Upstream's seq_rm(-1) would leave tails that abort here.
    context.memory.seq_rm()
    assert context.memory.pos_max(0) == context.memory.pos_max(1) == -1
    assert np.array_equal(context.decode([([1, 2, 3], 0), ([4], 1)]), first)


def test_invalid_numbers(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_ctx=512, n_seq_max=2)
    context.decode([1, 2, 3])
    memory = context.memory
    for call, words in (
        (lambda: memory.pos_max(2), "the sequence is 2; it must be 0 to 1"),
        (lambda: memory.seq_rm(-1), "the sequence is -1"),
        (lambda: memory.seq_rm(0, 5, 3), "no positions from 5 to before 3"),
        (lambda: memory.seq_rm(0, -1), "p0 is -1"),
        (lambda: memory.seq_cp(0, 7), "the sequence is 7"),
        (lambda: memory.seq_add(0, 1 << 40), "delta is 1099511627776"),
        (lambda: memory.seq_add(0, (1 << 31) - 2), "ends at 2; adding 2147483646 is too much"),
        (lambda: memory.seq_div(0, 0), "the divisor is 0"),
        (lambda: memory.seq_keep(True), "must be a whole number, not True"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    assert memory.pos_max(0) == 2
