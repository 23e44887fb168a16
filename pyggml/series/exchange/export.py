"""The series for upstream: numbered patches with a cover letter."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.project import Project
from pyggml.series.patchfile.mail import NamedPatch, mail_date, read_patch
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.format_patch import format_chain, format_patches
from pyggml.series.worktree.workspace import Workspace, open_workspace
from pyggml.version import __version__

COVER = "0000-cover-letter.patch"
_NUMBER = re.compile(rb"(\nSubject: \[PATCH) \d+/\d+(?=\] )")


@dataclass(frozen=True)
class ExportedSeries:
    """The names of the files; `keep_cr`: `git am` needs `--keep-cr`, since they change lines that end in CRLF."""

    files: tuple[str, ...]
    keep_cr: bool


def export_series(project: Project, directory: Path, pin_name: str | None = None) -> ExportedSeries:
    """Write the series to `directory`, numbered `[PATCH k/n]`, with a cover letter.

    The files are read back and must give the recorded trees before the directory is put in place.

    Raises:
        PyggmlError: the directory is not empty, a message would not survive `git am`, or a file read back gives
            another tree.
    """
    work = open_workspace(project, pin_name)
    if not work.series.patches:
        raise PyggmlError(f"the series on pin {work.pin.name} is empty: nothing to export")
    if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise PyggmlError(f"{directory} exists and is not empty", "Name a directory that does not exist yet.")
    with ThreadPoolExecutor(max_workers=1) as meanwhile:
        applied = meanwhile.submit(_format_applied, work)
        stack = work.stack()
        stat = meanwhile.submit(
            work.git.text, "diff", "--stat=78,60", "--summary", work.series.base, stack[-1].tree
        )
        top, chain = applied.result()
        made = format_patches(work.git, stack, numbered=True, chain=chain if top == stack[-1].id else None)
        files = {
            patch.file(number): data
            for number, (patch, data) in enumerate(zip(work.series.patches, made, strict=True), 1)
        }
        _read_back(work, files)
        keep_cr = any(b"\r\n" in data for data in files.values())
        files = {COVER: _cover(work, stack, stat.result(), keep_cr=keep_cr), **files}
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
    return ExportedSeries(tuple(files), keep_cr)


def _format_applied(work: Workspace) -> tuple[str, list[bytes]]:
    """HEAD, and what git writes for the commits up to it if they look like the whole series; else nothing.

    Most often the series is applied: then git can write while the patch files are read.
    """
    total = len(work.series.patches)
    try:
        rows = work.git.text("rev-list", "--no-commit-header", "--format=%H %T", "-n", str(total + 1), "HEAD")
        commits, trees = zip(*(row.split() for row in reversed(rows.splitlines())), strict=True)
        if (commits[0], *trees) == (work.base, *work.series.trees):
            return commits[-1], format_chain(work.git, work.base, commits[-1], numbered=True)
    except (GitError, ValueError):
        pass  # HEAD is somewhere else
    return "", []


def _read_back(work: Workspace, files: Mapping[str, bytes]) -> None:
    """Refuse files that do not give the recorded trees."""
    own_files = [work.patch_file(number) for number in range(1, len(files) + 1)]
    if own_files == [_NUMBER.sub(b"\\1", data, count=1) for data in files.values()]:
        return
    mails = [read_patch(data, name) for name, data in files.items()]
    # The series' own files have just given them: the same mails give them, too.
    own = (read_patch(data, patch.name) for data, patch in zip(own_files, work.series.patches, strict=True))
    if mails == list(own):
        return
    patches = (NamedPatch(name, mail) for name, mail in zip(files, mails, strict=True))
    commits = apply_patches(work.git, work.base, work.series.base, patches)
    for name, patch, commit in zip(files, work.series.patches, commits, strict=True):
        if commit.tree != patch.tree:
            raise PyggmlError(
                f"{name}: the export does not give its tree when read back: nothing was written"
            )


def _cover(work: Workspace, stack: Sequence[Commit], stat: str, *, keep_cr: bool) -> bytes:
    """The cover letter: each patch and its purpose, the size of the series, and the upstream commit below it."""
    total = len(stack)
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
    if keep_cr:
        lines += ["", "Some lines end in CRLF: apply with git am --keep-cr."]
    lines += [
        "",
        stat,
        "",
        f"base: {work.pins.upstream} {work.pin.commit or work.pin.name}",
        f"pyggml {__version__}",
        "",
    ]
    return "\n".join(lines).encode("utf-8")
