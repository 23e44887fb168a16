"""The series for upstream: numbered patches with a cover letter."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.project import Project
from pyggml.series.patchfile.mail import NamedPatch, PatchMail, mail_date, read_patch
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.format_patch import format_chain, format_patches, has_one_reading
from pyggml.series.worktree.applied import applied_here
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
    with ThreadPoolExecutor(max_workers=2) as meanwhile:
        applied = meanwhile.submit(_format_applied, work)
        stat = meanwhile.submit(
            work.git.text, "diff", "--stat=78,60", "--summary", work.series.base, work.series.trees[-1]
        )
        own = [work.patch_file(number) for number in range(1, len(work.series.patches) + 1)]
        mails: Sequence[Commit | PatchMail] = [
            read_patch(data, patch.name) for data, patch in zip(own, work.series.patches, strict=True)
        ]
        digest = work.digest()
        top, made = applied.result()
        if not (
            _made_of(work, top, digest) and _unnumbered(made) == own and all(map(has_one_reading, mails))
        ):
            mails = stack = work.stack()
            made = format_patches(work.git, stack, numbered=True, chain=made if top == stack[-1].id else None)
            _read_back(work, own, made)
        keep_cr = any(b"\r\n" in data for data in made)
        cover = _cover(work, mails, stat.result(), keep_cr=keep_cr)
    names = [patch.file(number) for number, patch in enumerate(work.series.patches, 1)]
    files = {COVER: cover, **dict(zip(names, made, strict=True))}
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


def _made_of(work: Workspace, top: str, digest: str) -> bool:
    """Whether the commit `top` was made of the patch files as they are, so that they need not be applied again."""
    applied = applied_here(work)
    return (
        applied is not None
        and bool(applied.digest)
        and (applied.commits[-1], applied.digest) == (top, digest)
    )


def _unnumbered(files: Sequence[bytes]) -> list[bytes]:
    return [_NUMBER.sub(b"\\1", data, count=1) for data in files]


def _read_back(work: Workspace, own_files: Sequence[bytes], made: Sequence[bytes]) -> None:
    """Refuse files that do not give the recorded trees."""
    if own_files == _unnumbered(made):
        return
    names = [patch.file(number) for number, patch in enumerate(work.series.patches, 1)]
    mails = [read_patch(data, name) for name, data in zip(names, made, strict=True)]
    # The series' own files have just given them: the same mails give them, too.
    own = (read_patch(data, patch.name) for data, patch in zip(own_files, work.series.patches, strict=True))
    if mails == list(own):
        return
    patches = (NamedPatch(name, mail) for name, mail in zip(names, mails, strict=True))
    commits = apply_patches(work.git, work.base, work.series.base, patches)
    for name, patch, commit in zip(names, work.series.patches, commits, strict=True):
        if commit.tree != patch.tree:
            raise PyggmlError(
                f"{name}: the export does not give its tree when read back: nothing was written"
            )


def _cover(work: Workspace, stack: Sequence[Commit | PatchMail], stat: str, *, keep_cr: bool) -> bytes:
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
