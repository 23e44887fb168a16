"""Scaled weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.models.scaled_weights import deviation, scaled, scaled_models, write_scaled


def drawn(*shape: int, by: float = 0.01) -> np.ndarray:
    return (np.random.default_rng(7).standard_normal(shape) * by).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("blk.0.attn_norm.weight", 1.0, 0.25),
        ("blk.1.attn_q.scale", 1.0, 0.25),
        ("rope_freqs.weight", 1.0, 0.25),
        ("blk.0.attn_q.bias", 0.0, 0.1),
        ("blk.0.attn_norm.bias", 0.0, 0.1),
        ("blk.0.attn_sinks.weight", 0.0, 1.0),
        ("blk.0.ssm_a", -1.0, 0.25),
        ("blk.0.ssm_d", 1.0, 0.25),
    ],
)
def test_vectors(name: str, mean: float, deviation: float) -> None:
    made = scaled(name, drawn(4000), 0.01)
    assert made.dtype == np.float32
    assert made.mean() == pytest.approx(mean, abs=0.05)
    assert made.std() == pytest.approx(deviation, rel=0.05)


def test_matrices_keep_the_variance_of_their_input() -> None:
    matrix = scaled("blk.0.ffn_up.weight", drawn(400, 256), 0.01)
    x = np.random.default_rng(1).standard_normal(256)
    assert (matrix @ x).std() == pytest.approx(1.0, rel=0.15)


def test_the_decay_of_a_state_is_negative() -> None:
    assert (scaled("blk.0.ssm_a", drawn(100_000), 0.01) <= 0).all()


@pytest.mark.parametrize("by", [0.01, 0.1, 1.0])
def test_weights_are_alike_whatever_they_were_drawn_with(by: float) -> None:
    """The default deviation of test-llama-archs went from 0.01 to 0.1."""
    values = drawn(200, 256, by=by)
    assert deviation(values) == by
    expected = scaled("blk.0.ffn_up.weight", drawn(200, 256), 0.01)
    np.testing.assert_allclose(scaled("blk.0.ffn_up.weight", values, by), expected, rtol=1e-6)


def test_what_is_no_model(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "lively" / "a.gguf"
    source.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(PyggmlError, match="cannot write"):
        write_scaled(source, target)
    assert not target.exists() and list(target.parent.iterdir()) == []


@pytest.mark.native
def test_they_are_made_once_and_again_when_the_source_is_newer(tmp_path: Path) -> None:
    from pyggml.models.make import make_llama
    from pyggml.models.shape import ModelShape

    source = make_llama(ModelShape(embd=64, k_size=16, ff=96, vocab=64), tmp_path / "a.gguf")
    (target,) = scaled_models([source])
    assert target.stat().st_size == source.stat().st_size
    first = target.stat().st_mtime_ns
    assert scaled_models([source]) == [target] and target.stat().st_mtime_ns == first
    import os

    os.utime(source, ns=(first + 1, first + 1))
    scaled_models([source])
    assert target.stat().st_mtime_ns > first
