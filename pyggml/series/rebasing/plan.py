"""A rebase as a pure function: old series, new base and decisions in; new commits or the first stop out.

Only objects are written. Going on after a stop is one decision more and the same function again, so that
a rebase that was finished by hand has been replayed by the time it is published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.series.patchfile.hunks import blocks_of, parsed
from pyggml.series.patchfile.mail import Identity
from pyggml.series.rebasing.decisions import Decision, make_resolution, replay
from pyggml.series.rebasing.verdict import (
    CONFLICT,
    EMPTY,
    SKIPPED,
    UPSTREAM,
    Judged,
    Step,
    judge,
    renamed_paths,
)
from pyggml.series.stack.commits import Commit, commit_tree
from pyggml.series.stack.merge import Merge, merge
from pyggml.series.stack.series_file import Patch
from pyggml.series.worktree.workspace import Workspace

PICK, EDIT, SKIP, GONE = "pick", "edit", "skip", "upstream"
Check = Callable[[Step], str | None]


@dataclass(frozen=True)
class Todo:
    """One line of the plan: `pick`, `edit` (stop after the merge), `skip` or `upstream`."""

    action: str
    name: str
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything that decides the outcome.

    Attributes:
        stack: the commits of the old series on its recorded base.
        edited: patches whose `edit` stop is behind us.
    """

    source: Workspace
    stack: Sequence[Commit]
    onto: Workspace
    todo: tuple[Todo, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    edited: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Stop:
    """Where a person is needed.

    Attributes:
        kind: `conflict`, `misfit` (a recorded resolution does not fit), `confirm` (a hunk is in another
            function now), `edit` or `build`.
        head: the commit that the patch goes on, and `ours`, its tree.
        base, theirs: the trees before and after the old patch.
        merged: the mechanical merge.
        start: the tree to begin editing with.
        note: more in words: why a resolution does not fit, what the compiler said.
    """

    kind: str
    number: int
    patch: Patch
    author: Identity
    message: str
    head: str
    ours: str
    base: str
    theirs: str
    merged: Merge
    start: str
    judged: Judged
    note: str = ""

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(move.key for move in self.judged.hunks if move.function_changed))


@dataclass(frozen=True)
class Outcome:
    """The patches that are done, and where it stopped if it did."""

    steps: tuple[Step, ...]
    stop: Stop | None = None


def run_plan(
    plan: Plan,
    report: Callable[[Step], None] = lambda step: None,
    check: Check = lambda step: None,
) -> Outcome:
    """Merge patch by patch onto the new base.

    Args:
        report: called after each patch.
        check: called with each new commit; what it returns stops there (a build that fails).
    """
    git, base = plan.onto.git, plan.onto.pin.tree
    renames = renamed_paths(git, plan.source.pin.tree, base)
    parent, tree = plan.onto.base, base
    steps: list[Step] = []
    for todo in plan.todo:
        step, stop = _one(plan, todo, parent, tree, renames)
        if step is not None and step.commit is not None and (told := check(step)):
            stop = _stopped_by_build(plan, step, parent, tree, told)
        if stop is not None:
            return Outcome(tuple(steps), stop)
        assert step is not None  # noqa: S101
        steps.append(step)
        report(step)
        if step.commit is not None:
            parent, tree = step.commit.id, step.commit.tree
    return Outcome(tuple(steps))


