"""What patches contain: the files of a patch, its diff, and which patches touch a file or a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.series.stack.trees import tree_diff
from pyggml.series.worktree.applied import applied_here
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.status import series_status
from pyggml.series.worktree.workspace import Workspace

_KINDS = {"A": "added", "D": "deleted", "M": "modified", "R": "renamed", "C": "copied", "T": "modified"}


@dataclass(frozen=True)
class TouchedFile:
    """A file that a patch changes.

    Attributes:
        kind: `added`, `deleted`, `modified`, `renamed` or `copied`.
        old_path: where it was before, if it was renamed or copied.
    """

    path: str
    kind: str
    old_path: str | None = None


@dataclass(frozen=True)
class TouchingPatch:
    """A patch that changes a file, or that a line comes from."""

    number: int
    name: str
    file: str
    applied: bool
    kind: str


@dataclass(frozen=True)
class LineOrigin:
    """Where a line of the work tree comes from.

    Attributes:
        patch: the patch; None if it is upstream's or the user's.
        origin: `patch`, `upstream`, `commit` (of the user, in no patch file) or `edit` (not committed).
        subject: of the commit, unless it is an edit.
        text: the line itself.
    """

    patch: TouchingPatch | None
    origin: str
    subject: str
    text: str


def patch_number(work: Workspace, wanted: str | None) -> int:
    """The number of the patch `wanted`; of the topmost applied one if that is None.

    Raises:
        PyggmlError: there is no such patch, or none is applied.
    """
    if wanted is not None:
        return work.series.find(wanted)
    applied = series_status(work.project, work.pin.name).applied
    if not applied:
        raise PyggmlError("no patch is applied", "Name one, or apply them first: pyggml patch apply")
    return applied


def patch_files(work: Workspace, number: int) -> tuple[TouchedFile, ...]:
    """The files that patch `number` changes, by path.

    Raises:
        PyggmlError: a patch file up to it does not apply.
    """
    work.stack(number)
    return _touched(work, number)


def patch_diff(work: Workspace, number: int, paths: Sequence[str] = ()) -> bytes:
    """The diff of patch `number`, without its message.

    Args:
        paths: only these files, or what lies under them.

    Raises:
        PyggmlError: a patch file up to it does not apply.
    """
    work.stack(number)
    old, new = work.series.trees[number - 1 : number + 1]
    return _diff(work, old, new, paths)


def pending_diff(work: Workspace, paths: Sequence[str] = ()) -> bytes:
    """The diff from the topmost applied patch to the work tree: what `patch refresh` would write into files.

    Commits of the user are in it, and new files after `git add`.

    Raises:
        PyggmlError: the work tree is on another pin, or a patch file does not apply.
    """
    status = series_status(work.project, work.pin.name)
    if status.elsewhere:
        raise PyggmlError(
            f"the work tree is on pin {status.elsewhere}",
            f"Bring it here with: pyggml patch apply --pin {work.pin.name}   (or look there: --pin {status.elsewhere})",
        )
    work.stack(status.applied)
    return _diff(work, work.series.trees[status.applied], work_tree_state(work.git), paths)


def touching_patches(work: Workspace, path: str) -> tuple[TouchingPatch, ...]:
    """The patches that change the file `path`, bottom up, under the names that it had before as well.

    Args:
        path: a file of the source, or a directory.

    Raises:
        PyggmlError: a patch file does not apply.
    """
    work.stack()
    applied = series_status(work.project, work.pin.name).applied
    names, found = {path.rstrip("/")}, []
    for number in range(len(work.series.patches), 0, -1):
        hits = [
            touched
            for touched in _touched(work, number)
            if is_under(touched.path, names) or (touched.old_path and is_under(touched.old_path, names))
        ]
        names |= {touched.old_path for touched in hits if touched.old_path and touched.path in names}
        if hits:
            kinds = sorted({touched.kind for touched in hits})
            found.append(_touching(work, number, applied, ", ".join(kinds)))
    return tuple(reversed(found))


def line_origin(work: Workspace, path: str, line: int) -> LineOrigin:
    """Which patch the line `line` (from 1) of a file in the work tree comes from.

    Source: `git blame`, over the commits of the series and the work tree.

    Raises:
        PyggmlError: there is no such file or line.
    """
    try:
        # Only a negative revision: the newest version is then the file in the work tree.
        text = work.git.text("blame", "--porcelain", f"-L{line},{line}", f"^{work.base}", "--", path)
    except GitError as error:
        raise PyggmlError(
            f"{path}:{line}: {error.stderr.splitlines()[-1].removeprefix('fatal: ')}",
            "Give a tracked file and a line of it as they are in the work tree.",
        ) from error
    head, *rest = text.splitlines()
    commit = head.split(" ", 1)[0]
    fields = dict(row.split(" ", 1) for row in rest if " " in row and not row.startswith("\t"))
    content = next(row[1:] for row in rest if row.startswith("\t"))
    if not commit.strip("0"):
        return LineOrigin(None, "edit", "", content)
    subject = fields.get("summary", "")
    if "boundary" in rest:
        return LineOrigin(None, "upstream", subject, content)
    applied = applied_here(work)
    ids = [patch.commit for patch in applied.patches] if applied else [c.id for c in work.stack()]
    if commit not in ids or ids.index(commit) >= len(work.series.patches):
        return LineOrigin(None, "commit", subject, content)
    number = ids.index(commit) + 1
    return LineOrigin(_touching(work, number, len(ids), "modified"), "patch", subject, content)


def source_path(work: Workspace, path: str) -> str:
    """`path` relative to the source: as it is given, or as it leads there from the working directory."""
    assert work.git.work_tree is not None  # noqa: S101
    root = work.git.work_tree.resolve()
    here = Path.cwd().resolve() / path
    return here.relative_to(root).as_posix() if here.is_relative_to(root) else Path(path).as_posix()


def split_line(path: str) -> tuple[str, int | None]:
    """`FILE:LINE` in two; the line is None if there is none."""
    match = re.fullmatch(r"(.+):([1-9]\d*)", path)
    return (match[1], int(match[2])) if match else (path, None)


def is_under(path: str, names: set[str]) -> bool:
    """Whether `path` is one of `names`, or lies under one that is a directory."""
    return any(path == name or path.startswith(f"{name}/") for name in names)


def _touched(work: Workspace, number: int) -> tuple[TouchedFile, ...]:
    old, new = work.series.trees[number - 1 : number + 1]
    out = work.git.run("diff-tree", "-r", "-z", "--find-renames", "--name-status", old, new)
    parts = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    files = []
    for code in parts:
        if not code:
            continue
        kind, path = _KINDS.get(code[0], "modified"), next(parts)
        moved = code[0] in "RC"
        files.append(TouchedFile(next(parts) if moved else path, kind, path if moved else None))
    return tuple(sorted(files, key=lambda file: file.path))


def _touching(work: Workspace, number: int, applied: int, kind: str) -> TouchingPatch:
    patch = work.series.patches[number - 1]
    return TouchingPatch(number, patch.name, patch.file(number), number <= applied, kind)


def _diff(work: Workspace, old: str, new: str, paths: Sequence[str]) -> bytes:
    only = [f":(top,literal){path}" for path in paths]
    return tree_diff(work.git, old, new, paths=only) if old != new else b""
