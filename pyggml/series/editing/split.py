"""Making two patches of one, by files or by hunks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.contents import is_under
from pyggml.series.editing.publish import Goal, SeriesChange, begin, pick_and_publish
from pyggml.series.patchfile.diff import FileDiff, path_text
from pyggml.series.patchfile.mail import clean_message
from pyggml.series.patchfile.placement import patched
from pyggml.series.stack.commits import tree_with
from pyggml.series.stack.picks import Pick, TreeDelta, series_picks
from pyggml.series.stack.series_file import check_new_name
from pyggml.series.stack.trees import parsed_tree_diff, tree_reader
from pyggml.series.worktree.files import changed_paths, work_tree_state
from pyggml.series.worktree.position import refuse_outdated
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.workspace import Workspace


@dataclass(frozen=True)
class NumberedHunk:
    """A hunk of a patch; a file that changes without hunks (mode, binary, name) counts as one.

    Attributes:
        number: in its file, from 1.
        header: the line with `@@`; empty without hunks.
        first: its first changed line.
    """

    path: str
    number: int
    header: str
    first: str


def list_hunks(work: Workspace, number: int) -> tuple[NumberedHunk, ...]:
    """The hunks of patch `number`, with the numbers that `split_patch` takes.

    Raises:
        PyggmlError: a patch file up to it does not apply.
    """
    rows = []
    for diff in _diffs(work, number):
        for index, hunk in enumerate(diff.hunks or (None,), 1):
            lines = [line for line in hunk.lines if line[:1] in b"+-"] if hunk else [b"(no text)"]
            header = hunk.header().decode("utf-8", "replace").rstrip() if hunk else ""
            rows.append(
                NumberedHunk(_path(diff), index, header, lines[0].decode("utf-8", "replace").rstrip())
            )
    return tuple(rows)


def split_patch(
    project: Project,
    wanted: str,
    name: str,
    paths: Sequence[str] = (),
    hunks: Sequence[str] = (),
    message: str | None = None,
    pin: str | None = None,
) -> SeriesChange:
    """Take files or hunks out of a patch and make a patch `name` of them, right on top of it.

    The source after both is that after the one. The proofs stay with the first.

    Args:
        paths: files and directories; a renamed file counts with both its names.
        hunks: `FILE:N` or `FILE:N-M`, numbered as `list_hunks` has them.
        message: of the new patch; by default one that names the patch it was part of.

    Raises:
        PyggmlError: no such patch, file or hunk, the name is taken, local edits, or nothing or all is chosen.
    """
    with changing(project, f"patch split {wanted} {name}", pin, Needs.SETTLED | Needs.OWN_PIN) as session:
        work = session.work
        refuse_outdated(work)
        number = work.series.find(wanted)
        check_new_name(name, work.series)
        patch, stack = work.series.patches[number - 1], work.stack()
        old, new = work.series.trees[number - 1 : number + 1]
        middle = _without(work, old, new, _chosen(_diffs(work, number), paths, hunks))
        for tree, part in ((new, "nothing"), (old, "all")):
            if middle == tree:
                raise PyggmlError(
                    f"{part} of patch {patch.name} is chosen", f"See: pyggml patch split {patch.name}"
                )
        whole = series_picks(work.series, stack, [number])[0]
        touched = ", ".join(change.path for change in changed_paths(work.git, middle, new))
        subject = stack[number - 1].subject
        default = f"{subject} ({name})\n\nSplit off from the patch {patch.name}: {touched}."
        second = Pick(
            replace(patch, name=name, proof=(), fails_with=""),
            *(whole.author, clean_message(message or default), (TreeDelta(middle, new),)),
        )
        first = replace(whole, deltas=(TreeDelta(old, middle),))
        later = series_picks(work.series, stack, range(number + 1, len(stack) + 1))
        done = list(zip(work.series.patches[: number - 1], stack[: number - 1], strict=True))
        applied = session.applied + (number <= session.applied)
        state = work_tree_state(work.git)
        operation = begin(work, f"patch split {patch.name} {name}", "edit", applied, state)
        goal = Goal(len(stack) + 1, work.series.trees[-1])
        change = pick_and_publish(work, operation, done, [first, second, *later], state, goal)
        if not patch.proof:
            return change
        note = (
            f"the proofs stay with {patch.name}, {name} has none; "
            f"see whether they still hold with: pyggml patch prove {patch.name}"
        )
        return replace(change, notes=(note,))


def _diffs(work: Workspace, number: int) -> tuple[FileDiff, ...]:
    work.stack(number)
    return parsed_tree_diff(work.git, *work.series.trees[number - 1 : number + 1])


def _path(diff: FileDiff) -> str:
    return path_text(diff.path)


def _chosen(
    diffs: Sequence[FileDiff], paths: Sequence[str], hunks: Sequence[str]
) -> list[tuple[FileDiff, Collection[int]]]:
    """The files of a patch that are chosen, with the numbers (from 1) of their hunks."""
    chosen: dict[str, set[int]] = {}
    counts = {_path(diff): max(1, len(diff.hunks)) for diff in diffs}
    for path in paths:
        hits = [
            diff
            for diff in diffs
            if any(is_under(one, {path.rstrip("/")}) for one in (_path(diff), diff.old_path))
        ]
        if not hits:
            raise PyggmlError(
                f"the patch does not touch {path}", "List its files with: pyggml patch files NAME"
            )
        for diff in hits:
            chosen[_path(diff)] = set(range(1, counts[_path(diff)] + 1))
    for text in hunks:
        match = re.fullmatch(r"(.+):(\d+)(?:-(\d+))?", text)
        if not match:
            raise PyggmlError(f"{text!r} does not name a hunk", "Write FILE:N or FILE:N-M, e.g. src/x.c:2")
        first, last = int(match[2]), int(match[3] or match[2])
        if match[1] not in counts or not 1 <= first <= last <= counts[match[1]]:
            raise PyggmlError(f"the patch has no hunk {text}", "List the hunks with: pyggml patch split NAME")
        chosen.setdefault(match[1], set()).update(range(first, last + 1))
    return [(diff, chosen[_path(diff)]) for diff in diffs if _path(diff) in chosen]


def _without(work: Workspace, old: str, new: str, chosen: Sequence[tuple[FileDiff, Collection[int]]]) -> str:
    """The tree `new` without the chosen hunks. A file with all its hunks chosen is as in `old`, its name as well."""
    read = tree_reader(work.git, old)
    back = {change.path: change for change in changed_paths(work.git, old, new)}
    entries: dict[str, tuple[str, str] | None] = {}
    for diff, numbers in chosen:
        if len(numbers) == max(1, len(diff.hunks)):
            # A copy leaves the file that it was made of.
            entries.update({path: back[path].old for path in (_path(diff), diff.old_path) if path in back})
            continue
        kept = tuple(hunk for number, hunk in enumerate(diff.hunks, 1) if number not in numbers)
        content = patched(replace(diff, hunks=kept), read(diff.old_path) or b"")
        blob = work.git.text("hash-object", "-w", "--stdin", stdin=content)
        entries[_path(diff)] = (back[_path(diff)].new_mode, blob)
    return tree_with(work.git, new, entries)
