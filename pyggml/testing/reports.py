"""An isolated test's process as pytest's own reports."""

from __future__ import annotations

import importlib
import linecache
import os
import re
import warnings
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from _pytest._code.code import ReprEntry, ReprExceptionInfo, ReprFileLocation, ReprTraceback
from _pytest.skipping import evaluate_xfail_marks

from pyggml.testing.death import Death, Frame, death_of
from pyggml.testing.expectation import ExpectedAbort, ProcessDiedError
from pyggml.testing.process import EndedProcess

Phase = Literal["setup", "call", "teardown"]

_MOST_SOURCE = 12
"""Lines that are shown above the line at which the process died."""


def to_document(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    """A report as a JSON document."""
    return cast("dict[str, Any]", config.hook.pytest_report_to_serializable(config=config, report=report))


def reports_of(item: pytest.Item, ended: EndedProcess, timeout: float | None) -> list[pytest.TestReport]:
    """Reports of setup, call and teardown, as far as the process got; the last is always of the teardown.

    Args:
        timeout: the limit of its process, in seconds.
    """
    told = [
        _from_document(item, message["report"]) for message in ended.messages if message["kind"] == "report"
    ]
    problems = [message["text"] for message in ended.messages if message["kind"] == "problem"]
    if problems and not told:
        told.append(_report(item, "setup", "failed", ended, "\n".join(problems)))
        told.append(_report(item, "teardown", "passed", ended))
    finished = bool(told) and told[-1].when == "teardown"
    death = death_of(ended, timeout, finished or any(m["kind"] == "exit" for m in ended.messages))
    if death is not None:
        if finished and told[-1].passed:
            told.pop()
        told.append(_last(item, ended, death, "teardown" if finished else _phase(ended)))
    if not told or told[-1].when != "teardown":
        told.append(_report(item, "teardown", "passed", ended))
    # The process's start and end are part of the test's time.
    told[0].duration += max(0.0, ended.seconds - sum(report.duration for report in told))
    return told


def warn(item: pytest.Item, ended: EndedProcess) -> None:
    """Pass on the test's warnings."""
    for message in ended.messages:
        if message["kind"] == "warning":
            category = _category(message["module"], message["category"])
            location = message["location"]
            item.ihook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": warnings.WarningMessage(
                        message["text"], category, message["file"], message["line"]
                    ),
                    "nodeid": item.nodeid,
                    "when": "runtest",
                    "location": tuple(location) if location else None,
                }
            )


def _category(module: str, name: str) -> type[Warning]:
    try:
        category = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return UserWarning
    return category if isinstance(category, type) and issubclass(category, Warning) else UserWarning


def _from_document(item: pytest.Item, document: dict[str, Any]) -> pytest.TestReport:
    # JSON has no tuples, but pytest expects them.
    for name in ("location", "longrepr"):
        if isinstance(document[name], list):
            document[name] = tuple(document[name])
    for name in ("sections", "user_properties"):
        document[name] = [tuple(pair) for pair in document[name]]
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=document)
    # pytest-xdist may have given the item in this process a longer id.
    report.nodeid = item.nodeid
    return cast("pytest.TestReport", report)


def _phase(ended: EndedProcess) -> Phase:
    phases = [message["when"] for message in ended.messages if message["kind"] == "phase"]
    return cast("Phase", phases[-1]) if phases else "setup"


def _last(item: pytest.Item, ended: EndedProcess, death: Death, when: Phase) -> pytest.TestReport:
    """The report of the phase in which the process died."""
    expectations = [message["expect"] for message in ended.messages if message["kind"] == "expect"]
    expected = ExpectedAbort(**expectations[-1]) if expectations and expectations[-1] else None
    if expected is not None and death.aborted and re.search(expected.match or "", death.text or ""):
        return _report(item, when, "passed", ended)
    instead = None
    if expected is not None:
        instead = f"expected {expected}, and {'its text is another' if death.text else 'it has no text'}"
        if not death.aborted:
            instead = f"expected {expected} instead"
    report = _report(item, when, "failed", ended, _traceback(item, death, instead))
    xfail = None if item.config.option.runxfail else evaluate_xfail_marks(item)
    if xfail and (xfail.raises is None or _raises(xfail.raises)):
        report.outcome = "skipped"
        report.wasxfail = xfail.reason
    return report


def _raises(raises: Any) -> bool:
    if isinstance(raises, type | tuple):
        return isinstance(ProcessDiedError(), raises)
    return bool(raises.matches(ProcessDiedError()))


def _report(
    item: pytest.Item,
    when: Phase,
    outcome: Literal["passed", "failed"],
    ended: EndedProcess,
    longrepr: ReprExceptionInfo | str | None = None,
) -> pytest.TestReport:
    sections = [(f"Captured {name} {when}", text) for name, text in ended.outputs.items() if text]
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=sections if longrepr is not None else (),
        start=ended.began,
        stop=ended.began + ended.seconds,
        user_properties=item.user_properties,
    )


def _traceback(item: pytest.Item, death: Death, instead: str | None) -> ReprExceptionInfo:
    """As pytest shows an exception: the source up to the line, what happened, and where."""
    here = _place(item, death)
    told = [line for text in (death.text, death.reason, instead) if text for line in text.splitlines()]
    lines = [*(_source(here) if death.frames else ()), *(f"E   {line}" for line in told)]
    if len(death.frames) > 1:
        lines.append("E   Python stack (most recent call last):")
        lines += (
            f"E     {_shown(item, frame.file)}:{frame.line}: in {frame.function}"
            for frame in reversed(death.frames)
        )
    where = ReprFileLocation(_shown(item, here.file), here.line, death.name)
    crash = ReprFileLocation(here.file, here.line, f"{death.name}: {death.text or death.reason}")
    entry = ReprEntry(lines, None, None, where, "long")
    return ReprExceptionInfo(reprtraceback=ReprTraceback([entry], None, "long"), reprcrash=crash)


def _place(item: pytest.Item, death: Death) -> Frame:
    """The innermost frame in the test's file, else in the project, else in any file."""
    root = str(item.config.rootpath) + os.sep
    for wanted in (
        lambda file: file == str(item.path),
        lambda file: file.startswith(root),
        lambda file: not file.startswith("<"),
    ):
        for frame in death.frames:
            if wanted(frame.file):
                return frame
    _, line, _ = item.location
    return Frame(str(item.path), (line or 0) + 1, item.name)


def _source(here: Frame) -> list[str]:
    linecache.checkcache(here.file)
    lines = linecache.getlines(here.file)[: here.line]
    if not lines:
        return []
    begin = re.compile(rf"\s*(?:async\s+)?def\s+{re.escape(here.function.rpartition('.')[2])}\b")
    first = next(
        (number for number in reversed(range(len(lines))) if begin.match(lines[number])), len(lines) - 1
    )
    shown = [line.rstrip("\n") for line in lines[max(first, len(lines) - 1 - _MOST_SOURCE) :]]
    return [*(f"    {line}" for line in shown[:-1]), f">   {shown[-1]}"]


def _shown(item: pytest.Item, file: str) -> str:
    directory = item.config.invocation_params.dir
    return str(Path(file).relative_to(directory)) if Path(file).is_relative_to(directory) else file
