"""One pytest node id, run in a process of its own, and its result."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.prove.bench import run_on_step

TIME_LIMIT_SECONDS = 1800.0
LONGEST_OUTPUT = 20_000
"""Characters of the output that are kept: its end."""
PASSED, FAILED, ERROR, SKIPPED, CRASHED, MISSING, TIMEOUT = (
    "passed",
    "failed",
    "error",
    "skipped",
    "crashed",
    "missing",
    "timeout",
)
_MISSING_STATUS = (4, 5)
"""pytest's exit statuses for a missing node id and for no tests at all."""


@dataclass(frozen=True)
class NodeResult:
    """The result of one node id.

    Attributes:
        outcome: `passed`, `failed`, `error` (in a fixture or the collection), `skipped` (all of it), `crashed`
            (the process died), `missing` or `timeout`.
        text: failure messages and the end of the output, to search for the reason.
    """

    node: str
    outcome: str
    text: str = ""

    @property
    def summary(self) -> str:
        """The most telling line: pytest's `E   …`, or the last."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        marked = [line[1:].strip() for line in lines if line.startswith("E ")]
        return (marked or lines[-1:] or [""])[0][:200]


def run_node(node: str, env: Mapping[str, str], root: Path, limit: float = TIME_LIMIT_SECONDS) -> NodeResult:
    """Run one pytest node id.

    Args:
        env: see Bench.at.
        root: the directory that node ids are relative to.
    """
    with tempfile.TemporaryDirectory(prefix="pyggml-proof-") as scratch:
        report = Path(scratch) / "report.xml"
        # Without capturing: a dying process's output is the reason, and would be lost with it.
        options = ("-p", "no:cacheprovider", f"--junitxml={report}", "-q", "--capture=no")
        command = [sys.executable, "-m", "pytest", *options, node]
        finished = run_on_step(command, env, root, limit)
        status, output = finished.status, finished.text[-LONGEST_OUTPUT:]
        if status is None:
            return NodeResult(node, TIMEOUT, f"{output}\nnot finished after {limit:g} s")
        if status in _MISSING_STATUS:
            return NodeResult(node, MISSING, output)
        counts, text = _read(report)
    if not counts or status < 0:
        return NodeResult(node, CRASHED, f"{output}\nthe process ended with status {status}")
    for outcome in (FAILED, ERROR, PASSED, SKIPPED):
        if counts.get(outcome):
            said = {PASSED: "", SKIPPED: text}.get(outcome, f"{text}\n{output}")
            return NodeResult(node, outcome, said)
    return NodeResult(node, ERROR, output)


def _read(report: Path) -> tuple[dict[str, int], str]:
    """The number of test cases by outcome, and the messages of those that did not pass."""
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(report.read_bytes())  # noqa: S314 -- written by our own child a moment ago
    except (OSError, ElementTree.ParseError):
        return {}, ""
    counts: dict[str, int] = {}
    messages: list[str] = []
    for case in root.iter("testcase"):
        problem = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        tag = "" if problem is None else problem.tag
        outcome = {"failure": FAILED, "error": ERROR, "skipped": SKIPPED}.get(tag, PASSED)
        counts[outcome] = counts.get(outcome, 0) + 1
        if problem is not None:
            messages.append(f"{problem.get('message', '')}\n{problem.text or ''}")
    return counts, "\n".join(messages)
