"""Where a project stands, at a glance: pin, series, builds, and the command that comes next."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.builder.record import BuildRecord, read_record
from pyggml.builder.source import read_source
from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.worktree.sequencer import EDITING, REBASING
from pyggml.series.worktree.status import SeriesStatus, series_status
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import pin_states


@dataclass(frozen=True)
class BuildState:
    """A build on disk.

    Attributes:
        state: `current` (made of the files as they are), `old` (made of others), `edited` (the files have been edited
            before or since, so nobody can tell), or what it stopped in.
        passed: what its last check said; None if it was not checked.
    """

    variant: str
    state: str
    passed: bool | None


@dataclass(frozen=True)
class Overview:
    """Where a project stands.

    Attributes:
        pin: the default pin; empty if there are no pins.
        pin_state: `fetched` or what is wrong with it.
        source: where the pin comes from.
        series: None while the pin is not fetched.
        builds: those of the pin that the work tree is at.
        next: the commands that come next, with what each is for.
    """

    root: str
    pin: str
    pin_state: str
    source: str
    series: SeriesStatus | None
    builds: tuple[BuildState, ...]
    next: tuple[tuple[str, str], ...]


def project_overview(project: Project) -> Overview:
    """Look at the whole project; nothing is changed.

    Raises:
        PyggmlError: pins, series or repository cannot be read.
    """
    pins = read_pins(project)
    if not pins.pins:
        first = (("pyggml vendor add --help", "add a snapshot of upstream"),)
        return Overview(str(project.root), "", "", "", None, (), first)
    pin = pins.get(None)
    state = next(one.state for one in pin_states(project, pins) if one.pin == pin)
    fetched = state == "fetched"
    series = series_status(project) if fetched else None
    builds = _builds(project) if fetched else ()
    return Overview(
        str(project.root),
        pin.name,
        state,
        pin.source.describe(),
        series,
        builds,
        tuple(_next(state, series, builds)),
    )


def _builds(project: Project) -> tuple[BuildState, ...]:
    try:
        source = read_source(project)
        directories = sorted(path for path in project.build_dir.iterdir() if path.is_dir())
    except (PyggmlError, OSError):
        return ()
    records = [record for path in directories if (record := read_record(path)) and record.pin == source.pin]

    def state(record: BuildRecord) -> str:
        if record.state != "done":
            return record.state
        if record.dirty or source.dirty:
            return "edited"
        return "current" if record.tree == source.tree else "old"

    return tuple(
        BuildState(
            record.variant, state(record), None if record.check is None else bool(record.check.get("ok"))
        )
        for record in records
    )


def _next(
    pin_state: str, series: SeriesStatus | None, builds: tuple[BuildState, ...]
) -> list[tuple[str, str]]:
    """What a user would do now: one command, or those to choose from."""
    if series is None:
        return [("pyggml up", "fetch, patch, build and check")]
    for waits, sequencer in ((series.operation, EDITING), (series.rebase, REBASING)):
        if waits:
            return [(sequencer.resume, "go on"), (sequencer.abort, "give up")]
    if series.elsewhere:
        return [
            (f"pyggml patch apply --pin {series.pin}", f"move the work tree from pin {series.elsewhere}"),
        ]
    if series.outdated or (series.state in ("clean", "partial") and series.total):
        return [("pyggml patch apply", "follow the patch files" if series.outdated else "apply the series")]
    if series.state in ("dirty", "diverged"):
        return [
            ("pyggml patch refresh", "write commits and edits into the patch files"),
            ("pyggml build", "compile them first"),
        ]
    if not any(build.state in ("current", "edited") for build in builds):
        return [("pyggml build", "compile what is applied")]
    if not any(build.passed for build in builds):
        return [("pyggml up", "check the build with upstream's own tests")]
    return [
        ("pyggml patch new NAME", "begin a patch"),
        ("pyggml matrix", "run every model on virtual devices"),
    ]
