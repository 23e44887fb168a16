"""Contexts on devices whose queues run late: pipelines, several contexts, states; at once is what is expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape

pytestmark = pytest.mark.native

TOKENS = np.random.default_rng(1).integers(0, 100, 120)
SCHEDULES = pytest.mark.parametrize("schedule", ["late", "random:1", "threads"])
Logits = list[np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schedules") / "deep.gguf"
    make_llama(ModelShape(embd=64, k_size=16, ff=96, vocab=300, layers=4), path)
    return path


def context(loaded: Model, **options: Any) -> LlamaContext:
    options = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 8, "flash_attn": True, "threads": 1, **options}
    return LlamaContext(loaded, **options)


def check(schedule: str, model: Path, run: Callable[[Model], Logits], split_mode: str) -> None:
    """The same bits as at once, and no races."""
    results = []
    for one in ("at-once", schedule):
        with VirtualDevices(3, schedule=one, races=True) as devices:
            with Model.load(model, devices=devices.names, split_mode=split_mode) as loaded:
                results.append(run(loaded))
            assert not devices.races(), devices.races()[0].text
    assert all((a == b).all() for a, b in zip(*results, strict=True))


@SCHEDULES
def test_a_pipeline_over_devices(schedule: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pipelined-copies: twelve micro-batches in four copies of the inputs, each with a graph of its own."""
    monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", "1")

    def run(loaded: Model) -> Logits:
        with context(loaded) as one:
            return [one.decode([(TOKENS[:96], 0)], logits="all"), one.decode([(TOKENS[96:97], 0)])]

    check(schedule, model, run, "layer")


@SCHEDULES
@pytest.mark.parametrize("split_mode", ["layer", "tensor"])
def test_two_contexts_of_one_model(schedule: str, split_mode: str, model: Path) -> None:
    def run(loaded: Model) -> Logits:
        with context(loaded) as first, context(loaded) as second:
            return [
                one.decode([(TOKENS[at : at + 20], 0)], logits="all")
                for at in (0, 20)
                for one in (first, second, first)
            ]

    check(schedule, model, run, split_mode)


@SCHEDULES
@pytest.mark.parametrize("split_mode", ["layer", "tensor"])
def test_streams_of_different_length_with_the_cache_on_the_host(
    schedule: str, split_mode: str, model: Path
) -> None:
    def run(loaded: Model) -> Logits:
        with context(loaded, n_ctx=768, n_seq_max=3, kv_unified=False, offload_kqv=False) as one:
            prompts = [(TOKENS[:50], 0), (TOKENS[50:53], 1), (TOKENS[53:70], 2)]
            steps = [[(TOKENS[at : at + 1], seq) for seq in range(3)] for at in (70, 71)]
            return [one.decode(batch, logits="all") for batch in (prompts, *steps)]

    check(schedule, model, run, split_mode)


@SCHEDULES
@pytest.mark.parametrize("offload_kqv", [True, False])
def test_a_state_is_saved_and_restored_while_another_sequence_decodes(
    schedule: str, offload_kqv: bool, model: Path
) -> None:
    def run(loaded: Model) -> Logits:
        with context(loaded, n_seq_max=2, kv_unified=False, offload_kqv=offload_kqv) as one:
            before = one.decode([(TOKENS[:30], 0), (TOKENS[30:50], 1)], logits="all")
            one.decode([(TOKENS[50:60], 1)], logits="none")  # nobody has waited for it
            state = one.save_state(0)
            one.decode([(TOKENS[60:70], 0), (TOKENS[70:75], 1)], logits="none")
            one.restore_state(state)
            after = one.decode([(TOKENS[75:80], 0), (TOKENS[80:85], 1)], logits="all")
            return [before, after]

    check(schedule, model, run, "layer")
