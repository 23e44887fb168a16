"""`pyggml up` as a function: fetch, apply, build and check; steps that are already done are skipped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyggml.builder.check import CheckResult, check_build
from pyggml.builder.cmake import BuildResult
from pyggml.builder.plan import BuildOptions
from pyggml.builder.progress import Report
from pyggml.builder.run import build_project
from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.upstream.progress import Progress


@dataclass(frozen=True)
class SourceResult:
    """The work tree, fetched and patched.

    Attributes:
        fetched, patched: whether that step had something to do.
        applied, total: numbers of patches.
    """

    pin: str
    fetched: bool
    patched: bool
    applied: int
    total: int


@dataclass(frozen=True)
class UpResult:
    """Where the project stands now."""

    source: SourceResult
    build: BuildResult
    check: CheckResult


def get_source(
    project: Project,
    pin_name: str | None,
    *,
    fetching: Callable[[], AbstractContextManager[Progress]],
    say: Callable[[str], None],
) -> SourceResult:
    """Fetch a pin and apply its series; steps that are already done are skipped.

    Args:
        pin_name: None is the default pin.
        fetching: gives a progress callback for the time of the fetch.
        say: called with a line for each step.

    Raises:
        PyggmlError: the source cannot be fetched, or the work tree holds changes that are saved nowhere else.
    """
    from pyggml.series.worktree.apply import apply_series
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import fetch

    pins = read_pins(project)
    pin = pins.get(pin_name)
    with project.lock("up"), fetching() as fetch_report:
        fetched = fetch(project, pins, pin, fetch_report)
    say(f"{pins.upstream} at pin {pin.name}: {'fetched' if fetched.changed else 'already there'}")
    moved = apply_series(project, pin.name)
    say(f"patches: {moved.applied} of {moved.total} applied" + ("" if moved.changed else ", nothing to do"))
    return SourceResult(pin.name, fetched.changed, moved.changed, moved.applied, moved.total)


def bring_up(
    project: Project,
    pin_name: str | None,
    jobs: int | None,
    *,
    fetching: Callable[[], AbstractContextManager[Progress]],
    step_report: Report,
    say: Callable[[str], None],
) -> UpResult:
    """Bring a project from any state to checked binaries.

    Args:
        pin_name: None is the default pin.
        jobs: parallel compilers; None means as many as fit.
        fetching: gives a progress callback for the time of the fetch.
        step_report: called after each compiled step.
        say: called with a line when a step begins.

    Raises:
        PyggmlError: a step failed; the steps before it stay done.
        UserInterruptError: stopped by the user.
    """
    got = get_source(project, pin_name, fetching=fetching, say=say)
    built = build_project(project, BuildOptions(jobs=jobs), step_report, say)
    if built.build.record.pin != got.pin:
        raise PyggmlError(
            f"the work tree was moved to pin {built.build.record.pin} during the build",
            "Run it again: pyggml up",
        )
    say(f"build {built.build.record.variant}: {built.steps} steps" + ("" if built.steps else ", up to date"))
    check = check_build(built.build, say=say)
    return UpResult(got, built, check)
