"""The end of a rebase: the new pin's directory, the work tree and the default pin change at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.series.rebasing.decisions import DIRECTORY, decision_files
from pyggml.series.rebasing.plan import RebasePlan, decisions_of
from pyggml.series.rebasing.state import forget_rebase
from pyggml.series.rebasing.verdict import RebasedPatch
from pyggml.series.stack.format_patch import format_patches
from pyggml.series.stack.series_file import SERIES_FILE, Series, series_toml
from pyggml.series.worktree.applied import applied_change, applied_series
from pyggml.series.worktree.position import known_position, other_pin_at_head, position
from pyggml.series.worktree.sequencer import REBASING
from pyggml.series.worktree.session import Needs, require
from pyggml.series.worktree.state_file import FileChange, read_file
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace


@dataclass(frozen=True)
class PublishedRebase:
    """What changed: files of the project, and whether the work tree and the default pin moved."""

    written: tuple[str, ...]
    moved: bool = False
    default: bool = False


def series_of(plan: RebasePlan, steps: Sequence[RebasedPatch]) -> dict[str, bytes]:
    """The patch files and `series.toml` of the new pin."""
    kept = [(step.patch, step.commit) for step in steps if step.commit is not None]
    made = format_patches(plan.onto.git, [commit for _, commit in kept])
    files = {
        patch.file(number): data for number, ((patch, _), data) in enumerate(zip(kept, made, strict=True), 1)
    }
    listings = [work.directory / SERIES_FILE for work in (plan.onto, plan.source)]
    previous = next(filter(None, map(read_file, listings)), None)
    series = Series(plan.onto.pin.name, plan.onto.pin.tree, tuple(patch for patch, _ in kept))
    files[SERIES_FILE] = series_toml(series, previous)
    return files


def differing(plan: RebasePlan, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The files of a series that is there already and that the rebase would change."""
    if not any(plan.onto.directory.glob("*.patch")):
        return ()
    return tuple(change.path for change in plan.onto.series_changes(files))


def publish_rebase(
    plan: RebasePlan, steps: Sequence[RebasedPatch], doing: str, files: Mapping[str, bytes]
) -> PublishedRebase:
    """Write everything in one transaction, and end the rebase.

    The work tree moves along if it is on the old pin's series (or on the new pin's, if that changes); then
    the new pin also becomes the default one, if the old pin was.

    Raises:
        PyggmlError: the work tree is edited or was moved meanwhile; nothing is changed.
    """
    work, onto = plan.source, plan.onto
    decisions = decision_files(work.pin.name, onto.pin.name, decisions_of(plan, steps))
    changes = [*onto.series_changes(files), *resolution_changes(onto, decisions)]
    if not changes:
        forget_rebase(work.project)
        return PublishedRebase(())
    require(work, "patch rebase", Needs.NO_EDITS)
    written = tuple(change.path for change in changes)
    head, default = _target(plan, steps), False
    if head is not None and known_position(work) is not None and work.pins.default == work.pin.name:
        changes.append(_default_pin(work, onto.pin.name))
        default = True
    changes += REBASING.file_change(work.project, None)
    old = work.head
    new = head or old
    tree_old, tree_new = (work.git.text("rev-parse", f"{commit}^{{tree}}") for commit in (old, new))
    if head is not None:
        commits = [step.commit for step in steps if step.commit is not None]
        count = next((n for n, commit in enumerate(commits, 1) if commit.id == head), 0)
        changes += applied_change(work.project, applied_series(onto, commits[:count], len(commits)))
    publish(work.project, work.git, Transaction(doing, old, new, tree_old, tree_new, tuple(changes)))
    forget_rebase(work.project)
    return PublishedRebase(written, new != old, default)


def _target(plan: RebasePlan, steps: Sequence[RebasedPatch]) -> str | None:
    """Where HEAD goes; None if it stays."""
    kept = [(step.number, step.commit.id) for step in steps if step.commit is not None]
    at, total = known_position(plan.source), len(plan.source.series.patches)
    if at is None:
        if other_pin_at_head(plan.source) != plan.onto.pin.name:
            return None
        return plan.onto.base if position(plan.onto) == 0 or not kept else kept[-1][1]
    head = plan.onto.base
    for number, commit in kept:
        if at != total and number > at:
            break
        head = commit
    return head


def resolution_changes(onto: Workspace, new: Mapping[str, bytes]) -> list[FileChange]:
    """The changes that make `new` the whole content of the directory of resolutions."""
    directory = onto.directory / DIRECTORY
    relative = directory.relative_to(onto.project.root).as_posix()
    old = {path.name: path.read_bytes() for path in directory.glob("*") if path.is_file()}
    names = sorted(old.keys() | new.keys())
    return [
        FileChange(f"{relative}/{name}", old.get(name), new.get(name))
        for name in names
        if old.get(name) != new.get(name) and name.endswith((".patch", ".toml"))
    ]


def _default_pin(work: Workspace, name: str) -> FileChange:
    import tomlkit

    path = work.project.pins_file
    old = path.read_bytes()
    document = tomlkit.parse(old.decode("utf-8"))
    document["default"] = name
    new = tomlkit.dumps(document).encode("utf-8")
    if tomlkit.parse(new.decode("utf-8")).get("default") != name:
        raise PyggmlError(f"cannot set the default pin in {path}", f'Set default = "{name}" there yourself.')
    return FileChange(path.relative_to(work.project.root).as_posix(), old, new)
