"""`pyggml patch rebase`: begin, go on, leave a patch out, give up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError, StoppedError
from pyggml.files import write_atomic
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.rebasing.decisions import (
    DIRECTORY,
    IN_UPSTREAM,
    PICK,
    SKIP,
    Decision,
    make_resolution,
    read_decisions,
)
from pyggml.series.rebasing.plan import RebasePlan, RebaseStop, run_plan
from pyggml.series.rebasing.private_tree import private_tree, resolved_tree
from pyggml.series.rebasing.publish import PublishedRebase, differing, publish_rebase, series_of
from pyggml.series.rebasing.state import (
    KINDS,
    RebaseState,
    SavedStop,
    forget_rebase,
    load_rebase,
    rebase_dir,
)
from pyggml.series.rebasing.stop_report import StopReport, make_report, report_text
from pyggml.series.rebasing.todo import PlanLine, initial_plan, parse_plan, plan_text
from pyggml.series.rebasing.verdict import RebasedPatch
from pyggml.series.stack.series_file import CLOSED, SERIES_FILE, read_toml
from pyggml.series.worktree.checkout import make_checkout
from pyggml.series.worktree.sequencer import REBASING
from pyggml.series.worktree.session import Needs, changing, require
from pyggml.series.worktree.state_file import read_file
from pyggml.series.worktree.workspace import Workspace, open_bare

REPORT_FILE = "dossier.md"


@dataclass(frozen=True)
class RebaseHooks:
    """What a rebase tells and asks while it runs.

    Attributes:
        report: called after each patch.
        check: called with each new commit; returns why it is not good (a failed build), or None.
    """

    report: Callable[[RebasedPatch], None] = lambda step: None
    check: Callable[[RebasedPatch], str | None] | None = None


@dataclass(frozen=True)
class RebaseResult:
    """A rebase that is done.

    Attributes:
        steps: what became of each patch, in order.
        published: what changed.
        recovered: the killed rebase that was finished instead; then there are no steps.
    """

    source: str
    onto: str
    steps: tuple[RebasedPatch, ...]
    published: PublishedRebase
    recovered: str | None = None


class RebaseStoppedError(StoppedError):
    """The user is needed; `report` says what for, `steps` are done."""

    def __init__(self, message: str, hint: str, report: StopReport, steps: tuple[RebasedPatch, ...]) -> None:
        super().__init__(message, hint)
        self.report = report
        self.steps = steps


def begin(
    project: Project,
    onto_name: str,
    source_name: str | None = None,
    hooks: RebaseHooks | None = None,
    *,
    replace_series: bool = False,
    edit: Callable[[str], str] | None = None,
) -> RebaseResult:
    """Rebase the series of one pin onto a newer one.

    Args:
        source_name: by default the project's default pin.
        replace_series: overwrite another series on the new pin.
        edit: gets the plan as text and returns it changed (an editor).

    Raises:
        PyggmlError: another command waits, the work tree is edited, a pin is unknown, not fetched, the same
            or older.
        RebaseStoppedError: the user is needed.
    """
    hooks = hooks or RebaseHooks()
    doing = f"patch rebase --onto {onto_name}"
    with changing(project, doing, source_name, keeps_series=True) as session:
        work, finished = session.work, session.finished
        if finished and finished.startswith("patch rebase ") and finished.endswith(f" --onto {onto_name}"):
            return RebaseResult("", onto_name, (), PublishedRebase(()), finished)
        require(work, doing, Needs.NOTHING_WAITING)
        onto = onto_workspace(work, onto_name)
        require(work, doing, Needs.SETTLED)
        if not work.series.patches:
            raise PyggmlError(
                f"the series on pin {work.pin.name} is empty: nothing to rebase",
                "Name the pin it is on with: --from PIN",
            )
        decisions = read_decisions(onto.directory / DIRECTORY, work.pin.name)
        stack = work.stack()
        todo = initial_plan(work, decisions)
        if edit is not None:
            todo = parse_plan(edit(plan_text(todo)), todo)
        forget_rebase(project)
        compiling = hooks.check is not None
        digest = _digest(work, onto)
        state = RebaseState(work.pin.name, onto.pin.name, digest, todo, decisions, compiling=compiling)
        return _run(project, RebasePlan(work, stack, onto, todo, decisions), state, hooks, replace_series)


def go_on(
    project: Project,
    hooks: RebaseHooks | None = None,
    *,
    confirm: bool = False,
    remove: Sequence[str] = (),
    replace_series: bool = False,
) -> RebaseResult:
    """Take in what was done in the private worktree, and go on.

    Args:
        confirm: the hunks that are in another function now are where they belong.
        remove: files that the patch is to remove.

    Raises:
        PyggmlError: nothing is under way, or the worktree holds no resolution; the message says why.
        RebaseStoppedError: the user is needed again.
    """
    with _under_way(project, "patch rebase --continue") as opened:
        if isinstance(opened, RebaseResult):
            return opened
        plan, state = opened
        stop = state.waiting
        if stop is not None and stop.kind == "publish" and not replace_series:
            raise _other_series(plan, ())
        if stop is not None and stop.kind != "publish":
            state = _take_in(project, state, stop, confirm, remove)
        return _resume(project, plan, state, hooks, replace_series)


def skip(
    project: Project, reason: str, *, upstream: bool = False, hooks: RebaseHooks | None = None
) -> RebaseResult:
    """Leave the patch that waits out of the new series, and go on.

    Args:
        reason: why, for the record.
        upstream: because upstream has it.

    Raises:
        PyggmlError: nothing is under way, or no patch waits.
        RebaseStoppedError: the user is needed again.
    """
    with _under_way(project, "patch rebase --skip") as opened:
        if isinstance(opened, RebaseResult):
            return opened
        plan, state = opened
        if state.waiting is None or not state.waiting.name:
            raise PyggmlError("no patch waits to be left out", f"Go on with: {REBASING.resume}")
        name = state.waiting.name
        left_out = PlanLine(IN_UPSTREAM if upstream else SKIP, name, reason)
        todo = tuple(left_out if line.name == name else line for line in state.todo)
        return _resume(project, plan, replace(state, todo=todo), hooks, False)


def abort(project: Project) -> str:
    """Forget the rebase; it has changed nothing else. Returns the pin that it was onto.

    Raises:
        PyggmlError: nothing is under way.
    """
    with _under_way(project, "patch rebase --abort") as opened:
        if isinstance(opened, RebaseResult):
            raise PyggmlError(
                f"`{opened.recovered}` was decided before it was killed; it is finished now",
                "To take it back: pyggml undo",
            )
        forget_rebase(project)
        return opened[1].onto


def edit_todo(project: Project, edit: Callable[[str], str]) -> tuple[PlanLine, ...]:
    """Change what is to be done with the patches after the one that waits.

    Raises:
        PyggmlError: nothing is under way, or the changed plan is invalid.
    """
    with _under_way(project, "patch rebase --edit-todo") as opened:
        if isinstance(opened, RebaseResult):
            raise PyggmlError(f"`{opened.recovered}` is finished now", "There is nothing left to plan.")
        _, state = opened
        name = state.waiting.name if state.waiting else ""
        names = [line.name for line in state.todo]
        at = names.index(name) + 1 if name in names else 0 if state.waiting is None else len(names)
        rest = state.todo[at:]
        if not rest:
            raise PyggmlError("no patch is left to plan", f"Go on with: {REBASING.resume}")
        todo = (*state.todo[:at], *parse_plan(edit(plan_text(rest)), rest))
        REBASING.store(project, replace(state, todo=todo))
        return todo


@contextmanager
def _under_way(project: Project, doing: str) -> Iterator[tuple[RebasePlan, RebaseState] | RebaseResult]:
    state = load_rebase(project)
    # `changing` finishes a killed rebase that was decided, even if its state is gone already.
    with changing(project, doing, state.source if state else None, keeps_series=True) as session:
        work, finished = session.work, session.finished
        state = load_rebase(project)
        if state is None and finished and finished.startswith("patch rebase "):
            yield RebaseResult("", "", (), PublishedRebase(()), finished)
            return
        if state is None:
            raise PyggmlError("no rebase is under way", "Begin one with: pyggml patch rebase --onto PIN")
        onto = onto_workspace(work, state.onto)
        aborting = doing == "patch rebase --abort"
        if _digest(work, onto) != state.digest and not aborting:
            raise PyggmlError(
                f"the series on pin {work.pin.name} has changed since the rebase began",
                f"Put its files back as they were, or begin again after: {REBASING.abort}",
            )
        stack = () if aborting else work.stack()
        yield RebasePlan(work, stack, onto, state.todo, state.decisions, frozenset(state.edited)), state


def _resume(
    project: Project, plan: RebasePlan, state: RebaseState, hooks: RebaseHooks | None, replace_series: bool
) -> RebaseResult:
    state = replace(state, waiting=None)
    REBASING.store(project, state)
    plan = replace(plan, todo=state.todo, decisions=state.decisions, edited=frozenset(state.edited))
    return _run(project, plan, state, hooks or RebaseHooks(), replace_series)


def _run(
    project: Project, plan: RebasePlan, state: RebaseState, hooks: RebaseHooks, replace_series: bool
) -> RebaseResult:
    compiled = set(state.compiled)

    def check(step: RebasedPatch) -> str | None:
        if hooks.check is None or step.patch.tree in compiled:
            return None
        failure = hooks.check(step)
        if failure is None:
            compiled.add(step.patch.tree)
        return failure

    result = run_plan(plan, hooks.report, check if hooks.check is not None else None)
    state = replace(state, compiled=tuple(sorted(compiled)))
    if result.stop is not None:
        raise _stop(project, plan, state, result.stop, result.steps)
    files = series_of(plan, result.steps)
    others = differing(plan, files)
    closed = read_toml(plan.onto.directory / SERIES_FILE, {}).get(CLOSED)
    if others and replace_series and closed:
        raise PyggmlError(
            f"the series on pin {state.onto} is closed: {closed}",
            f"Give up with: {REBASING.abort}   (`pyggml patch refresh --reopen --pin {state.onto}` opens it again)",
        )
    if others and not replace_series:
        REBASING.store(project, replace(state, waiting=SavedStop("publish")))
        raise _other_series(plan, others)
    doing = f"patch rebase --from {state.source} --onto {state.onto}"
    published = publish_rebase(plan, result.steps, doing, files)
    return RebaseResult(state.source, state.onto, result.steps, published)


def _stop(
    project: Project, plan: RebasePlan, state: RebaseState, stop: RebaseStop, steps: tuple[RebasedPatch, ...]
) -> RebaseStoppedError:
    place = private_tree(project, state.onto)
    stages = stop.merged.stages if stop.kind in ("conflict", "misfit") else ()
    make_checkout(plan.onto.git, place, stop.head, stop.start, stages)
    report = make_report(plan, stop, place)
    file = rebase_dir(project) / REPORT_FILE
    write_atomic(file, report_text(report).encode("utf-8", "surrogateescape"))
    saved = SavedStop(
        stop.kind,
        stop.patch.name,
        [line.name for line in plan.todo].index(stop.patch.name) + 1,
        stop.head,
        stop.merged.tree,
        stop.start,
        stop.merged.paths,
        stop.unconfirmed if stop.kind == "confirm" else (),
    )
    REBASING.store(project, replace(state, waiting=saved))
    where = ", ".join(stop.merged.paths if stages else saved.unconfirmed)
    message = f"patch {stop.patch.name} onto {state.onto}: {KINDS[stop.kind]}"
    message += f": {where}" if where else ""
    hint = f"Edit {place}, then: {REBASING.resume}   (details: {file})"
    if stop.kind == "confirm":
        hint = f"If that is right: {REBASING.resume} --confirm   (if not, edit {place}; details: {file})"
    if stop.note:
        first = next((line for line in stop.note.splitlines() if line.strip()), "")
        message = f"{message}: {first}"
    return RebaseStoppedError(message, hint, report, steps)


def _other_series(plan: RebasePlan, others: Sequence[str]) -> StoppedError:
    named = f" ({', '.join(others[:3])})" if others else ""
    return StoppedError(
        f"the rebase is done, but pin {plan.onto.pin.name} already has another series{named}",
        f"Replace it with `{REBASING.resume} --replace`, or keep it: --abort, then `pyggml patch rebase --record`.",
    )


def _take_in(
    project: Project, state: RebaseState, stop: SavedStop, confirm: bool, remove: Sequence[str]
) -> RebaseState:
    """The state with the worktree's content as a decision."""
    place = private_tree(project, state.onto)
    if place.is_dir() and not (place / ".git").exists():
        raise PyggmlError(
            f"{place}: its .git is gone, so nobody can tell what was edited there",
            f"Move {place} elsewhere; {REBASING.resume} makes it anew; copy the files that you resolved into it",
        )
    if not (place / ".git").is_dir():
        REBASING.store(project, replace(state, waiting=None))
        raise PyggmlError(
            f"{place} is gone: what was resolved there is lost",
            f"Make it anew with: {REBASING.resume}   (or give up: {REBASING.abort})",
        )
    git = Git(place / ".git", place)
    tree = resolved_tree(git, stop, remove)
    head_tree = git.text("rev-parse", f"{stop.head}^{{tree}}")
    if stop.kind == "confirm" and tree == stop.start and not confirm:
        raise PyggmlError(
            f"patch {stop.name}: {', '.join(stop.unconfirmed)}",
            f"If that is right: {REBASING.resume} --confirm; if not, move it in {place}",
        )
    if stop.kind == "build" and tree == stop.start:
        return state
    if stop.kind in ("conflict", "misfit") and tree == head_tree and stop.mechanical != head_tree:
        raise PyggmlError(
            f"the resolution leaves nothing of patch {stop.name}",
            f"If it is not needed any more: {REBASING.skip}",
        )
    old = state.decisions.get(stop.name, Decision(stop.name))
    confirmed = tuple(dict.fromkeys((*old.confirmed, *stop.unconfirmed))) if confirm else old.confirmed
    resolution = make_resolution(git, stop.mechanical, tree, conflicting=bool(stop.paths))
    decision = replace(old, action=PICK, resolution=resolution, confirmed=confirmed)
    edited = tuple(dict.fromkeys((*state.edited, stop.name))) if stop.kind == "edit" else state.edited
    return replace(state, decisions={**state.decisions, stop.name: decision}, edited=edited)


def onto_workspace(work: Workspace, name: str) -> Workspace:
    """The new pin as a workspace with an empty series: what is there is only compared in the end.

    Raises:
        PyggmlError: the pin is unknown, not fetched, the same or older.
    """
    pin = work.pins.get(name)
    names = [known.name for known in work.pins.pins]
    if pin.name == work.pin.name:
        raise PyggmlError(
            f"the series is on pin {pin.name} already",
            f"Name another one: {', '.join(n for n in names if n != pin.name) or 'there is none yet'}; "
            "or the pin it comes from with --from PIN.",
        )
    if names.index(pin.name) < names.index(work.pin.name):
        raise PyggmlError(
            f"pin {pin.name} is older than {work.pin.name}: a rebase goes forward",
            "vendor/pins.toml lists the pins oldest first; name the older one with --from.",
        )
    return open_bare(work.project, pin.name)


def _digest(work: Workspace, onto: Workspace) -> str:
    digest = hashlib.sha256(f"{work.base} {onto.base}".encode())
    for path in sorted(work.directory.glob("*.patch")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(read_file(work.directory / SERIES_FILE) or b"")
    return digest.hexdigest()
