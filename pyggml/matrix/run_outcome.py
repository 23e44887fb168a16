"""How the process of a run ended, in words."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.matrix.cases import Run
from pyggml.processes import signal_name

KINDS = ("done", "died", "hung", "refused", "failed")

_STACKS = "Python stack"
"""The first words that pyggml.native.logs.last_words writes after the assertion's text."""
# ggml's own `file:line: text`, and the C library's assert() with the program before and the function after.
_ASSERTION = re.compile(
    r"^(?:[\w.-]+: )?(?P<file>[^:\n]*\.[A-Za-z]+):(?P<line>\d+): (?P<text>.+)$", re.MULTILINE
)
_TERMINATE = re.compile(r"^terminate called .*(?:\n\s+what\(\): .*)?", re.MULTILINE)
_UNSUPPORTED = re.compile(
    r"not implemented for architecture|unknown model architecture|unsupported model architecture"
    r"|requires flash_attn|requires Flash Attention|packs \d+ values at a time|does not divide"
    r"|cannot have \d+ sequences with kv_unified|embeddings for \d+ positions|cannot be (moved|removed)"
    r"|belongs to \d+ sequences"
)
"""Refusals of llama.cpp and pyggml.llama because the model does not support the configuration."""
_CATEGORIES = {"FPE": "division by zero", "SEGV": "invalid memory", "ILL": "illegal instruction"}


@dataclass(frozen=True)
class Assertion:
    """A failed assertion of ggml or llama.cpp."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}: {self.text}"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        kind: one of KINDS: `refused` by llama.cpp or pyggml with a message, `failed` by an error in pyggml or the
            system.
        logits: their file, if done.
        reason: a line; empty if done.
        phase: what it was doing.
        supported: False for a refusal because the model does not support the configuration.
        about: the model, if done; see model_run.compute_logits.
    """

    run: Run
    kind: str
    seconds: float
    logits: Path | None = None
    reason: str = ""
    phase: str = ""
    assertion: Assertion | None = None
    supported: bool = True
    about: dict[str, Any] | None = None


def outcome_of(run: Run, answer: dict[str, Any], said: str, logits: Path, timeout: float) -> RunOutcome:
    """The outcome, from the worker's answer and the output of the run.

    Args:
        answer: see worker.
        said: the end of its standard output and error.
        logits: the file for them.
        timeout: its time limit in seconds.
    """
    messages: list[dict[str, Any]] = answer["messages"]
    seconds = float(answer["seconds"])
    phase = next((each["phase"] for each in reversed(messages) if "phase" in each), "")
    last = messages[-1] if messages else {}
    status = int(answer["status"])
    if answer["hung"]:
        return RunOutcome(run, "hung", seconds, reason=f"not finished after {timeout:g} s", phase=phase)
    if status < 0:
        assertion = _assertion(said) if -status == signal.SIGABRT else None
        return RunOutcome(
            run, "died", seconds, reason=_death(-status, assertion, said), phase=phase, assertion=assertion
        )
    if "done" in last and status == 0:
        return RunOutcome(run, "done", seconds, logits=logits, phase=phase, about=last["done"])
    if "refused" in last:
        reason = _short(last["refused"], run)
        supported = not _UNSUPPORTED.search(reason)
        return RunOutcome(run, "refused", seconds, reason=reason, phase=phase, supported=supported)
    lines = str(last.get("error", "")).strip().splitlines() or said.strip().splitlines()[-1:]
    reason = lines[-1] if lines else f"exit status {status}"
    return RunOutcome(run, "failed", seconds, reason=reason, phase=phase)


def _death(number: int, assertion: Assertion | None, said: str) -> str:
    name = signal_name(number)
    if assertion is not None:
        return str(assertion)
    if number == signal.SIGABRT and (match := _TERMINATE.search(said)):
        return " ".join(match[0].split())
    if number == signal.SIGKILL:
        return f"{name}, by the system if it was out of memory"
    more = _CATEGORIES.get(name.removeprefix("SIG"))
    return f"{name} ({more})" if more else name


def _assertion(said: str) -> Assertion | None:
    matches = list(_ASSERTION.finditer(said.partition("\n" + _STACKS)[0]))
    if not matches:
        return None
    last = matches[-1]
    return Assertion(last["file"], int(last["line"]), last["text"].strip())


def _short(message: str, run: Run) -> str:
    """A refusal without what the row says already."""
    for words in (f"cannot load {run.model} ", f"cannot load {run.model}: "):
        if message.startswith(words):
            message = re.sub(r"^\([\d,]+ bytes\): ", "", message.removeprefix(words))
    if message.startswith("cannot make a context of "):
        message = message.partition("cache types ")[2].partition(": ")[2] or message
    # Warnings come before it.
    message = message.rpartition("failed to initialize the context: ")[2]
    return message.removeprefix("error loading model: ")
