"""Bringing in patches from other tools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.editing.publish import SeriesChange, begin, pick_and_publish, publish_series, top
from pyggml.series.exchange.three_way import recorded_change
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.foreign import Reading, read_foreign
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.patchfile.mail import NamedPatch, PatchMail, read_patch
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.merge import merge
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
    *,
    three_way: bool = False,
) -> SeriesChange:
    """Put patches on top of the series, in order, all of them or none.

    Every hunk must apply at its stated line or fit in exactly one place; there is no fuzz.

    Args:
        reading: what the user says about the files; by default all of it is found out, or refused.
        three_way: merge a patch that does not apply, by the files that it was made on; leave out one that then
            changes nothing.

    Raises:
        PyggmlError: not all of the series is applied, or a patch does not apply, is ambiguous, changes
            nothing, or reaches outside the tree; the message names the file and the hunk.
        StoppedError: the merge of a patch conflicts.
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
        tree = work_tree_state(work.git)
        names = _names(work, foreign)
        if three_way:
            picks = [
                Pick(Patch(name, ""), patch.mail.author, patch.mail.message, (delta,), optional=True)
                for name, patch, delta in zip(
                    names, foreign, _deltas(work.git, *top(work, entries), foreign), strict=True
                )
            ]
            operation = begin(work, "patch import", "edit", len(entries) + len(picks), tree)
            return pick_and_publish(work, operation, entries, picks, tree)
        for name, commit in zip(names, _plain(work.git, *top(work, entries), foreign), strict=True):
            entries.append((Patch(name, commit.tree), commit))
        return publish_series(work, "patch import", entries, len(entries), tree)


def _names(work: Workspace, foreign: Sequence[NamedPatch]) -> list[str]:
    taken = {patch.name for patch in work.series.patches}
    names = []
    for patch in foreign:
        names.append(slug(patch.title, taken))
        taken.add(names[-1])
    return names


def _plain(git: Git, parent: str, tree: str, foreign: Sequence[NamedPatch]) -> Iterator[Commit]:
    """As `apply_patches`; an error says whether a merge is possible."""
    made = 0
    try:
        for commit in apply_patches(git, parent, tree, foreign):
            made += 1
            parent, tree = commit.id, commit.tree
            yield commit
    except PyggmlError as error:
        hint = error.hint
        with contextlib.suppress(PyggmlError):
            recorded_change(git, parent, tree, foreign[made])
            hint = "It can be merged, as `git am -3` does: pyggml patch import --3way"
        raise PyggmlError(error.message, hint) from error


def _deltas(git: Git, parent: str, tree: str, foreign: Sequence[NamedPatch]) -> Iterator[TreeDelta]:
    """The change of each patch: as it stands where it applies, else to the files that it was made on.

    After the first that conflicts nobody knows the tree that the next ones meet, so those must name their files.
    """
    conflicts = ""
    remade = 0
    for number, patch in enumerate(foreign):
        if not conflicts:
            with contextlib.suppress(PyggmlError):
                (commit,) = apply_patches(git, parent, tree, [patch])
                yield TreeDelta(tree, commit.tree)
                parent, tree = commit.id, commit.tree
                continue
        try:
            delta = recorded_change(git, parent, tree, patch)
        except PyggmlError:
            # What a patch was made on may be what the ones before it made of files that are here.
            for earlier in foreign[remade:number]:
                with contextlib.suppress(PyggmlError):
                    recorded_change(git, parent, tree, earlier)
            remade = number
            try:
                delta = recorded_change(git, parent, tree, patch)
            except PyggmlError as error:
                after = f" ({conflicts} before it conflicts)" if conflicts else ""
                raise PyggmlError(f"{error.message}{after}", error.hint) from error
        yield delta
        if not conflicts:
            merged = merge(git, delta.old, tree, delta.new)
            if merged.stages:
                conflicts = patch.label
            else:
                tree = merged.tree


def replace_patch(
    project: Project,
    wanted: str,
    paths: tuple[Path, ...],
    pin_name: str | None = None,
    reading: Reading | None = None,
    *,
    three_way: bool = False,
) -> SeriesChange:
    """Put the one patch in `paths` in the place of a patch of the series; the later ones go back on top.

    Name, purpose and proofs of the patch stay.

    Args:
        three_way: as in `import_patches`.

    Raises:
        PyggmlError: no such patch, not exactly one in `paths`, or it does not apply there, as `import_patches`.
        StoppedError: the patch or a later one conflicts.
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
        if three_way:
            (delta,) = _deltas(work.git, parent, below, foreign)
        else:
            (commit,) = _plain(work.git, parent, below, foreign)
            delta = TreeDelta(below, commit.tree)
        old, *later = series_picks(work.series, stack, range(number, len(stack) + 1))
        mail = foreign[0].mail
        new = Pick(old.patch, mail.author, mail.message, (delta,))
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
