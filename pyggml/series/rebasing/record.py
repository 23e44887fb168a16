"""Recording a rebase from its two ends: how the new pin's series, as it is now, comes from the old one."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.rebasing.decisions import (
    ADD,
    DIRECTORY,
    LABELS,
    PICK,
    SKIP,
    Decision,
    decision_files,
    make_resolution,
    read_decisions,
)
from pyggml.series.rebasing.plan import RebasePlan, decisions_of, run_plan
from pyggml.series.rebasing.publish import resolution_changes, series_of
from pyggml.series.rebasing.run import onto_workspace
from pyggml.series.rebasing.todo import PlanLine
from pyggml.series.rebasing.verdict import compare_patch
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.merge import merge_stored
from pyggml.series.stack.series_file import Patch
from pyggml.series.stack.trees import Trees, open_trees, renamed_paths
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.state_file import FileChange
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace, open_workspace

_FIELDS = ("purpose", "drop_when", "proof", "fails_with")


def record_decisions(project: Project, onto_name: str | None, source_name: str | None) -> tuple[str, ...]:
    """Write the decisions that make a rebase give the new pin's series again, byte for byte.

    For patches that were adapted after a rebase (`patch edit`, `patch refresh` on the new pin): what each one
    changes in the mechanical merge, its message and its fields in `series.toml` are recorded as they are. A
    patch that is not on the new pin is left out, for the reason recorded before, if there is one; a patch that
    only the new pin has is recorded whole.

    Args:
        onto_name: the new pin; by default the project's default pin.

    Returns:
        the files that were written.

    Raises:
        PyggmlError: a replay would give another series.
    """
    doing = "patch rebase --record"
    with changing(project, doing, source_name, Needs.NOTHING_WAITING, keeps_series=True) as session:
        work = session.work
        onto = onto_workspace(work, onto_name or work.pins.default)
        new = open_workspace(project, onto.pin.name)
        plan = _plan(work, onto, new)
        result = run_plan(plan)
        if result.stop is not None:
            raise PyggmlError(
                f"patch {result.stop.patch.name} cannot be recorded: {result.stop.note or result.stop.kind}"
            )
        wrong = onto.series_changes(series_of(plan, result.steps))
        if wrong:
            raise PyggmlError(
                f"a rebase would give another {wrong[0].path}{_where(wrong[0])}",
                "Comments and unknown keys of series.toml, authors and dates come from the old pin's series.",
            )
        files = decision_files(work.pin.name, onto.pin.name, decisions_of(plan, result.steps))
        changes = tuple(resolution_changes(onto, files))
        head, tree = work.head, work.head_tree
        publish(project, work.git, Transaction(doing, head, head, tree, tree, changes))
        return tuple(change.path for change in changes)


def _where(change: FileChange) -> str:
    """The first line of a file that differs from what would be written."""
    here, made = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.old, change.new))
    for number, (a, b) in enumerate(zip_longest(here, made), 1):
        if a != b:
            is_now, would_be = (repr(line) if line is not None else "missing" for line in (a, b))
            return f": line {number} is {is_now}, and would be {would_be}"
    return ""


def _plan(work: Workspace, onto: Workspace, new: Workspace) -> RebasePlan:
    with open_trees(work.git) as trees:
        return _plan_with(trees, work, onto, new)


def _plan_with(trees: Trees, work: Workspace, onto: Workspace, new: Workspace) -> RebasePlan:
    stack, made = work.stack(), new.stack()
    before = read_decisions(onto.directory / DIRECTORY, work.pin.name)
    renames = renamed_paths(work.git, work.pin.tree, onto.pin.tree)
    todo: list[PlanLine] = []
    decisions: dict[str, Decision] = {}
    tree = onto.pin.tree
    old_names = {patch.name for patch in work.series.patches}
    places = {patch.name: place for place, patch in enumerate(new.series.patches)}
    for name in _order(work, new):
        place = places.get(name)
        if name not in old_names and place is not None:
            result, commit = made[place].tree, made[place]
            todo.append(PlanLine(ADD, name))
            decisions[name] = Decision(
                name,
                ADD,
                message=commit.message,
                author=commit.author,
                entry=_entry(Patch(name, result), new.series.patches[place]),
                resolution=make_resolution(work.git, tree, result, conflicting=False),
            )
            tree = result
            continue
        number = work.series.find(name)
        old, base = work.series.patches[number - 1], work.series.trees[number - 1]
        merged = merge_stored(trees.store, base, tree, stack[number - 1].tree, LABELS)
        known = before.get(name, Decision(name))
        if place is None:
            left_out = known.action if known.action != PICK else PICK if merged.tree == tree else SKIP
            todo.append(
                PlanLine(left_out, name, known.reason or ("" if left_out == PICK else "left out by hand"))
            )
            continue
        result = made[place].tree
        comparison = compare_patch(
            trees,
            (base, stack[number - 1].tree),
            tree,
            result,
            onto.pin.tree,
            renames,
            conflicts=bool(merged.stages),
        )
        todo.append(PlanLine(PICK, name))
        decisions[name] = Decision(
            name,
            confirmed=tuple(dict.fromkeys(move.key for move in comparison.hunks if move.function_changed)),
            message=_message(stack[number - 1], made[place]),
            entry=_entry(old, new.series.patches[place]),
            resolution=make_resolution(work.git, merged.tree, result, conflicting=bool(merged.stages)),
        )
        tree = result
    return RebasePlan(work, stack, onto, tuple(todo), decisions)


def _order(work: Workspace, new: Workspace) -> list[str]:
    """The order of the new series; what is left out keeps its place among the old ones."""
    kept = [patch.name for patch in new.series.patches]
    order: list[str] = []
    for patch in work.series.patches:
        if patch.name not in kept:
            order.append(patch.name)
        else:
            while kept and patch.name in kept:
                order.append(kept.pop(0))
    return [*order, *kept]


def _message(old: Commit, new: Commit) -> str | None:
    return None if old.message == new.message else new.message


def _entry(old: Patch, new: Patch) -> dict[str, Any]:
    return {name: getattr(new, name) for name in _FIELDS if getattr(old, name) != getattr(new, name)}
