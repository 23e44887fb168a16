"""Remembering a rebase from its two ends: how the new pin's series, as it is now, comes from the old one."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.rebasing.decisions import (
    DIRECTORY,
    Decision,
    decision_files,
    make_resolution,
    read_decisions,
)
from pyggml.series.rebasing.plan import PICK, SKIP, Plan, Todo, decided, run_plan
from pyggml.series.rebasing.publish import resolution_changes, series_of
from pyggml.series.rebasing.run import onto_workspace
from pyggml.series.rebasing.verdict import judge, renamed_paths
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.merge import merge
from pyggml.series.stack.series_file import Patch
from pyggml.series.worktree.transaction import Change, FileChange, publish
from pyggml.series.worktree.workspace import (
    Workspace,
    canonical,
    changing,
    file_changes,
    open_workspace,
    refuse_operation,
)

_FIELDS = ("purpose", "drop_when", "proof", "fails_with")


def record_decisions(project: Project, onto_name: str | None, source_name: str | None) -> tuple[str, ...]:
    """Write the decisions that make a rebase give the new pin's series again, byte for byte.

    For patches that were adapted after a rebase (`patch edit`, `patch refresh` on the new pin): each one's
    difference to the mechanical merge, its message and its fields in `series.toml` are taken as they are. A
    patch that is not on the new pin is left out, for the reason recorded before, if there is one.

    Args:
        onto_name: the new pin; by default the project's default pin.

    Returns:
        the files that were written.

    Raises:
        PyggmlError: the new series has a patch that the old one has not, or a replay would not give it.
    """
    with changing(project, "patch rebase --record", source_name) as (work, _):
        refuse_operation(work)
        onto = onto_workspace(work, onto_name or work.pins.default)
        new = open_workspace(project, onto.pin.name)
        names = {patch.name for patch in work.series.patches}
        for patch in new.series.patches:
            if patch.name not in names:
                raise PyggmlError(
                    f"patch {patch.name} is on pin {onto.pin.name} only: no rebase from {work.pin.name} makes it",
                    f"Bring it to {work.pin.name} as well, or give it the name that it has there.",
                )
        plan = _plan(work, onto, new)
        outcome = run_plan(plan)
        if outcome.stop is not None:
            raise PyggmlError(
                f"patch {outcome.stop.patch.name} cannot be recorded: {outcome.stop.note or outcome.stop.kind}"
            )
        wrong = file_changes(onto, series_of(plan, outcome.steps))
        if wrong:
            raise PyggmlError(
                f"{wrong[0].path} would not come out of a rebase as it is{_where(wrong[0])}",
                "Comments and unknown keys of series.toml come from the old pin's; authors and dates do as well.",
            )
        files = decision_files(work.pin.name, onto.pin.name, decided(plan, outcome.steps))
        changes = tuple(resolution_changes(onto, files))
        head = work.head
        tree = work.git.text("rev-parse", "HEAD^{tree}")
        publish(project, work.git, Change("patch rebase --record", head, head, tree, tree, changes))
        return tuple(change.path for change in changes)


def _where(change: FileChange) -> str:
    """The first line in which a file differs from what would be written."""
    here, made = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.old, change.new))
    for number, (a, b) in enumerate(zip_longest(here, made), 1):
        if a != b:
            told = [repr(line) if line is not None else "nothing" for line in (a, b)]
            return f": line {number} is {told[0]}, and would be {told[1]}"
    return ""


def _plan(work: Workspace, onto: Workspace, new: Workspace) -> Plan:
    stack, made = canonical(work), canonical(new)
    before = read_decisions(onto.directory / DIRECTORY, work.pin.name)
    renames = renamed_paths(work.git, work.pin.tree, onto.pin.tree)
    todo: list[Todo] = []
    decisions: dict[str, Decision] = {}
    tree = onto.pin.tree
    for name in _order(work, new):
        number = work.series.find(name)
        old, base = work.series.patches[number - 1], work.series.trees[number - 1]
        merged = merge(work.git, base, tree, stack[number - 1].tree)
        known = before.get(name, Decision(name))
        place = next((n for n, patch in enumerate(new.series.patches) if patch.name == name), None)
        if place is None:
            left_out = known.action if known.action != PICK else PICK if merged.tree == tree else SKIP
            todo.append(
                Todo(left_out, name, known.reason or ("" if left_out == PICK else "left out by hand"))
            )
            continue
        result = made[place].tree
        trees = (base, stack[number - 1].tree)
        judged = judge(work.git, trees, tree, result, onto.pin.tree, renames, conflicts=bool(merged.stages))
        todo.append(Todo(PICK, name))
        decisions[name] = Decision(
            name,
            confirmed=tuple(dict.fromkeys(move.key for move in judged.hunks if move.function_changed)),
            message=_message(stack[number - 1], made[place]),
            entry=_entry(old, new.series.patches[place]),
            resolution=make_resolution(work.git, merged.tree, result, conflicting=bool(merged.stages)),
        )
        tree = result
    return replace(Plan(work, stack, onto, tuple(todo)), decisions=decisions)


def _order(work: Workspace, new: Workspace) -> list[str]:
    """The order of the new series; what is left out stands where it stood in the old one."""
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
