"""States: a restored context continues bit for bit, and a bad state changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.llama import State

from .conftest import Open, prompt

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    ("arch", "exact"),
    [("llama", True), ("gpt2", True), ("mamba", True), ("falcon-h1", True), ("gemma2", False)],
)
def test_restored_context_continues_bit_for_bit(
    tiny: Callable[[str], Path], open_context: Open, tmp_path: Path, arch: str, exact: bool
) -> None:
    context = open_context(tiny(arch))
    tokens = prompt(context, 30)
    context.decode(tokens)
    state = context.save_state()
    expected = [context.decode([token]) for token in (3, 4, 5)]
    state.save(tmp_path / "stäte file")

    other = open_context(tiny(arch))
    other.decode([9, 9])
    other.restore_state(State.load(tmp_path / "stäte file"))
    assert other.memory.pos_max() == 29
    continued = [other.decode([token]) for token in (3, 4, 5)]
    context.restore_state(bytes(state))
    again = [context.decode([token]) for token in (3, 4, 5)]
    assert np.array_equal(continued, again)
    if exact:
        assert np.array_equal(expected, continued)
    else:
        # The position of the next free cell is not saved: before, it was after the other cells; after restoring,
        # it is a cell that has left the window. The sum over the cells is in another order, so the last bit differs.
        assert np.allclose(expected, continued, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "mamba"])
def test_state_of_one_sequence_goes_into_another(
    tiny: Callable[[str], Path], open_context: Open, arch: str, unified: bool
) -> None:
    context = open_context(tiny(arch), n_ctx=1024, n_seq_max=4, kv_unified=unified)
    context.decode([(prompt(context, 10), 0), (prompt(context, 15, seed=2), 1)])
    state = context.save_state(1)
    expected = context.decode([3], seq=1)
    before = context.save_state(0).data
    context.restore_state(state, 3)
    assert [context.memory.pos_max(seq) for seq in range(4)] == [9, 15, -1, 14]
    continued = context.decode([3], seq=3)
    # In a unified cache the cells are elsewhere, so sums over them are in another order.
    assert np.allclose(expected, continued, rtol=1e-4, atol=1e-6)
    assert context.save_state(0).data == before


def test_bad_states_change_nothing(made: Callable[..., Path], open_context: Open, tmp_path: Path) -> None:
    context = open_context(made())
    tokens = prompt(context, 20)
    context.decode(tokens)
    state = context.save_state()
    blob = bytes(state)
    expected = context.decode([3])
    context.restore_state(state)
    flipped = bytearray(blob)
    flipped[len(blob) // 2] ^= 1
    (tmp_path / "file").write_bytes(blob[: len(blob) // 2])
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: context.restore_state(b""), "was not saved by pyggml"),
        (lambda: context.restore_state(state.data), "was not saved by pyggml"),
        (lambda: context.restore_state(blob[:20]), "cut off or damaged"),
        (
            lambda: context.restore_state(blob.replace(b" 1\n", b" 2\n", 1)),
            "version 2 of pyggml's state format",
        ),
        (lambda: context.restore_state(blob[:-1]), "cut off or damaged"),
        (lambda: context.restore_state(blob + b"x"), "cut off or damaged"),
        (lambda: context.restore_state(bytes(flipped)), "cut off or damaged"),
        (lambda: State.load(tmp_path / "file"), "cut off or damaged"),
        (lambda: State.load(tmp_path / "none"), "cannot read a state from .*none"),
        (lambda: state.save(tmp_path / "no" / "where"), "cannot write the state"),
        (lambda: context.restore_state(state, 0), "is of a whole context"),
        (lambda: context.save_state(1), "the sequence is 1"),
    ]
    # A bad state with a correct checksum reaches upstream's reader, which clears the cache as it goes.
    bad += [
        (lambda cut=cut: context.restore_state(State(state.data[:cut], None, state.origin)), "does not fit")
        for cut in (0, 1, 10, 60, 500, len(state.data) - 1)
    ]
    for call, words in bad:
        with pytest.raises(PyggmlError, match=words):
            call()
        assert context.memory.pos_max() == 19
    assert np.array_equal(context.decode([3]), expected)


def test_state_of_another_kind_of_context(made: Callable[..., Path], open_context: Open) -> None:
    def state(path: Path, **options: object) -> State:
        context = open_context(path, **options)
        context.decode([1, 2, 3])
        return context.save_state()

    here = open_context(made())
    here.decode([5])
    for other, words in (
        (state(made(layers=3)), "layers is 3 there and 2 here"),
        (state(made(embd=96)), "embedding is 96 there and 64 here"),
        (state(made(), type_k="f32"), "type_k is f32 there and f16 here"),
        (state(made(), n_ctx=512, n_seq_max=2), "caches is 2 there and 1 here"),
        (state(made(arch="plamo3", fused_qkv=True)), "architecture is plamo3 there and llama here"),
        (state(made(), flash_attn=False), "does not fit into .*incompatible V transposition"),
    ):
        with pytest.raises(PyggmlError, match=words):
            here.restore_state(other)
        assert here.memory.pos_max() == 0


def test_state_that_is_too_large(made: Callable[..., Path], open_context: Open) -> None:
    large = open_context(made(), n_ctx=512)
    large.decode(prompt(large, 400))
    small = open_context(made(), n_ctx=256)
    small.decode([1, 2])
    with pytest.raises(PyggmlError, match=r"does not fit into .*not enough cells"):
        small.restore_state(large.save_state())
    assert small.memory.pos_max() == 1


def test_no_state_while_a_shift_or_copy_is_pending(made: Callable[..., Path], open_context: Open) -> None:
    """Upstream would save the new positions with the old data."""
    context = open_context(made(), n_ctx=512, n_seq_max=2)
    context.decode([1, 2, 3])
    state = context.save_state()
    for change, words in (
        (lambda: context.memory.seq_add(0, 5), "the shift of sequence 0 by 5"),
        (lambda: context.memory.seq_cp(0, 1), "the copy of sequence 0 to 1"),
    ):
        change()
        with pytest.raises(PyggmlError, match=words):
            context.save_state()
        with pytest.raises(PyggmlError, match=words):
            context.restore_state(state)
        context.decode([1])
        context.save_state()


def test_restoring_discards_the_logits(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made())
    context.decode([1, 2, 3])
    context.restore_state(context.save_state())
    with pytest.raises(PyggmlError, match="no logits"):
        context.logits()
