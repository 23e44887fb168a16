from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from pyggml.cli.main import cli
from pyggml.errors import PyggmlError, UsageError
from pyggml.models.make import make_llama, tensor_plans, weights
from pyggml.models.shape import ModelShape

from .conftest import TEXT, Bench

SMALL = {"heads": 2, "kv_heads": 1, "k_size": 4, "layers": 1, "embd": 8, "ff": 6, "vocab": 10, "context": 32}
WEIGHTS = "a1361eea3b5663133efbe6ca66a761eedc4d431aede0c832922ff4bc229b1c1b"


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {one.name: np.array(one.data) for one in reader.tensors}


def make(path: Path, **shape: Any) -> Path:
    return make_llama(ModelShape(**shape), path)


def test_file_says_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.gguf", heads=6, kv_heads=3, k_size=16, v_size=24, layers=3, embd=40, ff=20, vocab=300
    )
    fields, arrays = read(path)
    assert fields["general.architecture"] == "mimo2"
    assert fields["mimo2.attention.head_count"] == 6
    assert fields["mimo2.attention.head_count_kv"] == 3
    assert fields["mimo2.attention.key_length"] == 16
    assert fields["mimo2.attention.value_length"] == 24
    assert fields["mimo2.block_count"] == 3
    assert fields["mimo2.vocab_size"] == len(fields["tokenizer.ggml.tokens"]) == 300
    assert arrays["blk.2.attn_q.weight"].shape == (96, 40)
    assert arrays["blk.2.attn_k.weight"].shape == (48, 40)
    assert arrays["blk.2.attn_v.weight"].shape == (72, 40)
    assert arrays["blk.2.attn_output.weight"].shape == (40, 144)
    assert {name.split(".")[1] for name in arrays if name.startswith("blk.")} == {"0", "1", "2"}


def test_architecture_follows_the_head_sizes() -> None:
    assert ModelShape(k_size=64).architecture == "llama"
    assert ModelShape(k_size=64, v_size=64).architecture == "llama"
    assert ModelShape(k_size=64, v_size=32).architecture == "mimo2"


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_fused_matrix_is_the_separate_ones_stacked(tmp_path: Path, kind: str) -> None:
    shape = {"k_size": 32, "v_size": 64, "embd": 64, "ff": 32, "layers": 1, "type": kind}
    _, separate = read(make(tmp_path / "separate.gguf", **shape))
    _, fused = read(make(tmp_path / "fused.gguf", fused_qkv=True, **shape))
    stacked = np.concatenate([separate[f"blk.0.attn_{letter}.weight"] for letter in "qkv"])
    assert np.array_equal(fused["blk.0.attn_qkv.weight"], stacked)
    for name in fused.keys() & separate.keys():
        assert np.array_equal(fused[name], separate[name])


def test_same_shape_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    files = [make(tmp_path / f"{n}.gguf", **SMALL, seed=seed) for n, seed in enumerate((1, 1, 2))]
    one, same, other = (path.read_bytes() for path in files)
    assert one == same
    assert one != other


def test_weights_are_the_same_on_every_machine() -> None:
    """Other bytes would mean that earlier measurements cannot be compared any more."""
    data = weights("blk.0.attn_q.weight", (8, 5), 1).astype("<f4").tobytes()
    assert hashlib.sha256(data).hexdigest() == WEIGHTS


def test_matrices_keep_the_variance() -> None:
    values = weights("x", (400, 300), 3)
    assert abs(float(values.mean())) < 0.001
    assert abs(float(values.var()) * 300 - 1.0) < 0.02
    norm = weights("norm", (5000,), 3)
    assert 0.75 <= norm.min() < norm.max() <= 1.25


def test_quantised_weights_are_near_the_exact_ones(tmp_path: Path) -> None:
    path = make(tmp_path / "q.gguf", heads=2, kv_heads=2, k_size=32, embd=32, ff=32, layers=1, type="q8_0")
    reader = gguf.GGUFReader(path)
    one = next(one for one in reader.tensors if one.name == "blk.0.ffn_up.weight")
    assert one.tensor_type == gguf.GGMLQuantizationType.Q8_0
    exact = weights("blk.0.ffn_up.weight", (32, 32), 1)
    # Half a step of 127, and the rounding of the scale to f16.
    assert np.abs(gguf.dequantize(one.data, one.tensor_type) - exact).max() < np.abs(exact).max() / 220
    norm = next(one for one in reader.tensors if one.name == "output_norm.weight")
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32


