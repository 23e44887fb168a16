"""Prompts, steps, and who leaves and joins."""

from __future__ import annotations

import pytest

from pyggml.errors import UsageError
from pyggml.matrix.workload import Stage, Workload


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": 0}, "--prompt is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"prompt": 8, "shift": 8}, "leaves nothing"),
        ({"steps": 0, "shift": 1}, "an effect only on later steps"),
    ],
)
def test_work_that_cannot_be(options: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Workload(**options)


def test_prompts_have_different_lengths_and_none_is_empty() -> None:
    assert [Workload(prompt=32).length(seq) for seq in range(4)] == [32, 28, 24, 20]
    for prompt in (1, 2, 3, 7, 32):
        assert all(1 <= Workload(prompt=prompt).length(seq) <= prompt for seq in range(256))


@pytest.mark.parametrize("batch", [None, 1, 3, 5, 7, 100])
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_batches_hold_every_token_once_and_in_order(batch: int | None, streams: int) -> None:
    work = Workload(prompt=8, batch=batch)
    batches = work.batches(streams)
    found = [(seq, token) for one in batches for seq, first, end in one for token in range(first, end)]
    assert found == [(seq, token) for seq in range(streams) for token in range(work.length(seq))]
    sizes = [sum(end - first for _, first, end in one) for one in batches]
    if batch is None:
        assert len(batches) == 1
    else:
        # All are full but the last.
        assert all(size == batch for size in sizes[:-1]) and 0 < sizes[-1] <= batch


def test_rows_name_step_sequence_and_token() -> None:
    work = Workload(prompt=3, steps=2, turnover=False)
    assert [work.length(seq) for seq in range(2)] == [3, 2]
    assert work.rows(2) == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1),
        (1, 0, 3), (1, 1, 2), (2, 0, 4), (2, 1, 3),
    ]  # fmt: skip


def test_one_leaves_joins_again_and_is_alone() -> None:
    work = Workload(prompt=8, steps=8)
    assert [work.length(seq) for seq in range(3)] == [8, 7, 6]
    assert work.stages(3)[:5] == (
        Stage(1, (), ((0, 8, 9), (1, 7, 8), (2, 6, 7))),
        Stage(2, (2,), ((0, 9, 10), (1, 8, 9))),
        Stage(3, (), ((0, 10, 11), (1, 9, 10), (2, 7, 11))),
        Stage(4, (), ((2, 11, 12),)),
        Stage(5, (), ((0, 11, 12), (1, 10, 11), (2, 12, 13))),
    )
    # Another one the next time.
    assert work.stages(3)[5].leave == (1,)


def test_one_sequence_has_nobody_to_leave() -> None:
    assert Workload(steps=3).stages(1) == Workload(steps=3, turnover=False).stages(1)


@pytest.mark.parametrize("batch", [None, 8])
@pytest.mark.parametrize("prompt", [1, 5, 32])
@pytest.mark.parametrize("streams", [2, 3, 8])
def test_with_turnover_nothing_outgrows_the_context(streams: int, prompt: int, batch: int | None) -> None:
    work = Workload(prompt=prompt, steps=40, batch=batch)
    room = batch or work.tokens(streams)
    held = [work.length(seq) for seq in range(streams)]
    left = set()
    for stage in work.stages(streams):
        for seq in stage.leave:
            held[seq] = 0
            left.add(seq)
        for seq, first, end in stage.parts:
            held[seq] += end - first
        assert 0 < sum(end - first for _, first, end in stage.parts) <= room
        # What a context is made for; see model_run.
        assert max(held) <= work.length(0) + work.steps
    assert left == set(range(streams))


@pytest.mark.parametrize("turnover", [True, False])
def test_every_token_of_a_sequence_is_there_once(turnover: bool) -> None:
    work = Workload(prompt=8, steps=9, turnover=turnover)
    rows = work.rows(3)
    for seq in range(3):
        assert [token for _, one, token in rows if one == seq] == list(range(work.count(seq, 3)))
    assert [step for step, _, _ in rows] == sorted(step for step, _, _ in rows)
