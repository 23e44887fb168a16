"""The zoo: its table, what is made of a tiny model, and that llama.cpp loads the real geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError, UsageError
from pyggml.llama import Model
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.models.zoo import ZooModel, metadata, select_models, weights, zoo, zoo_models

BY_NAME = {model.name: model for model in zoo()}
LLAMA = ZooModel("a", "s", False, "llama-dense", heads=9, kv_heads=3, head_size=64, rotated=32)


def fields(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_the_table() -> None:
    assert len(BY_NAME) == len(zoo()) >= 40
    assert len({model.tiny for model in zoo()}) >= 40
    for model in zoo():
        assert "config.json" in model.source
        assert model.heads % model.kv_heads == 0, model.name
        assert model.head_size % model.narrow == 0 and model.rotated % model.narrow == 0, model.name
        assert bool(model.experts) == bool(model.experts_used) and model.experts_used <= model.experts, (
            model.name
        )
    # What public reports are about.
    qwen3 = BY_NAME["qwen3-32b"]
    assert (qwen3.heads, qwen3.kv_heads, qwen3.head_size) == (64, 8, 128)
    assert BY_NAME["falcon-7b"].heads == 71


def test_choosing() -> None:
    assert [model.name for model in select_models("^falcon-7b$")] == ["falcon-7b"]
    assert {model.tiny for model in select_models("lfm2")} == {"lfm2-dense", "lfm2moe-moe"}
    with pytest.raises(UsageError, match="no model of the zoo matches 'xyz'"):
        select_models("xyz")
    with pytest.raises(UsageError, match="not a regular expression"):
        select_models("(")


def test_metadata_is_the_tiny_models_with_other_numbers(tmp_path: Path) -> None:
    tiny = make_llama(ModelShape(layers=2, vocab=260), tmp_path / "llama-dense.gguf")
    made = {name: value for name, (value, _) in metadata(LLAMA, tiny).items()}
    expected = {
        "block_count": 4,
        "embedding_length": 64,
        "attention.head_count": 9,
        "attention.head_count_kv": 3,
        "attention.key_length": 64,
        "rope.dimension_count": 32,
    }
    assert {name: made[f"llama.{name}"] for name in expected} == expected
    assert len(made["tokenizer.ggml.tokens"]) == 260
    assert "llama.expert_count" not in made
    narrow = {name: value for name, (value, _) in metadata(replace(LLAMA, narrow=4), tiny).items()}
    assert (narrow["llama.embedding_length"], narrow["llama.rope.dimension_count"]) == (9 * 16, 8)
    with pytest.raises(PyggmlError, match=r"llama-dense has no ssm\.state_size"):
        metadata(replace(LLAMA, keys={"ssm.state_size": 1}), tiny)


def test_what_a_tiny_model_says_of_its_layers_is_said_of_all(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "lfm2")
    writer.add_block_count(2)
    writer.add_head_count(2)
    writer.add_head_count_kv([2, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    made = metadata(replace(LLAMA, layers=5), tmp_path / "tiny.gguf")
    assert made["lfm2.attention.head_count_kv"][0] == [3, 0, 3, 0, 3]
    each = metadata(replace(LLAMA, keys={"attention.head_count": [1, 2, 1, 2]}), tmp_path / "tiny.gguf")
    assert each["lfm2.attention.head_count"][0] == [1, 2, 1, 2]


def test_weights_are_lively_and_the_same_everywhere() -> None:
    matrix = weights("blk.0.attn_q.weight", (64, 256))
    assert matrix.std() == pytest.approx(1 / 16, rel=0.05)
    assert weights("blk.0.attn_norm.weight", (512,)).mean() == pytest.approx(1, abs=0.05)
    assert np.array_equal(matrix, weights("blk.0.attn_q.weight", (64, 256)))


def test_a_router_chooses_the_same_experts_for_every_token() -> None:
    embedding = weights("token_embd.weight", (50, 16), routed=True)
    router = weights("blk.3.ffn_gate_inp.weight", (64, 16), routed=True)
    order = np.argsort(embedding @ router.T, axis=1)
    assert (order == order[0]).all()
    assert sorted(order[0]) == list(range(64)) and list(order[0]) != sorted(order[0])
    # Neighbours differ by far more than rounding, and no layer changes that.
    assert np.diff(np.sort(embedding @ router.T, axis=1)).min() > 0.05
    assert (weights("blk.3.ffn_down_exps.weight", (4, 16, 8), routed=True)[:, 0] == 0).all()
    assert (weights("blk.3.attn_output.weight", (16, 8), routed=True)[0] == 0).all()


@pytest.fixture(scope="session")
def made(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("zoo") / "zoo"

    def path(name: str) -> Path:
        try:
            return zoo_models(pyggml_build, [BY_NAME[name]], place)[0]
        except PyggmlError as error:
            if "which this upstream does not write" in error.message:
                pytest.skip(error.message)
            raise

    return path


@pytest.mark.native
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-30b-a3b", "gpt2-xl"])
def test_llama_cpp_loads_the_geometry(made: Callable[[str], Path], name: str) -> None:
    model, path = BY_NAME[name], made(name)
    with Model.load(path, devices=()) as loaded:
        assert (loaded.n_head, loaded.n_head_kv, loaded.n_layer) == (model.heads, model.kv_heads, 4)
        assert loaded.head_size == model.head_size // model.narrow
    assert fields(path).get(f"{loaded_arch(path)}.expert_count", 0) == model.experts


def loaded_arch(path: Path) -> str:
    return str(fields(path)["general.architecture"])


@pytest.mark.native
def test_it_is_written_once_and_a_geometry_that_upstream_refuses_is_an_error(
    made: Callable[[str], Path], pyggml_build: Build
) -> None:
    path = made("smollm2-135m")
    first = (path.stat().st_mtime_ns, path.read_bytes())
    assert made("smollm2-135m").stat().st_mtime_ns == first[0]
    path.with_suffix(".key").unlink()
    assert made("smollm2-135m").read_bytes() == first[1]
    wrong = replace(BY_NAME["smollm2-135m"], name="wrong", rotated=32)
    with pytest.raises(PyggmlError, match=r"llama.cpp does not take the geometry of wrong: .*\n.*zoo.toml"):
        zoo_models(pyggml_build, [wrong], path.parent)
    assert not (path.parent / "wrong.gguf").exists()
