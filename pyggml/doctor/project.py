"""Checks the project around the working directory: pins, series, builds, disk space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from pyggml.builder.record import read_record
from pyggml.doctor.report import Row
from pyggml.errors import PyggmlError
from pyggml.project import Project

NEEDED_BYTES = 1 << 30
"""What the source and a first build take together, with some to spare."""


def project_rows(project: Project | None, here: Path, online: bool) -> Iterator[Row]:
    """The state of the project.

    Args:
        project: None if there is none.
        here: the directory whose disk counts in that case.
        online: a registry can be reached, so that a pin can be fetched.
    """
    if project is None:
        yield Row("project", "project", "optional", f"none in {here} or above", "pyggml up (creates one)")
    else:
        yield Row("project", "project", "ok", str(project.root))
        yield from _source(project, online)
        yield from _builds(project)
    yield _disk(here if project is None else project.root, bool(project and project.build_dir.is_dir()))


def _source(project: Project, online: bool) -> Iterator[Row]:
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import pin_states

    try:
        pins = read_pins(project)
        states = pin_states(project, pins)
    except PyggmlError as error:
        yield Row("project", "pins", "missing", error.message, error.hint or "")
        return
    for one in states:
        default = one.pin.name == pins.default
        state, fix = "ok", ""
        if one.state != "fetched":
            # A pin that is not there can be fetched later; one that is wrong must be fetched again.
            fetchable = one.state == "not fetched" and online
            state = "optional" if fetchable or not default else "missing"
            fix = f"pyggml vendor fetch {one.pin.name}"
        text = f"{one.pin.name}, {one.state}" + (", the default" if default else "")
        yield Row("project", "pin", state, text, fix)
    if any(one.state == "fetched" and one.pin.name == pins.default for one in states):
        yield _series(project)


def _series(project: Project) -> Row:
    from pyggml.series.worktree.status import series_status

    try:
        status = series_status(project)
    except PyggmlError as error:
        return Row("project", "series", "missing", error.message, error.hint or "")
    text = f"{status.state}, {status.applied} of {status.total} patches applied"
    if status.elsewhere:
        text = f"the work tree is at pin {status.elsewhere}"
    if status.operation or status.interrupted:
        return Row(
            "project",
            "series",
            "optional",
            f"{text}; stopped in {status.operation or status.interrupted}",
            "pyggml patch status",
        )
    fix = dict.fromkeys(("clean", "partial", "outdated"), "pyggml patch apply")
    fix["diverged"] = "pyggml patch status"
    return Row("project", "series", "ok", text, fix.get(status.state, "") if status.total else "")


def _builds(project: Project) -> Iterator[Row]:
    try:
        directories = sorted(path for path in project.build_dir.iterdir() if path.is_dir())
    except OSError:
        directories = []
    builds = [(path.name, record) for path in directories if (record := read_record(path)) is not None]
    if not builds:
        yield Row("project", "builds", "optional", "none", "pyggml up")
    for name, record in builds:
        done = record.state == "done"
        text = f"{name}, {record.state}"
        if record.tools.get("cuda_version"):
            text += f", CUDA {record.tools['cuda_version']} for {record.tools.get('cuda_architectures', '?')}"
        if record.check is not None:
            text += f", check {'passed' if record.check.get('ok') else 'FAILED'}"
        yield Row("project", "build", "ok" if done else "optional", text, "" if done else record.command)


def _disk(directory: Path, built: bool) -> Row:
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    text = f"{free / 2**30:.1f} GiB free in {directory}"
    if free < NEEDED_BYTES and not built:
        return Row("project", "disk space", "missing", text, "free some space: source and build take 1 GiB")
    return Row("project", "disk space", "ok", text)
