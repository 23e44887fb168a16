"""Tensors that one device has all of, as with a single KV head: the axis of their split is only a label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.matrix.run import MatrixResult
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape

pytestmark = pytest.mark.native

GOOD = {"device": "within", "host": "identical"}

Lively = Callable[[str], Path]
Matrix = Callable[..., MatrixResult]


def check(result: MatrixResult) -> None:
    """Every row of a split by tensor is within the bound, and the same bits with the cache on the host."""
    split = [record for record in result.records if record.case.run.split_mode == "tensor"]
    assert split
    for record in split:
        run = record.case.run
        assert record.verdict == GOOD[run.kv], f"{run.name} {run.configuration()}: {record.reason}"


def test_one_kv_head_with_a_norm(lively: Lively, matrix: Matrix) -> None:
    """A single token has a single row of K, which looks like a row that is cut."""
    check(matrix(lively("qwen3")))


@pytest.mark.parametrize("heads", [1, 4])
def test_one_kv_head_in_a_cache_of_any_type(tmp_path: Path, matrix: Matrix, heads: int) -> None:
    """f32 is converted before the attention; q8_0 is rotated, as is V after it."""
    shape = ModelShape(heads=heads, kv_heads=1, k_size=64, embd=64, ff=96, vocab=300)
    model = make_llama(shape, tmp_path / "one-head.gguf")
    check(matrix(model, kv_types=("f16", "f32", "q8_0")))


@pytest.mark.parametrize("arch", ["qwen3next", "qwen35"])
@pytest.mark.parametrize("shares", [(1.0,), (1.0, 0.0)], ids=["alone", "all of it"])
def test_sequences_of_a_linear_attention_on_one_device(
    lively: Lively, matrix: Matrix, arch: str, shares: tuple[float, ...]
) -> None:
    """A step of several sequences is [n, 1, sequences], and the 1 is not a head."""
    check(matrix(lively(arch), devices=(len(shares),), splits=(shares,), streams=(2,), kv=("device",)))
