"""Two contexts of one model split by tensor: they share its weights, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model
from pyggml.testing import assert_identical
from pyggml.testing.fixtures import TinyModel

pytestmark = [pytest.mark.native, pytest.mark.isolated]
Floats = npt.NDArray[np.float32]
PROMPTS = {"a": [[5, 5, 5], [7, 8, 9], [1, 2, 3]], "b": [[5], [6], [7], [8], [9]]}
TURNS = "abbbabba"
"""Before each of a's later turns, b has built its graphs anew several times; a uses its first graph again."""


def context_of(model: Model, host: bool) -> LlamaContext:
    return LlamaContext(model, n_ctx=256, flash_attn=True, threads=1, offload_kqv=not host)


def decode(context: LlamaContext, prompts: Sequence[list[int]]) -> list[Floats]:
    return [context.decode(tokens, logits="all") for tokens in prompts]


def alone(model: Model, host: bool) -> dict[str, list[Floats]]:
    """What each context computes if there is no other one."""
    results = {}
    for name, prompts in PROMPTS.items():
        with context_of(model, host) as context:
            results[name] = decode(context, prompts)
    return results


@pytest.mark.parametrize("host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("arch", ["llama", "gpt-oss"])
def test_taking_turns_changes_nothing(tiny_model: TinyModel, arch: str, host: bool) -> None:
    with (
        VirtualDevices(2) as devices,
        Model.load(tiny_model(arch, "moe"), devices=devices.names, split_mode="tensor") as model,
    ):
        expected = alone(model, host)
        with context_of(model, host) as a, context_of(model, host) as b:
            contexts, steps = {"a": a, "b": b}, {"a": 0, "b": 0}
            for name in TURNS:
                step = steps[name]
                actual = contexts[name].decode(PROMPTS[name][step], logits="all")
                assert_identical(actual, expected[name][step], label=f"{name}, step {step}")
                steps[name] += 1
            assert a.perf.graphs_reused == 2


@pytest.mark.parametrize("host", [True, False], ids=["host", "device"])
def test_two_threads_at_once_change_nothing(tiny_model: TinyModel, host: bool) -> None:
    with (
        VirtualDevices(2) as devices,
        Model.load(tiny_model("llama", "moe"), devices=devices.names, split_mode="tensor") as model,
    ):
        expected = alone(model, host)

        def run(name: str, context: LlamaContext) -> list[list[Floats]]:
            rounds = []
            for _ in range(15):
                context.memory.clear()
                rounds.append(decode(context, PROMPTS[name]))
            return rounds

        with (
            context_of(model, host) as a,
            context_of(model, host) as b,
            ThreadPoolExecutor(2) as pool,
        ):
            for name, rounds in zip("ab", pool.map(run, "ab", (a, b)), strict=True):
                for number, results in enumerate(rounds):
                    for actual, wanted in zip(results, expected[name], strict=True):
                        assert_identical(actual, wanted, label=f"{name}, round {number}")
