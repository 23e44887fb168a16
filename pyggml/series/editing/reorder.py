"""Changing the order and the names of the series: drop, move, rename."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.operation import Operation
from pyggml.series.editing.publish import SeriesChange, listing, result, run
from pyggml.series.stack.picks import pick_of
from pyggml.series.stack.series_file import SERIES_FILE, check_name
from pyggml.series.worktree.transaction import Change, publish, work_tree_state
from pyggml.series.worktree.workspace import (
    Workspace,
    canonical,
    changing,
    file_changes,
    known_position,
    other_pin,
    refuse_edits,
    refuse_operation,
)


def drop_patch(project: Project, wanted: str, pin: str | None = None) -> SeriesChange:
    """Remove a patch from the series; the later ones are put on what came before it.

    Raises:
        PyggmlError: no such patch, local edits.
        StoppedError: a later patch conflicts.
    """
    with changing(project, f"patch drop {wanted}", pin) as (work, _):
        number = work.series.find(wanted)
        order = [n for n in range(1, len(work.series.patches) + 1) if n != number]
        at = _settled(work, "`patch drop`")
        return _reorder(
            work, f"patch drop {work.series.patches[number - 1].name}", order, at - (at >= number)
        )


def move_patch(project: Project, wanted: str, to: int, pin: str | None = None) -> SeriesChange:
    """Move a patch to place `to` (from 1) of the series.

    Raises:
        PyggmlError: no such patch or place, local edits.
        StoppedError: a patch conflicts at its new place.
    """
    with changing(project, f"patch move {wanted} {to}", pin) as (work, _):
        number = work.series.find(wanted)
        total = len(work.series.patches)
        if not 1 <= to <= total:
            raise PyggmlError(
                f"there is no place {to} in a series of {total} patches", "List it with: pyggml patch list"
            )
        at = _settled(work, "`patch move`")
        order = [n for n in range(1, total + 1) if n != number]
        order.insert(to - 1, number)
        name = work.series.patches[number - 1].name
        return _reorder(work, f"patch move {name} {to}", order, at)


def rename_patch(project: Project, wanted: str, name: str, pin: str | None = None) -> SeriesChange:
    """Give a patch another name in the series; its commit stays.

    Raises:
        PyggmlError: no such patch, or the name is taken or malformed.
    """
    with changing(project, f"patch rename {wanted} {name}", pin) as (work, _):
        refuse_operation(work)
        number = work.series.find(wanted)
        check_name(name)
        if any(patch.name == name for patch in work.series.patches):
            raise PyggmlError(
                f"there is a patch named {name} already", "List the names with: pyggml patch list"
            )
        patches = list(work.series.patches)
        old = patches[number - 1]
        files = {SERIES_FILE: b""}
        for n, patch in enumerate(patches, 1):
            files[patch.file(n)] = (work.directory / patch.file(n)).read_bytes()
        files[replace(old, name=name).file(number)] = files.pop(old.file(number))
        patches[number - 1] = replace(old, name=name)
        files[SERIES_FILE] = listing(work, tuple(patches), {old.name: name})
        head, tree = work.head, work_tree_state(work.git)
        changes = file_changes(work, files)
        publish(project, work.git, Change(f"patch rename {old.name} {name}", head, head, tree, tree, changes))
        return result(work, 0, head, tuple(change.path for change in changes))


def _settled(work: Workspace, doing: str) -> int:
    refuse_operation(work)
    refuse_edits(work, doing)
    at = known_position(work)
    if at < 0:
        raise other_pin(work)
    return at


def _reorder(work: Workspace, doing: str, order: Sequence[int], applied: int) -> SeriesChange:
    stack = canonical(work)
    trees = work.series.trees
    same = 0
    while same < len(order) and order[same] == same + 1:
        same += 1
    done = [(work.series.patches[n], stack[n]) for n in range(same)]
    picks = [pick_of(work.series.patches[n - 1], stack[n - 1], trees[n - 1]) for n in order[same:]]
    tree = work_tree_state(work.git)
    operation = Operation(doing, "edit", work.pin.name, applied, work.head, tree)
    return run(work, operation, done, picks, tree)
