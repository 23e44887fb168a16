"""The files of the vendored work tree: what is edited, and moving them from one tree to another, path by path."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.series.stack.commits import scratch_index
from pyggml.series.stack.trees import read_blobs

BRANCH = "refs/heads/series"
_HALF_FINISHED = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or `git am`",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisect",
}


@dataclass(frozen=True)
class Edits:
    """What differs from HEAD: tracked paths that are edited or staged, and untracked ones."""

    tracked: tuple[str, ...]
    untracked: tuple[str, ...]
    unmerged: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathChange:
    """One path that differs between two trees; a blob of None means that it is not there."""

    path: str
    old_mode: str
    old_blob: str | None
    new_mode: str
    new_blob: str | None

    @property
    def old(self) -> tuple[str, str] | None:
        """Mode and blob before; None if it is not there."""
        return None if self.old_blob is None else (self.old_mode, self.old_blob)

    @property
    def new(self) -> tuple[str, str] | None:
        """Mode and blob afterwards; None if it is not there."""
        return None if self.new_blob is None else (self.new_mode, self.new_blob)


def check_ready(git: Git) -> None:
    """Refuse a repository in the middle of a git operation, or on another branch than `series`.

    Raises:
        PyggmlError: it is.
    """
    where = git.work_tree
    for name, what in _HALF_FINISHED.items():
        if (git.git_dir / name).exists():
            raise PyggmlError(
                f"{where}: {what} is half finished",
                "Finish or abort it with git, then run the command again.",
            )
    status, out = git.status("symbolic-ref", "--quiet", "HEAD")
    branch = out.decode("utf-8", "replace").strip() if status == 0 else "a detached HEAD"
    if branch != BRANCH:
        raise PyggmlError(
            f"{where}: HEAD is on {branch.removeprefix('refs/heads/')}, not on the branch `series`",
            f"Go back with: git -C {where} switch series",
        )


def edits(git: Git, *, untracked_too: bool = True) -> Edits:
    """What is edited in the work tree (`git status`, which reads file contents only where times differ).

    Args:
        untracked_too: look for untracked paths, which needs a walk through all directories.
    """
    which = "--untracked-files=all" if untracked_too else "--untracked-files=no"
    out = git.run("status", "--porcelain=v1", "-z", which, "--no-renames", "--ignore-submodules")
    tracked, untracked, unmerged = [], [], []
    for row in out.decode("utf-8", "surrogateescape").split("\0"):
        if not row:
            continue
        code, path = row[:2], row[3:]
        if code == "??":
            untracked.append(path)
        else:
            tracked.append(path)
            if "U" in code or code in ("AA", "DD"):
                unmerged.append(path)
    return Edits(tuple(tracked), tuple(untracked), tuple(unmerged))


def changed_paths(git: Git, old: str, new: str) -> tuple[PathChange, ...]:
    """Every path that differs between two trees."""
    if old == new:
        return ()
    out = git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", old, new)
    parts = out.decode("utf-8", "surrogateescape").split("\0")
    changes = []
    for meta, path in zip(parts[0::2], parts[1::2], strict=False):
        old_mode, new_mode, old_blob, new_blob, kind = meta.lstrip(":").split(" ")
        changes.append(
            PathChange(
                path, old_mode, None if kind == "A" else old_blob, new_mode, None if kind == "D" else new_blob
            )
        )
    return tuple(changes)


def check_free(git: Git, changes: Iterable[PathChange]) -> None:
    """Refuse if an untracked file or directory, even an ignored one, is where a new file must go.

    Raises:
        PyggmlError: one is.
    """
    assert git.work_tree is not None  # noqa: S101
    vanishing = {change.path for change in changes if change.new_blob is None}
    for change in changes:
        if change.old_blob is not None or change.new_blob is None:
            continue
        target = git.work_tree / change.path
        if os.path.lexists(target) and not _replaced(git.work_tree, target, vanishing):
            raise PyggmlError(
                f"{target} is in the way: it is not tracked, and a patch puts a file there",
                "Move it out of the tree and run the command again.",
            )
        for parent in target.parents:
            if parent == git.work_tree:
                break
            if os.path.lexists(parent) and not stat.S_ISDIR(parent.lstat().st_mode):
                if parent.relative_to(git.work_tree).as_posix() not in vanishing:
                    raise PyggmlError(
                        f"{parent} is in the way: a patch needs a directory there",
                        "Move it out of the tree and run the command again.",
                    )
                break


def _replaced(root: Path, target: Path, vanishing: set[str]) -> bool:
    """Whether the directory `target` only holds files that this very change removes."""
    if not target.is_dir() or target.is_symlink():
        return False
    inside = [path for path in target.rglob("*") if not path.is_dir() or path.is_symlink()]
    return bool(inside) and all(path.relative_to(root).as_posix() in vanishing for path in inside)


def work_tree_state(git: Git) -> str:
    """The tree of the tracked files as they are, edits and staged additions included; writes objects only."""
    with scratch_index(git) as index:
        assert index.index is not None  # noqa: S101
        # The copy keeps its time: git trusts an entry only if it is older than the index (racy-git in git's docs).
        shutil.copy2(git.git_dir / "index", index.index)
        index.run("add", "--update", "--", ".")
        return index.text("write-tree")


def check_unedited(git: Git, changes: Sequence[PathChange]) -> None:
    """Before an interrupted move is finished: each path must have its old, its new or half-written content.

    Raises:
        PyggmlError: a path has other content, so it was edited in between.
    """
    assert git.work_tree is not None  # noqa: S101
    ids = [blob for change in changes for blob in (change.old_blob, change.new_blob) if blob is not None]
    contents = dict(zip(ids, read_blobs(git, ids), strict=True))
    for change in changes:
        target = git.work_tree / change.path
        if _behind_link(git.work_tree, target) or not os.path.lexists(target):
            continue
        known = [contents[blob] for blob in (change.old_blob, change.new_blob) if blob is not None]
        if target.is_symlink():
            now = os.fsencode(target.readlink())
        elif target.is_file():
            now = target.read_bytes()
        else:
            continue
        if not any(content.startswith(now) for content in known):
            raise PyggmlError(
                f"{target} was edited while the last command was interrupted half-way",
                "Save your version elsewhere, remove the file, and run the command again.",
            )


def write_paths(index: Git, changes: Sequence[PathChange]) -> None:
    """Bring every changed path of the work tree to its new content; `index` has the new tree already.

    Only these paths are touched: all other files keep their times, so that a build does not compile them again.
    """
    work_tree = index.work_tree
    assert work_tree is not None  # noqa: S101
    for change in changes:
        if change.new_blob is None:
            _remove(work_tree, work_tree / change.path)
    names = [change.path for change in changes if change.new_blob is not None]
    if names:
        data = "\0".join(names).encode("utf-8", "surrogateescape") + b"\0"
        index.run("checkout-index", "--force", "--index", "-z", "--stdin", stdin=data)


def _behind_link(root: Path, target: Path) -> bool:
    return any(parent.is_symlink() for parent in target.parents if parent != root and root in parent.parents)


def _remove(root: Path, target: Path) -> None:
    if _behind_link(root, target):
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        target.unlink()
    for parent in target.parents:
        if parent == root:
            break
        try:
            parent.rmdir()
        except OSError:
            break