def _one(
    plan: Plan, todo: Todo, parent: str, tree: str, renames: Mapping[str, str]
) -> tuple[Step | None, Stop | None]:
    git, upstream = plan.onto.git, plan.onto.pin.tree
    number = plan.source.series.find(todo.name)
    patch, old = plan.source.series.patches[number - 1], plan.stack[number - 1]
    base, theirs = plan.source.series.trees[number - 1], old.tree
    decision = plan.decisions.get(todo.name, Decision(todo.name))
    if todo.action in (SKIP, GONE):
        judged = judge(git, (base, theirs), tree, tree, upstream, renames, conflicts=False)
        judged = replace(judged, verdict=UPSTREAM if todo.action == GONE else SKIPPED)
        return Step(number, patch, old.subject, judged, tree, "", todo.reason), None
    merged = merge(git, base, tree, theirs)
    result, how, misfit = merged.tree, "", ""
    if decision.resolution is not None:
        try:
            result, how = replay(git, decision.resolution, merged.tree), "replayed"
        except PyggmlError as error:
            misfit = error.message
    open_conflict = bool(merged.stages) and not how
    judged = judge(git, (base, theirs), tree, result, upstream, renames, conflicts=bool(merged.stages))

    def stopped(kind: str) -> tuple[None, Stop]:
        args = (number, patch, old.author, old.message, parent, tree, base, theirs, merged, result, judged)
        return None, Stop(kind, *args, misfit)

    if open_conflict or misfit:
        return stopped("misfit" if misfit else "conflict")
    if todo.action == EDIT and todo.name not in plan.edited:
        return stopped("edit")
    if any(move.function_changed and move.key not in decision.confirmed for move in judged.hunks):
        return stopped("confirm")
    if result == tree:
        reason = f"{len(judged.upstream)} of {judged.total} hunks stand in {plan.onto.pin.name} word for word"
        if judged.verdict == EMPTY:
            reason = "it changes nothing on what comes before it"
        return Step(number, patch, old.subject, judged, merged.tree, how, reason), None
    message = old.message if decision.message is None else decision.message
    commit = commit_tree(git, result, parent, old.author, message)
    new = replace(patch, **decision.entry, tree=result)
    return Step(number, new, commit.subject, judged, merged.tree, how, "", commit), None


def _stopped_by_build(plan: Plan, step: Step, parent: str, tree: str, told: str) -> Stop:
    assert step.commit is not None  # noqa: S101
    base = plan.source.series.trees[step.number - 1]
    theirs = plan.stack[step.number - 1].tree
    merged = merge(plan.onto.git, base, tree, theirs)
    author, message, result = step.commit.author, step.commit.message, step.commit.tree
    args = (step.number, step.patch, author, message, parent, tree, base, theirs, merged, result)
    return Stop("build", *args, step.judged, told)


def change_id(git: Git, before: str, after: str) -> str:
    """An id of what a patch removes and adds, whatever it stands on."""
    digest = hashlib.sha256()
    for block in blocks_of(parsed(git, before, after)):
        for part in (
            block.path.encode("utf-8", "surrogateescape"),
            *block.removed,
            b"\0",
            *block.added,
            b"\0\0",
        ):
            digest.update(part)
    return digest.hexdigest()[:16]


def decided(plan: Plan, steps: Sequence[Step]) -> dict[str, Decision]:
    """The decisions that give exactly `steps` again, in their order."""
    actions = {todo.name: todo for todo in plan.todo}
    found: dict[str, Decision] = {}
    for step in steps:
        name = step.patch.name
        old = plan.decisions.get(name, Decision(name))
        todo = actions[name]
        action = todo.action if todo.action in (SKIP, GONE) else PICK
        change = ""
        resolution = None
        if action != PICK:
            trees = plan.source.series.trees
            change = change_id(plan.source.git, trees[step.number - 1], trees[step.number])
        elif old.resolution is not None:
            result = step.commit.tree if step.commit else None
            conflicting = step.verdict == CONFLICT
            resolution = old.resolution
            if result:
                resolution = make_resolution(plan.onto.git, step.mechanical, result, conflicting=conflicting)
        keys = {move.key for move in step.judged.hunks if move.function_changed}
        found[name] = Decision(
            name,
            action,
            step.reason,
            tuple(key for key in old.confirmed if key in keys),
            old.message,
            old.entry,
            resolution,
            change,
            summary(step),
        )
    return found


def summary(step: Step) -> str:
    """The verdict in words, e.g. `partly upstream (15 of 24 hunks)`."""
    if step.judged.upstream and step.verdict not in (UPSTREAM, EMPTY):
        return f"{step.verdict} ({len(step.judged.upstream)} of {step.judged.total} hunks are upstream)"
    return step.verdict
