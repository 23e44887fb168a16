"""What a process left, in words."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from pyggml.matrix.run_outcome import RunOutcome, outcome_of

from .conftest import CPU

ASSERTION = "GGML_ASSERT(i_start == cgraph->n_nodes) failed"


def outcome(status: int, *told: dict[str, Any], said: str = "", hung: bool = False) -> RunOutcome:
    answer = {"status": status, "hung": hung, "seconds": 0.5, "messages": list(told)}
    return outcome_of(CPU, answer, said, Path("logits.npy"), 3.0)


def test_done() -> None:
    found = outcome(0, {"phase": "writing"}, {"done": {"kv_heads": 2}})
    assert (found.kind, found.logits, found.about) == ("done", Path("logits.npy"), {"kv_heads": 2})


def test_an_assertion_has_its_file_and_line() -> None:
    said = f"warning: x.cpp\n/src/ggml/src/ggml-backend-meta.cpp:2229: {ASSERTION}\nPython stack\n  a.py:1: b"
    found = outcome(-signal.SIGABRT, {"phase": "step 3 of 8"}, said=said)
    assert (found.kind, found.phase, found.reason) == (
        "died", "step 3 of 8", f"ggml-backend-meta.cpp:2229: {ASSERTION}",
    )  # fmt: skip
    assert found.assertion is not None
    assert (found.assertion.file, found.assertion.line, found.assertion.text) == (
        "/src/ggml/src/ggml-backend-meta.cpp", 2229, ASSERTION,
    )  # fmt: skip


def test_an_exception_that_nobody_caught() -> None:
    said = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no room\n"
    assert "std::runtime_error' what(): no room" in outcome(-signal.SIGABRT, said=said).reason


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGFPE, r"SIGFPE \(division by zero\)"),
        (signal.SIGSEGV, r"SIGSEGV \(invalid memory\)"),
        (signal.SIGKILL, "out of memory"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGABRT, "SIGABRT"),
    ],
)
def test_signals(number: int, words: str) -> None:
    found = outcome(-number, said="x.cpp:1: GGML_ASSERT(old) failed\n" if number == signal.SIGFPE else "")
    assert found.kind == "died"
    assert found.assertion is None
    assert re.search(words, found.reason)


def test_a_hang() -> None:
    found = outcome(-signal.SIGKILL, {"phase": "loading the model"}, hung=True)
    assert (found.kind, found.reason, found.phase) == ("hung", "not finished after 3 s", "loading the model")


@pytest.mark.parametrize(
    ("message", "supported"),
    [
        ("cannot load {model} (1,000 bytes): LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'm'", False),
        ("cannot load {model} (1 bytes): unknown model architecture: 'zlama'", False),
        ("cannot make a context of m with n_ctx 256, 1 sequences and cache types q8_0 and q8_0: "
         "K cache type q8_0 with block size 32 does not divide n_embd_head_k=16", False),
        ("cannot make a context of m with n_ctx 256, 1 sequences and cache types f16 and f16: "
         "SPLIT_MODE_TENSOR requires flash_attn to be enabled", False),
        ("cannot load {model} (1 bytes): unable to allocate VDEV0 buffer", True),
    ],
)  # fmt: skip
def test_refusals(message: str, supported: bool) -> None:
    found = outcome(3, {"refused": message.format(model=CPU.model)})
    assert (found.kind, found.supported) == ("refused", supported)
    # What the row says anyway is left out.
    assert not found.reason.startswith("cannot") and "cache types f16" not in found.reason


def test_a_refusal_without_the_warnings_before_it() -> None:
    words = "kv_per_stream is not supported for mamba with a recurrent state"
    message = (
        "cannot make a context of model 'x' with n_ctx 512, 2 sequences and cache types f16 and f16: "
        f"n_ctx_seq (256) > n_ctx_train (128); failed to initialize the context: {words}"
    )
    assert outcome(3, {"refused": message}).reason == words


def test_a_mistake_of_our_own() -> None:
    found = outcome(1, {"error": "Traceback (most recent call last):\nKeyError: 'x'\n"})
    assert (found.kind, found.reason) == ("failed", "KeyError: 'x'")


def test_an_exit_without_a_word() -> None:
    assert outcome(7).reason == "exit status 7"
