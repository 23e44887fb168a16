"""The end of a rebase: the new pin's directory, the work tree and the default pin change at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.series.rebasing.decisions import DIRECTORY, decision_files
from pyggml.series.rebasing.plan import Plan, decided
from pyggml.series.rebasing.state import STATE_FILE, clear_state
from pyggml.series.rebasing.verdict import Step
from pyggml.series.stack.format_patch import export_commit
from pyggml.series.stack.series_file import SERIES_FILE, Series, series_toml
from pyggml.series.worktree.transaction import Change, FileChange, publish
from pyggml.series.worktree.workspace import (
    Workspace,
    file_changes,
    known_position,
    other_pin_at_head,
    position,
    refuse_edits,
)


@dataclass(frozen=True)
class Published:
    """What changed: files of the project, and whether the work tree and the default pin moved."""

    written: tuple[str, ...]
    moved: bool = False
    default: bool = False


def series_of(plan: Plan, steps: Sequence[Step]) -> dict[str, bytes]:
    """The patch files and `series.toml` of the new pin."""
    kept = [step for step in steps if step.commit is not None]
    files: dict[str, bytes] = {}
    for number, step in enumerate(kept, 1):
        assert step.commit is not None  # noqa: S101
        files[step.patch.file(number)] = export_commit(plan.onto.git, step.commit)
    previous = next(
        (
            path.read_bytes()
            for path in (plan.onto.directory / SERIES_FILE, plan.source.directory / SERIES_FILE)
            if path.is_file()
        ),
        None,
    )
    series = Series(plan.onto.pin.name, plan.onto.pin.tree, tuple(step.patch for step in kept))
    files[SERIES_FILE] = series_toml(series, previous)
    return files


def differing(plan: Plan, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The files of a series that lies there already and that the rebase would change."""
    if not any(plan.onto.directory.glob("*.patch")):
        return ()
    return tuple(change.path for change in file_changes(plan.onto, dict(files)))


def publish_rebase(plan: Plan, steps: Sequence[Step], doing: str, files: Mapping[str, bytes]) -> Published:
    """Write everything in one transaction, and end the rebase.

    The work tree moves along if it stands on the old pin's series (or on that of the new pin, if that
    changes); then the new pin also becomes the default one, if the old pin was.

    Raises:
        PyggmlError: the work tree is edited or was moved meanwhile; nothing is changed.
    """
    work, onto = plan.source, plan.onto
    decisions = decision_files(work.pin.name, onto.pin.name, decided(plan, steps))
    changes = [*file_changes(onto, dict(files)), *resolution_changes(onto, decisions)]
    if not changes:
        clear_state(work.project)
        return Published(())
    refuse_edits(work, "`patch rebase`")
    written = tuple(change.path for change in changes)
    head, default = _target(plan, steps), False
    if head is not None and known_position(work) >= 0 and work.pins.default == work.pin.name:
        changes.append(_default_pin(work, onto.pin.name))
        default = True
    state = work.project.root / STATE_FILE
    if state.is_file():
        changes.append(FileChange(STATE_FILE, state.read_bytes(), None))
    old = work.head
    new = head or old
    tree_old, tree_new = (work.git.text("rev-parse", f"{commit}^{{tree}}") for commit in (old, new))
    publish(work.project, work.git, Change(doing, old, new, tree_old, tree_new, tuple(changes)))
    clear_state(work.project)
    return Published(written, new != old, default)


def _target(plan: Plan, steps: Sequence[Step]) -> str | None:
    """Where HEAD goes; None if it stays."""
    kept = [(step.number, step.commit.id) for step in steps if step.commit is not None]
    at, total = known_position(plan.source), len(plan.source.series.patches)
    if at < 0:
        if other_pin_at_head(plan.source) != plan.onto.pin.name:
            return None
        old = position(plan.onto)
        return plan.onto.base if old == 0 or not kept else kept[-1][1]
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
    present = {path.name: path.read_bytes() for path in directory.glob("*") if path.is_file()}
    names = sorted(present.keys() | new.keys())
    return [
        FileChange(f"{relative}/{name}", present.get(name), new.get(name))
        for name in names
        if present.get(name) != new.get(name) and name.endswith((".patch", ".toml"))
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
