"""Batches that llama.cpp would catch too late, misread or abort on; and random calls, valid or not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.builder.record import Build
from pyggml.errors import UsageError
from pyggml.llama.batch import BatchLimits, make_batch

from .conftest import Open

LIMITS = BatchLimits(tokens=8, vocab=100, sequences=3, shared=True, positions=50, gaps=False)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([([100], 0)], "the tokens of item 0 of the batch: number 0 is 100; it must be 0 to 99"),
        ([([5, -1], 0)], "number 1 is -1; it must be 0 to 99"),
        ([([1 << 40], 0)], "number 0 is 1099511627776"),
        ([([1 << 80], 0)], "must be whole numbers"),
        ([([1.0], 0)], "whole numbers; the type is float64"),
        ([([True], 0)], "whole numbers; the type is bool"),
        ([(["a"], 0)], "must be whole numbers"),
        ([([[1, 2]], 0)], r"one row of numbers; the shape is \(1, 2\)"),
        ([([[1], [2, 3]], 0)], "the tokens of item 0"),
        ([(7, 0)], r"the shape is \(\)"),
        ([([], 0)], "there are none"),
        ([], "the batch has no tokens"),
        ([5], "item 0 of the batch is 5"),
        ([([1],)], "item 0 of the batch is"),
        ([([1], 0), ([1], 3)], "the sequence of item 1 of the batch is 3; it must be 0 to 2"),
        ([([1], -1)], "is -1; it must be 0 to 2"),
        ([([1], 1.0)], "must be a whole number, not 1.0"),
        ([([1], [])], "at least one, and none twice"),
        ([([1], [1, 1])], "at least one, and none twice"),
        ([([1] * 9, 0)], "9 tokens; this context takes 8"),
        ([([1] * 5, 0), ([1] * 4, 1)], "9 tokens; this context takes 8"),
        ([([1, 2], 0, [0])], "2 tokens and 1 positions"),
        ([([1, 2], 0, [0, 2])], "go from 0 to 2 at its token 1; they must be consecutive"),
        ([([1, 2], 0, [1, 0])], "go from 1 to 0"),
        ([([1], 0, -1)], "the position of item 0 of the batch is -1"),
        ([([1], 0, 50)], "position 50; this model has embeddings for 50 positions"),
        ([([1, 2], 0, 0), ([3], 0, 4)], "item 1 of the batch starts at position 4, but sequence 0 ends at 1"),
        ([([1], 2, 3)], "starts at position 3, but sequence 2 ends at 9"),
        ([([1], [0, 2])], "end at different positions: 0 at -1, 2 at 9"),
    ],
)
def test_invalid_items(items: list[object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_batch(items, "last", LIMITS, lambda seq: 9 if seq == 2 else -1)


@pytest.mark.parametrize("wanted", ["some", [True], [1, 0], np.ones((1, 2), bool), None, 3])
def test_invalid_logits_masks(wanted: object) -> None:
    with pytest.raises(UsageError, match=r"logits=|mask of wanted logits"):
        make_batch([([1, 2], 0)], wanted, LIMITS, lambda seq: -1)  # type: ignore[arg-type]


def test_a_batch_in_arrays() -> None:
    batch = make_batch(
        [(np.array([4, 5], np.uint8), [0, 1]), ([6], 2), ([7], 0)],
        "last",
        LIMITS,
        lambda s: 9 if s == 2 else -1,
    )
    assert batch.token.tolist() == [4, 5, 6, 7] and batch.token.dtype == np.int32
    assert batch.pos.tolist() == [0, 1, 10, 2]
    assert batch.counts.tolist() == [2, 2, 1, 1]
    assert batch.seqs.tolist() == [0, 1, 0, 1, 2, 0]
    assert batch.wanted.tolist() == [False, True, True, True]


@pytest.mark.native
def test_refused_batches_change_nothing(made: Callable[..., Path], open_context: Open) -> None:
    context = open_context(made(), n_ctx=512, n_seq_max=2, n_batch=16)
    context.decode([1, 2, 3])
    logits = context.logits()
    for call in (
        lambda: context.decode([300]),
        lambda: context.decode([1], seq=2),
        lambda: context.decode([1] * 17),
        lambda: context.decode([1], pos=5),
        lambda: context.decode([([1], 0)], seq=1),
        lambda: context.encode([1]),
        lambda: context.greedy([1], -1),
    ):
        with pytest.raises(UsageError):
            call()
    assert context.memory.pos_max(0) == 2
    assert np.array_equal(context.logits(), logits)


@pytest.mark.native
def test_position_beyond_a_table_of_positions(tiny: Callable[[str], Path], open_context: Open) -> None:
    context = open_context(tiny("gpt2"))
    end = context.model.n_positions
    with pytest.raises(UsageError, match=f"position {end}; this model has embeddings for {end} positions"):
        context.decode([1], pos=end)
    assert np.isfinite(context.decode([1], pos=end - 1)).all()


@pytest.mark.native
@pytest.mark.parametrize("arch", ["llama", "gemma2", "mamba", "falcon-h1", "gpt2", "deepseek2", "qwen2vl"])
def test_random_calls_survive(tiny: Callable[[str], Path], pyggml_build: Build, arch: str) -> None:
    command = [sys.executable, "-m", "tests.llama.fuzzer", str(tiny(arch)), "7", "250"]
    environment = {**os.environ, "PYGGML_BUILD": str(pyggml_build.directory), "GGML_NO_BACKTRACE": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    survived = re.search(r"survived; (\d+) calls did something", done.stdout)
    assert survived is not None, f"{done.stdout[-600:]}\n{done.stderr[-1500:]}"
    assert int(survived[1]) > 50
