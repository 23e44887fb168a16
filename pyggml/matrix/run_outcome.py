"""What became of the process of one case, in words."""

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
"""Begins what pyggml.native.logs.last_words writes after the assertion's text."""
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
"""Refusals that say what the model or the configuration cannot, as llama.cpp and pyggml.llama write them."""
_CATEGORIES = {"FPE": "division by zero", "SEGV": "invalid memory", "ILL": "illegal instruction"}


@dataclass(frozen=True)
class Assertion:
    """A failed assertion of ggml's or llama.cpp's."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}: {self.text}"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        kind: one of KINDS: `refused` by llama.cpp or pyggml in an orderly way, `failed` through a mistake in
            pyggml or the system.
        logits: the file with them, if done.
        reason: a line; empty if done.
        phase: what it was doing.
        supported: False for a refusal that says that the model cannot be run so.
        about: of the model, if done; see model_run.compute_logits.
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
    """What the worker's answer and the output of the case say together.

    Args:
        answer: see worker.
        said: the end of what the process wrote on standard output and error.
        logits: where it was to write them.
        timeout: seconds that it had.
    """
    told: list[dict[str, Any]] = answer["told"]
    seconds = float(answer["seconds"])
    phase = next((each["phase"] for each in reversed(told) if "phase" in each), "")
    last = told[-1] if told else {}
    status = int(answer["status"])
    if answer["hung"]:
        return RunOutcome(run, "hung", seconds, reason=f"no end after {timeout:g} s", phase=phase)
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
    if number == signal.SIGABRT and (found := _TERMINATE.search(said)):
        return " ".join(found[0].split())
    if number == signal.SIGKILL:
        return f"{name}, by the system if it was out of memory"
    more = _CATEGORIES.get(name.removeprefix("SIG"))
    return f"{name} ({more})" if more else name


def _assertion(said: str) -> Assertion | None:
    found = list(_ASSERTION.finditer(said.partition("\n" + _STACKS)[0]))
    if not found:
        return None
    return Assertion(found[-1]["file"], int(found[-1]["line"]), found[-1]["text"].strip())


def _short(message: str, run: Run) -> str:
    """A refusal without what the row says anyway."""
    for words in (f"cannot load {run.model} ", f"cannot load {run.model}: "):
        if message.startswith(words):
            message = re.sub(r"^\([\d,]+ bytes\): ", "", message.removeprefix(words))
    if message.startswith("cannot make a context of "):
        message = message.partition("cache types ")[2].partition(": ")[2] or message
    # Warnings come before it.
    message = message.rpartition("failed to initialize the context: ")[2]
    return message.removeprefix("error loading model: ")
