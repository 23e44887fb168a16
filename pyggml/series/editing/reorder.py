"""Changing the order and the names of the series: drop, move, rename."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.publish import SeriesChange, begin, pick_and_publish, series_change, series_listing
from pyggml.series.stack.picks import series_picks
from pyggml.series.stack.series_file import SERIES_FILE, check_new_name
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace


def drop_patch(project: Project, wanted: str, pin: str | None = None) -> SeriesChange:
    """Remove a patch from the series; the later ones are put on what came before it.

    Raises:
        PyggmlError: no such patch, or local edits.
        StoppedError: a later patch conflicts.
    """
    with changing(project, f"patch drop {wanted}", pin, Needs.SETTLED | Needs.OWN_PIN) as session:
        work = session.work
        number = work.series.find(wanted)
        order = [n for n in range(1, len(work.series.patches) + 1) if n != number]
        applied = session.applied - (session.applied >= number)
        return _reorder(work, f"patch drop {work.series.patches[number - 1].name}", order, applied)


def move_patch(project: Project, wanted: str, to: int, pin: str | None = None) -> SeriesChange:
    """Move a patch to place `to` (from 1) of the series.

    Raises:
        PyggmlError: no such patch or place, or local edits.
        StoppedError: a patch conflicts at its new place.
    """
    with changing(project, f"patch move {wanted} {to}", pin, Needs.SETTLED | Needs.OWN_PIN) as session:
        work = session.work
        number = work.series.find(wanted)
        total = len(work.series.patches)
        if not 1 <= to <= total:
            raise PyggmlError(
                f"there is no place {to} in a series of {total} patches", "List it with: pyggml patch list"
            )
        order = [n for n in range(1, total + 1) if n != number]
        order.insert(to - 1, number)
        name = work.series.patches[number - 1].name
        return _reorder(work, f"patch move {name} {to}", order, session.applied)


def rename_patch(project: Project, wanted: str, name: str, pin: str | None = None) -> SeriesChange:
    """Give a patch another name in the series; its commit stays.

    Raises:
        PyggmlError: no such patch, or the name is taken or invalid.
    """
    with changing(project, f"patch rename {wanted} {name}", pin, Needs.NOTHING_WAITING) as session:
        work = session.work
        number = work.series.find(wanted)
        check_new_name(name, work.series)
        patches = list(work.series.patches)
        old, new = patches[number - 1], replace(patches[number - 1], name=name)
        files = {patch.file(n): work.patch_file(n) for n, patch in enumerate(patches, 1)}
        files[new.file(number)] = files.pop(old.file(number))
        patches[number - 1] = new
        files[SERIES_FILE] = series_listing(work, tuple(patches), {old.name: name})
        head, tree = work.head, work_tree_state(work.git)
        changes = work.series_changes(files)
        doing = f"patch rename {old.name} {name}"
        publish(project, work.git, Transaction(doing, head, head, tree, tree, changes))
        return series_change(work, changes, {old.name: name})


def _reorder(work: Workspace, doing: str, order: Sequence[int], applied: int) -> SeriesChange:
    stack = work.stack()
    same = 0
    while same < len(order) and order[same] == same + 1:
        same += 1
    done = [(work.series.patches[n], stack[n]) for n in range(same)]
    picks = series_picks(work.series, stack, order[same:])
    tree = work_tree_state(work.git)
    operation = begin(work, doing, "edit", applied, tree)
    return pick_and_publish(work, operation, done, picks, tree)
