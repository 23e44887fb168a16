"""The private worktree of a rebase: what the user left in it, and whether that can be a resolution."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.rebasing.state import SavedStop, rebase_dir
from pyggml.series.stack.trees import tree_reader
from pyggml.series.worktree.files import changed_paths, check_ready, edits, work_tree_state
from pyggml.series.worktree.sequencer import REBASING

_MARKS = (b"<<<<<<< ", b"||||||| ", b">>>>>>> ")


def private_tree(project: Project, onto: str) -> Path:
    return rebase_dir(project) / onto / "tree"


def resolved_tree(git: Git, stop: SavedStop, removable: Collection[str]) -> str:
    """The tree of the worktree's files; its objects are in the worktree's own repository.

    Args:
        git: the worktree's repository.
        removable: paths that may be missing.

    Raises:
        PyggmlError: git was used there for more than `add`, `rm` and `checkout` of files, conflict marks are
            left, a file is gone, or there are files that git does not know.
    """
    where = git.work_tree
    check_ready(git)
    if (git.git_dir / "index.lock").exists():
        raise PyggmlError(
            f"{where}: another git is at work there, or one was killed",
            f"Wait for it, or remove {git.git_dir / 'index.lock'}; then: {REBASING.resume}",
        )
    if git.resolve("HEAD") != stop.head:
        raise PyggmlError(
            f"{where}: HEAD was moved there, by a commit or a reset",
            f"Keep the files and put HEAD back: git -C {where} reset --soft {stop.head[:12]}; then: {REBASING.resume}",
        )
    if git.resolve("refs/stash") is not None:
        raise PyggmlError(
            f"{where}: edits are stashed there",
            f"Bring them back (git -C {where} stash pop) or drop them; then: {REBASING.resume}",
        )
    changed = edits(git)
    untracked = changed.untracked
    if untracked:
        raise PyggmlError(
            f"{where / untracked[0] if where else untracked[0]} is not known to git: is it part of the patch?",
            f"If so, `git -C {where} add` it, else remove it; then: {REBASING.resume}",
        )
    tree = work_tree_state(git)
    for change in changed_paths(git, stop.mechanical, tree):
        if change.new_blob is None and change.path not in removable:
            raise PyggmlError(
                f"{change.path} is gone from {where}: a resolution does not remove files by accident",
                f"Bring it back, or, if the patch is to remove it: {REBASING.resume} --remove {change.path}",
            )
    _refuse_marks(git, stop, tree)
    _refuse_undecided(git, stop, tree, changed.unmerged)
    return tree


def _refuse_undecided(git: Git, stop: SavedStop, tree: str, unmerged: Collection[str]) -> None:
    """A conflict that leaves no marks (a deleted or a binary file) is resolved with `git add` or `git rm`."""
    mechanical, now = tree_reader(git, stop.mechanical), tree_reader(git, tree)
    for path in stop.paths:
        if path in unmerged and mechanical(path) == now(path):
            command = "rm --cached" if now(path) is None else "add"
            raise PyggmlError(
                f"{path} conflicts and is as the merge left it in {git.work_tree}",
                f"If that is right: git -C {git.work_tree} {command} {path}; then: {REBASING.resume}",
            )


def _refuse_marks(git: Git, stop: SavedStop, tree: str) -> None:
    head, now = tree_reader(git, f"{stop.head}^{{tree}}"), tree_reader(git, tree)
    for path in stop.paths:
        content = now(path) or b""
        lines = content.splitlines()
        known = (head(path) or b"").splitlines()
        for number, line in enumerate(lines, 1):
            rule = line.rstrip() == b"=======" and lines.count(line) > known.count(line)
            if rule or (line.startswith(_MARKS) and line not in known):
                raise PyggmlError(
                    f"{path}, line {number}: a conflict mark is left in {git.work_tree}",
                    f"Resolve it, then: {REBASING.resume}",
                )
