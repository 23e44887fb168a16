"""`pyggml patch verify`: every patch file, applied again, gives what the series records."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.patchfile.mail import NamedPatch, read_patch
from pyggml.series.stack.commits import apply_patches
from pyggml.series.stack.format_patch import format_patch, format_patches
from pyggml.series.stack.series_file import series_patches
from pyggml.series.worktree.workspace import Workspace, open_workspace


@dataclass(frozen=True)
class FileCheck:
    """The result for one patch file; `detail` says what it gives."""

    number: int
    file: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class SeriesCheck:
    """The results for a series."""

    pin: str
    ok: bool
    patches: tuple[FileCheck, ...]


def _verify_all(work: Workspace) -> SeriesCheck:
    """The result for a series without a fault, all files at once.

    Raises:
        PyggmlError: there is a fault somewhere.
    """
    # Every hunk is placed, as if no tree were recorded: one that fits in several places is a fault.
    files = series_patches(work.directory, work.series, recorded=False)
    stack = list(apply_patches(work.git, work.base, work.series.base, files))
    if [commit.tree for commit in stack] != [patch.tree for patch in work.series.patches]:
        raise PyggmlError("a patch gives another tree than the series records")
    format_patches(work.git, stack)
    rows = tuple(
        FileCheck(number, patch.file(number), True, f"tree {patch.tree[:12]}, commit {commit.id[:12]}")
        for number, (patch, commit) in enumerate(zip(work.series.patches, stack, strict=True), 1)
    )
    return SeriesCheck(work.pin.name, True, rows)


def verify_series(project: Project, pin_name: str | None = None) -> SeriesCheck:
    """Apply every file to the tree recorded before it, and compare with the tree recorded after it.

    Each patch is checked on its own, so that one bad file does not hide the state of the others. The commit
    is also exported again and read back.
    """
    work = open_workspace(project, pin_name)
    with contextlib.suppress(PyggmlError):
        return _verify_all(work)
    rows: list[FileCheck] = []
    parent = work.base
    for number, (patch, before) in enumerate(zip(work.series.patches, work.series.trees, strict=False), 1):
        file = patch.file(number)
        try:
            mail = read_patch(work.patch_file(number), file)
            (commit,) = apply_patches(work.git, parent, before, [NamedPatch(file, mail)])
            format_patch(work.git, commit)
            parent = commit.id
            ok = commit.tree == patch.tree
            detail = (
                f"tree {patch.tree[:12]}, commit {parent[:12]}"
                if ok
                else f"gives tree {commit.tree[:12]}, recorded is {patch.tree[:12]}"
            )
        except PyggmlError as error:
            ok, detail = False, error.message.removeprefix(f"{file}: ")
        rows.append(FileCheck(number, file, ok, detail))
    return SeriesCheck(work.pin.name, all(row.ok for row in rows), tuple(rows))
