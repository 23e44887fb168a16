"""How an isolated test's process died: the failed assertion, and the Python stack of the test."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pyggml.processes import signal_name
from pyggml.testing.process import REACH_SECONDS, EndedProcess

STACKS = "Python stack"
"""The first words that pyggml.native.logs.last_words writes after the assertion's text."""

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
# ggml's own `file:line: text`, and the C library's assert() with the program before and the function after.
_ASSERTION = re.compile(r"^(?:[\w.-]+: )?(?P<text>[^:\n]*\.[A-Za-z]+:\d+: .+)$", re.MULTILINE)
_RUNNER = re.compile(r"[/\\](_pytest|pluggy)[/\\]")


@dataclass(frozen=True)
class Frame:
    """A frame of a Python stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Death:
    """The end of a process.

    Attributes:
        name: `SIGABRT`, `timeout`, `exit status 3`.
        reason: a sentence.
        text: the failed assertion, `file:line: text`, if there was one.
        frames: the Python stack of the thread that ran the test, innermost first, without pytest's own.
    """

    name: str
    reason: str
    text: str | None
    frames: tuple[Frame, ...]

    @property
    def aborted(self) -> bool:
        return self.name == "SIGABRT"


def death_of(ended: EndedProcess, timeout: float | None, finished: bool) -> Death | None:
    """How the process died; None if it ended as it should.

    Args:
        timeout: its limit, in seconds.
        finished: it reported everything up to the end of the test.
    """
    hung = ended.overdue or (ended.status == 1 and ended.fault.startswith("Timeout ("))
    threads = _threads(ended.fault)
    frames = _of_test(threads)
    begun = any(message["kind"] == "start" for message in ended.messages)
    if hung:
        limit = f"not finished after {timeout:g} s" if begun else f"not collected within {REACH_SECONDS:g} s"
        more = "" if ended.fault else ", and did not react at all"
        return Death("timeout", f"{limit}{more}; killed", None, frames)
    if ended.status >= 0:
        if finished and ended.status <= max(pytest.ExitCode):
            return None
        where = "after" if finished else "in the middle of" if begun else "before"
        return Death(f"exit status {ended.status}", f"the process ended {where} the test", None, ())
    number = -ended.status
    name = signal_name(number)
    described = signal.strsignal(number) or "unknown"
    reason = f"the process was killed by {name} ({described.lower()})"
    if number == signal.SIGKILL:
        reason += "; by the system if it was out of memory"
    text = _assertion(ended) if number == signal.SIGABRT else None
    return Death(name, reason, text, frames)


def _assertion(ended: EndedProcess) -> str | None:
    written = ended.abort.partition("\n" + STACKS)[0].strip()
    if written:
        return written
    texts = _ASSERTION.findall(ended.outputs.get("stderr", ""))
    return texts[-1].strip() if texts else None


def _threads(fault: str) -> list[tuple[Frame, ...]]:
    """The stacks in faulthandler's last report, that of the thread at fault first."""
    report = re.split(r"^(?:Fatal Python error: |Timeout \()", fault, flags=re.MULTILINE)[-1]
    threads: list[list[Frame]] = []
    current: list[Frame] | None = None
    for line in report.splitlines():
        if thread := _THREAD.match(line):
            current = []
            threads.insert(0 if thread[1] == "Current thread" else len(threads), current)
        elif not line.strip():
            # In Python 3.14, the C stack of the same thread follows.
            current = None
        elif current is not None and (frame := _FRAME.match(line)):
            current.append(Frame(_plain(frame["file"]), int(frame["line"]), frame["function"]))
    return [tuple(thread) for thread in threads]


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), text)


def _of_test(threads: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """The stack of the thread at fault if it runs the test, else of the one that does."""

    def runs_test(thread: tuple[Frame, ...]) -> bool:
        return any(_RUNNER.search(frame.file) for frame in thread)

    chosen = next(filter(runs_test, threads), threads[0] if threads else ())
    return tuple(itertools.takewhile(lambda frame: not _RUNNER.search(frame.file), chosen))
