"""The vendored work tree: what is edited in it, and moving it from one tree to another path by path."""

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
from pyggml.series.stack.commits import blob_lines

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
    """What differs from HEAD: tracked paths that were edited or staged, and untracked ones."""

    tracked: tuple[str, ...]
    untracked: tuple[str, ...]
    unmerged: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathChange:
    """One path on the way from one tree to another; None stands for "not there"."""

    path: str
    old_mode: str
    old_blob: str | None
    new_mode: str
    new_blob: str | None


def check_ready(git: Git) -> None:
    """Refuse a repository in the middle of something, or on another branch.

    Raises:
        PyggmlError: a half-finished git operation, a foreign branch, another git at work.
    """
    where = git.work_tree
    for name, what in _HALF_FINISHED.items():
        if (git.git_dir / name).exists():
            raise PyggmlError(
                f"{where}: {what} is half finished there",
                "Finish or abort it with git, then run the command again.",
            )
    status, out = git.status("symbolic-ref", "--quiet", "HEAD")
    branch = out.decode("utf-8", "replace").strip() if status == 0 else "a detached HEAD"
    if branch != BRANCH:
        raise PyggmlError(
            f"{where}: HEAD is on {branch.removeprefix('refs/heads/')}, not on the branch `series`",
            f"Go back with: git -C {where} switch series",
        )


def edits(git: Git) -> Edits:
    """What is edited in the work tree (`git status`, which reads file contents only where times differ)."""
    out = git.run(
        "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules"
    )
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
    """Refuse if an untracked file or directory, ignored ones included, is where a new file must go.

    Raises:
        PyggmlError: something is in the way.
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


def edited_tree(git: Git, base_index: Path) -> str:
    """The tree that the work tree's tracked files make, staged additions included; writes objects only."""
    from pyggml.series.stack.commits import scratch_index

    with scratch_index(git) as index:
        assert index.index is not None  # noqa: S101
        # With its time: git trusts an entry only if it is older than the index (racy-git in git's docs).
        shutil.copy2(base_index, index.index)
        index.run("add", "--update", "--", ".")
        return index.text("write-tree")


def check_settled(git: Git, changes: Sequence[PathChange]) -> None:
    """Before finishing an interrupted move: each path must hold old, new or half-written content.

    Raises:
        PyggmlError: a path holds something else, i.e. it was edited in between.
    """
    assert git.work_tree is not None  # noqa: S101
    ids = [blob for change in changes for blob in (change.old_blob, change.new_blob) if blob is not None]
    contents = dict(zip(ids, blob_lines(git, ids), strict=True))
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
    """Bring every changed path of the work tree to its new content; `index` already holds the new tree.

    Only these paths are touched: the times of all other files stay, and with them the build.
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
