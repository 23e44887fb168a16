"""What `patch continue` goes on with: an edit that waits, or a conflict on the way through the later patches."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.series.stack.picks import Pick
from pyggml.series.stack.series_file import Patch
from pyggml.series.worktree.applied import AppliedSeries


@dataclass(frozen=True)
class Operation:
    """A change of the series that is under way.

    Attributes:
        doing: the command that began it, e.g. `patch edit v-head-size`.
        kind: `edit` (the work tree is at the patch and waits for edits), `new` (it waits for the edits that
            make a new patch) or `conflict` (`todo[0]` is to be resolved).
        applied: how many patches are applied once it is finished; for `edit`, if no commit is added.
        start_head, start_tree: where the work tree was before, for `patch abort`.
        name, message: of the new patch, for `new`.
        done: the finished patches, bottom up, with their commit ids.
        todo: the picks that are left.
        conflicts: the paths with conflict marks.
        before: what the work tree was made of before it, for `patch abort`.
        series: `Workspace.digest` of the files that `todo` was read from.
    """

    doing: str
    kind: str
    pin: str
    applied: int
    start_head: str
    start_tree: str
    name: str = ""
    message: str = ""
    done: tuple[tuple[Patch, str], ...] = ()
    todo: tuple[Pick, ...] = ()
    conflicts: tuple[str, ...] = ()
    before: AppliedSeries | None = None
    series: str = ""

    def what(self) -> str:
        """For messages."""
        clause = f"`{self.doing}` is under way"
        if self.kind == "conflict":
            clause += f", stopped at a conflict in patch {self.todo[0].patch.name}"
        return clause