def test_small_vocabulary_has_no_text(tmp_path: Path) -> None:
    fields, _ = read(make(tmp_path / "a.gguf", **SMALL))
    assert fields["tokenizer.ggml.model"] == "none"
    assert "tokenizer.ggml.tokens" not in fields


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"heads": 4, "kv_heads": 3}, "4 heads cannot share 3 KV heads"),
        ({"heads": 2, "kv_heads": 4}, "2 heads cannot share 4 KV heads"),
        ({"heads": 0}, "--heads 0"),
        ({"kv_heads": -1}, "--kv-heads -1"),
        ({"layers": 0}, "--layers 0"),
        ({"layers": 513}, "--layers 513"),
        ({"vocab": 1}, "--vocab 1"),
        ({"embd": 1 << 40}, "--embd"),
        ({"seed": -1}, "--seed -1"),
        ({"k_size": 63}, "the K head size 63 is odd"),
        ({"k_size": 0}, "--k-size 0"),
        ({"v_size": 0}, "--v-size 0"),
        ({"heads": 2.0}, "--heads 2.0 is not a whole number"),
        ({"heads": True}, "--heads True is not a whole number"),
        ({"arch": "llama", "v_size": 32}, "not 64 and 32"),
        ({"arch": "gpt2"}, "architecture 'gpt2' cannot be made"),
        ({"arch": "plamo3"}, "only supports one fused matrix"),
        ({"type": "q4_0"}, "no weight type 'q4_0'"),
        ({"type": "q8_0", "ff": 100}, "--ff is 100"),
        ({"type": "q8_0", "heads": 3, "kv_heads": 1, "v_size": 20}, "--heads times --v-size is 60"),
    ],
)
def test_invalid_shapes(shape: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ModelShape(**shape)


def test_other_files_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(b"dear reader")
    with pytest.raises(UsageError, match="not a GGUF file"):
        make(path, **SMALL)
    assert path.read_bytes() == b"dear reader"
    with pytest.raises(UsageError, match="is a directory"):
        make(tmp_path, **SMALL)
    old = make(tmp_path / "a.gguf", **SMALL)
    before = old.read_bytes()
    assert make(old, **SMALL, seed=2).read_bytes() != before


def test_disk_that_is_full_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.gguf", **SMALL)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(PyggmlError, match="No space left"):
        make(path, **SMALL, seed=2)
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".a*")) == []


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "a b.gguf"
    arguments = [
        "model",
        "make",
        str(file),
        "--heads",
        "2",
        "--kv-heads",
        "1",
        "--k-size",
        "192",
        "--ff",
        "8",
    ]
    arguments += ["--v-size", "128", "--layers", "1", "--embd", "16", "--vocab", "260", "--context", "64"]
    result = CliRunner().invoke(cli, [*arguments, "--fused-qkv", "--type", "f16", "--seed", "7"])
    assert result.output == f"{file}\n"
    fields, arrays = read(file)
    assert fields["mimo2.context_length"] == 64
    assert arrays["blk.0.attn_qkv.weight"].shape == (2 * 192 + 192 + 128, 16)
    assert arrays["blk.0.attn_qkv.weight"].dtype == np.float16
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)
    assert document["bytes"] == file.stat().st_size
    assert document["shape"]["arch"] == "mimo2"


SHAPES: list[dict[str, Any]] = [
    {"heads": 4, "kv_heads": 4},
    {"heads": 4, "kv_heads": 2, "fused_qkv": True},
    {"heads": 9, "kv_heads": 3, "k_size": 64, "type": "q8_0"},
    {"heads": 8, "kv_heads": 1, "k_size": 128, "type": "f16"},
    {"heads": 1, "kv_heads": 1, "k_size": 2, "layers": 1, "embd": 5, "ff": 3, "vocab": 2, "context": 32},
    {"heads": 4, "kv_heads": 4, "k_size": 192, "v_size": 128},
    {"heads": 4, "kv_heads": 2, "k_size": 192, "v_size": 128, "fused_qkv": True},
    {"heads": 3, "kv_heads": 1, "k_size": 34, "v_size": 51, "layers": 5, "embd": 33},
    {"heads": 4, "kv_heads": 2, "k_size": 64, "v_size": 96, "layers": 1, "type": "q8_0"},
    {"arch": "mimo2", "fused_qkv": True},
    {"arch": "plamo3", "fused_qkv": True, "k_size": 192, "v_size": 128},
    {"arch": "plamo3", "fused_qkv": True, "heads": 3, "kv_heads": 3, "v_size": 32, "type": "q8_0"},
]


@pytest.mark.native
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: ModelShape(**shape).name)
def test_llama_cpp_loads_and_decodes_it(tmp_path: Path, bench: Bench, shape: dict[str, Any]) -> None:
    path = make(tmp_path / "model.gguf", **shape)
    elements = sum(tensor.count for tensor in tensor_plans(ModelShape(**shape)))
    for flash_attention in (0, 1):
        rows = bench(path, "-fa", flash_attention)
        assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(16, 0), (0, 4)]
        assert rows[0]["model_n_params"] == elements


@pytest.mark.native
@pytest.mark.parametrize("v_size", [64, 32])
def test_fused_and_separate_compute_the_same(
    tmp_path: Path, perplexity: Callable[[Path], str], v_size: int
) -> None:
    perplexities = {
        perplexity(make(tmp_path / f"{fused}.gguf", v_size=v_size, fused_qkv=fused))
        for fused in (False, True)
    }
    assert len(perplexities) == 1
    # Random logits of variance 1 over 512 tokens give about 512 times the root of e; a broken graph 512 or NaN.
    assert 600 < float(perplexities.pop()) < 1200


@pytest.mark.native
def test_text_becomes_one_token_a_byte(tmp_path: Path, perplexity: Callable[[Path], str]) -> None:
    """llama-perplexity refuses a text shorter than two contexts (256 tokens), but accepts these 2,900 bytes."""
    assert len(TEXT.encode()) > 2900
    assert float(perplexity(make(tmp_path / "a.gguf", vocab=260, layers=1))) > 200
