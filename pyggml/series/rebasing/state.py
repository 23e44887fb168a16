"""A rebase that waits: the plan, the decisions so far, and where it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.project import Project
from pyggml.series.rebasing.decisions import Decision
from pyggml.series.rebasing.todo import PlanLine
from pyggml.series.worktree.sequencer import REBASING

KINDS = {
    "conflict": "it conflicts",
    "misfit": "its recorded resolution does not fit any more",
    "confirm": "a hunk is in another function now",
    "edit": "to be edited",
    "build": "it does not build",
    "publish": "the new pin has another series already",
}


@dataclass(frozen=True)
class SavedStop:
    """Where a rebase stopped, as far as going on needs it.

    Attributes:
        kind: as `plan.RebaseStop.kind`, or `publish` (the new pin has a series that differs).
        head: the commit that the private worktree is on.
        mechanical, start: the merge's tree, and the tree that was put into the worktree.
        paths: those that conflict.
        unconfirmed: hunks whose function changed.
    """

    kind: str
    name: str = ""
    number: int = 0
    head: str = ""
    mechanical: str = ""
    start: str = ""
    paths: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RebaseState:
    """A rebase under way.

    Attributes:
        digest: of the old series' files, which must not change meanwhile.
        compiled: trees that were built without an error.
        waiting: where it stopped; None only while it computes.
    """

    source: str
    onto: str
    digest: str
    todo: tuple[PlanLine, ...]
    decisions: Mapping[str, Decision]
    edited: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    compiling: bool = False
    waiting: SavedStop | None = None

    def what(self) -> str:
        """For messages."""
        clause = f"a rebase of pin {self.source} onto {self.onto} is under way"
        if self.waiting is None or self.waiting.kind == "publish":
            return clause
        at = f"patch {self.waiting.name} ({self.waiting.number} of {len(self.todo)})"
        return f"{clause}, stopped at {at}: {KINDS[self.waiting.kind]}"


def rebase_dir(project: Project) -> Path:
    """Where the private worktree and the report of a rebase lie."""
    return (project.root / REBASING.file).parent


def load_rebase(project: Project) -> RebaseState | None:
    """The rebase that waits, or None.

    Raises:
        PyggmlError: its state is damaged.
    """
    return REBASING.load(project, RebaseState)


def forget_rebase(project: Project) -> None:
    """Let no rebase wait; the state goes first, so that a kill in between leaves only a useless directory."""
    REBASING.clear(project)
    shutil.rmtree(rebase_dir(project), ignore_errors=True)
