"""Bringing in patches from other tools."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.publish import SeriesChange, begin, pick_and_publish, publish_series, top
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.foreign import Reading, read_foreign
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.patchfile.mail import NamedPatch, PatchMail, read_patch
from pyggml.series.stack.commits import apply_patches
from pyggml.series.stack.picks import Pick, TreeDelta, series_picks
from pyggml.series.stack.series_file import Patch, slug
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.position import refuse_outdated
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.workspace import Workspace


def import_patches(
    project: Project,
    paths: tuple[Path, ...],
    pin_name: str | None = None,
    reading: Reading | None = None,
) -> SeriesChange:
    """Put patches on top of the series, in order, all of them or none.

    Every hunk must apply at its stated line or fit in exactly one place; there is no fuzz.

    Args:
        reading: what the user says about the files; by default all of it is found out, or refused.

    Raises:
        PyggmlError: not all of the series is applied, or a patch does not apply, is ambiguous, changes
            nothing, or reaches outside the tree; the message names the file and the hunk.
    """
    foreign = read_foreign(paths, reading)
    with changing(project, "patch import", pin_name, Needs.SETTLED | Needs.OWN_PIN) as session:
        work = session.work
        if session.applied != len(work.series.patches):
            raise PyggmlError(
                f"{session.applied} of {len(work.series.patches)} patches are applied; "
                "an import goes on top of all of them",
                "Run first: pyggml patch apply",
            )
        entries = list(zip(work.series.patches, work.stack(), strict=True))
        _refuse_known(work, foreign)
        taken = {patch.name for patch in work.series.patches}
        commits = apply_patches(work.git, *top(work, entries), foreign)
        for patch, commit in zip(foreign, commits, strict=True):
            name = slug(patch.title, taken)
            taken.add(name)
            entries.append((Patch(name, commit.tree), commit))
        return publish_series(work, "patch import", entries, len(entries), work_tree_state(work.git))


def replace_patch(
    project: Project,
    wanted: str,
    paths: tuple[Path, ...],
    pin_name: str | None = None,
    reading: Reading | None = None,
) -> SeriesChange:
    """Put the one patch in `paths` in the place of a patch of the series; the later ones go back on top.

    Name, purpose and proofs of the patch stay.

    Raises:
        PyggmlError: no such patch, not exactly one in `paths`, or it does not apply there, as `import_patches`.
        StoppedError: a later patch conflicts.
    """
    foreign = read_foreign(paths, reading)
    with changing(
        project, f"patch import --replace {wanted}", pin_name, Needs.SETTLED | Needs.OWN_PIN
    ) as session:
        work = session.work
        refuse_outdated(work)
        number = work.series.find(wanted)
        if len(foreign) != 1:
            raise PyggmlError(
                f"--replace takes one patch, there are {len(foreign)}", "Import the others without --replace."
            )
        name, stack = work.series.patches[number - 1].name, work.stack()
        _refuse_known(work, foreign, besides=number)
        done = list(zip(work.series.patches[: number - 1], stack[: number - 1], strict=True))
        parent, below = top(work, done)
        (commit,) = apply_patches(work.git, parent, below, foreign)
        old, *later = series_picks(work.series, stack, range(number, len(stack) + 1))
        new = Pick(old.patch, commit.author, commit.message, (TreeDelta(below, commit.tree),))
        tree = work_tree_state(work.git)
        operation = begin(work, f"patch import --replace {name}", "edit", session.applied, tree)
        return pick_and_publish(work, operation, done, [new, *later], tree)


def _refuse_known(work: Workspace, foreign: Sequence[NamedPatch], besides: int = 0) -> None:
    """Refuse a patch that the series has, but for number `besides`: the same message and the same changed lines."""
    mails = [read_patch(work.patch_file(n), p.name) for n, p in enumerate(work.series.patches, 1)]
    pairs = enumerate(zip(mails, work.series.patches, strict=True), 1)
    names = {_content(mail): patch.name for number, (mail, patch) in pairs if number != besides}
    for patch in foreign:
        content = _content(patch.mail)
        if content is not None and content in names:
            raise PyggmlError(
                f"{patch.label}: it is in the series already, as {names[content]}",
                f"Leave it out, or take the other one away first: pyggml patch drop {names[content]}",
            )


def _content(mail: PatchMail) -> tuple[object, ...] | None:
    """The message and the changed lines, whatever prefix the paths have; None if no lines are changed."""
    for strip in (1, 0):
        with contextlib.suppress(PyggmlError):
            runs = tuple((run.removed, run.added) for run in changed_runs(parse_diff(mail.diff, strip)))
            return (mail.message, runs) if runs else None
    return None
