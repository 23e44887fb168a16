"""The series for others and from others: export for upstream, import of foreign patches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.publish import SeriesChange, write
from pyggml.series.patchfile.foreign import read_foreign
from pyggml.series.patchfile.mail import mail_date, read_patch
from pyggml.series.stack.commits import Commit, apply_mail, scratch_index
from pyggml.series.stack.format_patch import export_commit
from pyggml.series.stack.series_file import Patch, slug
from pyggml.series.worktree.transaction import work_tree_state
from pyggml.series.worktree.workspace import (
    Workspace,
    canonical,
    changing,
    known_position,
    open_workspace,
    other_pin,
    refuse_edits,
    refuse_operation,
)
from pyggml.version import __version__

COVER = "0000-cover-letter.patch"


def export_series(project: Project, directory: Path, pin_name: str | None = None) -> tuple[str, ...]:
    """Write the series to `directory`, numbered `[PATCH k/n]`, with a cover letter.

    The files are read back and must give the recorded trees before the directory is put in place.

    Returns:
        the file names.

    Raises:
        PyggmlError: the directory holds something, a message cannot survive, or the proof fails.
    """
    work = open_workspace(project, pin_name)
    if not work.series.patches:
        raise PyggmlError(f"the series on pin {work.pin.name} is empty: nothing to export")
    if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise PyggmlError(f"{directory} exists and is not empty", "Name a directory that does not exist yet.")
    stack = canonical(work)
    total = len(stack)
    files: dict[str, bytes] = {}
    for number, (patch, commit) in enumerate(zip(work.series.patches, stack, strict=True), 1):
        files[patch.file(number)] = export_commit(work.git, commit, number=number, total=total)
    _prove(work, files)
    files = {COVER: _cover(work, stack), **files}
    beside = directory.with_name(f".{directory.name}.{os.getpid()}.new")
    try:
        beside.mkdir(parents=True)
        for name, data in files.items():
            (beside / name).write_bytes(data)
        if directory.is_dir():
            directory.rmdir()
        beside.rename(directory)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise PyggmlError(f"cannot write {directory}: {error.strerror}", "Nothing was exported.") from error
    return tuple(files)


def _prove(work: Workspace, files: dict[str, bytes]) -> None:
    with scratch_index(work.git) as index:
        index.run("read-tree", work.series.base)
        parent, tree = work.base, work.series.base
        for (name, data), patch in zip(files.items(), work.series.patches, strict=True):
            commit = apply_mail(work.git, index, parent, tree, read_patch(data, name), name).commit
            if commit.tree != patch.tree:
                raise PyggmlError(
                    f"{name}: the export does not give its tree when read back: nothing was written"
                )
            parent, tree = commit.id, commit.tree


def _cover(work: Workspace, stack: Sequence[Commit]) -> bytes:
    """The cover letter: what the series is, patch by patch, on which upstream commit, and its size."""
    total = len(stack)
    stat = work.git.text("diff", "--stat=78,60", "--summary", work.series.base, stack[-1].tree)
    lines = [
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001",
        f"From: {stack[-1].author.name} <{stack[-1].author.email}>",
        f"Date: {mail_date(stack[-1].author.date)}",
        f"Subject: [PATCH 0/{total}] {work.pins.upstream}: {total} patches on {work.pin.name}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
        "",
    ]
    for number, (patch, commit) in enumerate(zip(work.series.patches, stack, strict=True), 1):
        lines.append(f"{number}/{total}  {commit.subject}")
        lines += [f"    {line}" for line in patch.purpose.splitlines() if line.strip()]
        if patch.drop_when:
            lines.append(f"    Can be dropped when: {' '.join(patch.drop_when.split())}")
    lines += [
        "",
        stat,
        "",
        f"base: {work.pins.upstream} {work.pin.commit or work.pin.name}",
        f"pyggml {__version__}",
        "",
    ]
    return "\n".join(lines).encode("utf-8")


def import_patches(project: Project, paths: tuple[Path, ...], pin_name: str | None = None) -> SeriesChange:
    """Put foreign patches on top of the series, in order, all of them or none.

    Every hunk must stand at its stated line or fit in exactly one place; there is no fuzz.

    Raises:
        PyggmlError: not all of the series is applied, or a patch does not apply, is ambiguous, changes
            nothing, or reaches outside the tree; the message names the file and the hunk.
    """
    foreign = read_foreign(paths)
    with changing(project, "patch import", pin_name) as (work, _):
        refuse_operation(work)
        refuse_edits(work, "`patch import`")
        at = known_position(work)
        if at < 0:
            raise other_pin(work)
        if at != len(work.series.patches):
            raise PyggmlError(
                f"{at} of {len(work.series.patches)} patches are applied; an import goes on top of all of them",
                "Run first: pyggml patch apply",
            )
        stack = canonical(work)
        entries = list(zip(work.series.patches, stack, strict=True))
        taken = {patch.name for patch in work.series.patches}
        parent, tree = (stack[-1].id, stack[-1].tree) if stack else (work.base, work.series.base)
        with scratch_index(work.git) as index:
            index.run("read-tree", tree)
            for patch in foreign:
                commit = apply_mail(
                    work.git, index, parent, tree, patch.mail, patch.label, patch.strip
                ).commit
                name = slug(patch.title, taken)
                taken.add(name)
                entries.append((Patch(name, commit.tree), commit))
                parent, tree = commit.id, commit.tree
        return write(work, "patch import", entries, len(entries), work_tree_state(work.git))
