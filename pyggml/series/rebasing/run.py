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
from pyggml.series.rebasing.decisions import DIRECTORY, Decision, make_resolution, read_decisions
from pyggml.series.rebasing.plan import GONE, PICK, SKIP, Plan, Stop, Todo, change_id, run_plan
from pyggml.series.rebasing.private_tree import NEXT, resolved_tree, tree_place
from pyggml.series.rebasing.publish import Published, differing, publish_rebase, series_of
from pyggml.series.rebasing.state import (
    KINDS,
    RebaseState,
    Waiting,
    clear_state,
    read_state,
    rebase_dir,
    write_state,
)
from pyggml.series.rebasing.stop_report import Dossier, dossier_text, make_dossier
from pyggml.series.rebasing.verdict import Step
from pyggml.series.stack.series_file import SERIES_FILE, Series
from pyggml.series.worktree.checkout import make_checkout
from pyggml.series.worktree.workspace import (
    Workspace,
    canonical,
    changing,
    known_position,
    refuse_edits,
    refuse_operation,
)
from pyggml.upstream.store import base_commit

DOSSIER_FILE = "dossier.md"


@dataclass(frozen=True)
class Hooks:
    """What a rebase tells and asks while it runs.

    Attributes:
        report: called after each patch.
        check: called with each new commit; what it returns is why it is not good (a failed build).
    """

    report: Callable[[Step], None] = lambda step: None
    check: Callable[[Step], str | None] | None = None


@dataclass(frozen=True)
class RebaseResult:
    """A rebase that is done.

    Attributes:
        steps: the verdicts, in order.
        published: what changed.
        recovered: the killed rebase that was finished instead; then there are no steps.
    """

    source: str
    onto: str
    steps: tuple[Step, ...]
    published: Published
    recovered: str | None = None


class RebaseStoppedError(StoppedError):
    """A person is needed; `dossier` says for what, `steps` are done."""

    def __init__(self, message: str, hint: str, dossier: Dossier, steps: tuple[Step, ...]) -> None:
        super().__init__(message, hint)
        self.dossier = dossier
        self.steps = steps


def begin(
    project: Project,
    onto_name: str,
    source_name: str | None = None,
    hooks: Hooks | None = None,
    *,
    replace_series: bool = False,
    edit: Callable[[str], str] | None = None,
) -> RebaseResult:
    """Rebase the series of one pin onto a newer one.

    Args:
        source_name: by default the project's default pin.
        replace_series: overwrite another series on the new pin.
        edit: given the plan as text, returns it changed (an editor).

    Raises:
        PyggmlError: a rebase or another operation is under way, the work tree is edited, a pin is unknown,
            not fetched, the same or older.
        RebaseStoppedError: a person is needed.
    """
    hooks = hooks or Hooks()
    with changing(project, f"patch rebase --onto {onto_name}", source_name) as (work, finished):
        if finished and finished.startswith("patch rebase ") and finished.endswith(f" --onto {onto_name}"):
            return RebaseResult("", onto_name, (), Published(()), finished)
        refuse_operation(work)
        onto = onto_workspace(work, onto_name)
        refuse_edits(work, "`patch rebase`")
        known_position(work)
        if not work.series.patches:
            raise PyggmlError(
                f"the series on pin {work.pin.name} is empty: nothing to rebase",
                "Name the pin it is on with: --from PIN",
            )
        decisions = read_decisions(onto.directory / DIRECTORY, work.pin.name)
        stack = canonical(work)
        todo = _todo(work, decisions)
        if edit is not None:
            todo = parse_todo(edit(todo_text(todo)), todo)
        clear_state(project)
        compiling = hooks.check is not None
        state = RebaseState(
            work.pin.name, onto.pin.name, _digest(work, onto), todo, decisions, compiling=compiling
        )
        plan = Plan(work, stack, onto, todo, decisions)
        return _run(project, plan, state, hooks, replace_series)


def go_on(
    project: Project,
    hooks: Hooks | None = None,
    *,
    confirm: bool = False,
    remove: Sequence[str] = (),
    replace_series: bool = False,
) -> RebaseResult:
    """Take in what was done in the private worktree, and go on.

    Args:
        confirm: the hunks that stand in another function now are where they belong.
        remove: files that the patch is to remove.

    Raises:
        PyggmlError: nothing is under way, or the worktree holds no resolution; the message says why.
        RebaseStoppedError: a person is needed again.
    """
    with _under_way(project, "patch rebase --continue") as opened:
        if isinstance(opened, RebaseResult):
            return opened
        plan, state = opened
        waiting = state.waiting
        if waiting is not None and waiting.kind == "publish" and not replace_series:
            raise _other_series(plan, ())
        if waiting is not None and waiting.kind != "publish":
            state = _taken_in(project, plan, state, waiting, confirm, remove)
        return _again(project, plan, state, hooks or Hooks(), replace_series)


def skip(
    project: Project, reason: str, *, upstream: bool = False, hooks: Hooks | None = None
) -> RebaseResult:
    """Leave the patch that waits out of the new series, and go on.

    Args:
        reason: why, for the record.
        upstream: because upstream has it.

    Raises:
        PyggmlError: nothing is under way, or no patch waits.
        RebaseStoppedError: a person is needed again.
    """
    with _under_way(project, "patch rebase --skip") as opened:
        if isinstance(opened, RebaseResult):
            return opened
        plan, state = opened
        if state.waiting is None or not state.waiting.name:
            raise PyggmlError("no patch waits to be left out", f"Go on with: {NEXT}")
        action = GONE if upstream else SKIP
        name = state.waiting.name
        todo = tuple(Todo(action, name, reason) if item.name == name else item for item in state.todo)
        return _again(project, plan, replace(state, todo=todo), hooks or Hooks(), False)


def abort(project: Project) -> str:
    """Forget the rebase; nothing else was changed by it. Returns what it was, in words.

    Raises:
        PyggmlError: nothing is under way.
    """
    with _under_way(project, "patch rebase --abort") as opened:
        if isinstance(opened, RebaseResult):
            raise PyggmlError(
                f"`{opened.recovered}` was decided before it was killed; it is finished now",
                "To take it back: pyggml undo",
            )
        clear_state(project)
        return opened[1].words()


def edit_todo(project: Project, edit: Callable[[str], str]) -> tuple[Todo, ...]:
    """Change what is to be done with the patches after the one that waits.

    Raises:
        PyggmlError: nothing is under way, or the changed plan is not one.
    """
    with _under_way(project, "patch rebase --edit-todo") as opened:
        if isinstance(opened, RebaseResult):
            raise PyggmlError(f"`{opened.recovered}` is finished now", "There is nothing left to plan.")
        _, state = opened
        name = state.waiting.name if state.waiting else ""
        names = [item.name for item in state.todo]
        at = names.index(name) + 1 if name in names else 0 if state.waiting is None else len(names)
        rest = state.todo[at:]
        if not rest:
            raise PyggmlError("no patch is left to be planned", f"Go on with: {NEXT}")
        todo = (*state.todo[:at], *parse_todo(edit(todo_text(rest)), rest))
        write_state(project, replace(state, todo=todo))
        return todo


@contextmanager
def _under_way(project: Project, doing: str) -> Iterator[tuple[Plan, RebaseState] | RebaseResult]:
    state = read_state(project)
    # A killed rebase that was decided is finished by `changing`, even if its state is gone already.
    with changing(project, doing, state.source if state else None) as (work, finished):
        state = read_state(project)
        if state is None and finished and finished.startswith("patch rebase "):
            yield RebaseResult("", "", (), Published(()), finished)
            return
        if state is None:
            raise PyggmlError("no rebase is under way", "Begin one with: pyggml patch rebase --onto PIN")
        onto = onto_workspace(work, state.onto)
        if _digest(work, onto) != state.digest and doing != "patch rebase --abort":
            raise PyggmlError(
                f"the series on pin {work.pin.name} has changed since the rebase began",
                "Put its files back as they were, or begin again after: pyggml patch rebase --abort",
            )
        stack = () if doing == "patch rebase --abort" else canonical(work)
        yield Plan(work, stack, onto, state.todo, state.decisions, frozenset(state.edited)), state


def _again(
    project: Project, plan: Plan, state: RebaseState, hooks: Hooks, replace_series: bool
) -> RebaseResult:
    state = replace(state, waiting=None)
    write_state(project, state)
    plan = replace(plan, todo=state.todo, decisions=state.decisions, edited=frozenset(state.edited))
    return _run(project, plan, state, hooks, replace_series)


def _run(
    project: Project, plan: Plan, state: RebaseState, hooks: Hooks, replace_series: bool
) -> RebaseResult:
    compiled = set(state.compiled)

    def check(step: Step) -> str | None:
        if hooks.check is None or step.patch.tree in compiled:
            return None
        told = hooks.check(step)
        if told is None:
            compiled.add(step.patch.tree)
        return told

    outcome = run_plan(plan, hooks.report, check)
    state = replace(state, compiled=tuple(sorted(compiled)))
    if outcome.stop is not None:
        raise _stop(project, plan, state, outcome.stop, outcome.steps)
    files = series_of(plan, outcome.steps)
    others = differing(plan, files)
    if others and not replace_series:
        write_state(project, replace(state, waiting=Waiting("publish")))
        raise _other_series(plan, others)
    doing = f"patch rebase --from {state.source} --onto {state.onto}"
    published = publish_rebase(plan, outcome.steps, doing, files)
    return RebaseResult(state.source, state.onto, outcome.steps, published)


def _stop(
    project: Project, plan: Plan, state: RebaseState, stop: Stop, steps: tuple[Step, ...]
) -> RebaseStoppedError:
    place = tree_place(project, state.onto)
    stages = stop.merged.stages if stop.kind in ("conflict", "misfit") else ()
    make_checkout(plan.onto.git, place, stop.head, stop.start, stages)
    dossier = make_dossier(plan, stop, place)
    file = rebase_dir(project) / DOSSIER_FILE
    write_atomic(file, dossier_text(dossier).encode("utf-8", "surrogateescape"))
    waiting = Waiting(
        stop.kind,
        stop.patch.name,
        [item.name for item in plan.todo].index(stop.patch.name) + 1,
        stop.head,
        stop.merged.tree,
        stop.start,
        stop.merged.paths,
        stop.unconfirmed if stop.kind == "confirm" else (),
    )
    write_state(project, replace(state, waiting=waiting))
    where = ", ".join(stop.merged.paths) if stages else ", ".join(waiting.unconfirmed)
    told = f"patch {stop.patch.name} onto {state.onto}: {KINDS[stop.kind]}" + (f": {where}" if where else "")
    hint = f"Edit {place}, then: {NEXT}   (all about it: {file})"
    if stop.kind == "confirm":
        hint = f"If that is right: {NEXT} --confirm   (else edit {place}; all about it: {file})"
    if stop.note:
        first = next((line for line in stop.note.splitlines() if line.strip()), "")
        told = f"{told}: {first}"
    return RebaseStoppedError(told, hint, dossier, steps)


def _other_series(plan: Plan, others: Sequence[str]) -> StoppedError:
    named = f" ({', '.join(others[:3])})" if others else ""
    return StoppedError(
        f"the rebase is done, but pin {plan.onto.pin.name} has a series already that differs{named}",
        f"Replace it with `{NEXT} --replace`, or --abort and keep it: `pyggml patch rebase --record` remembers it.",
    )


def _taken_in(
    project: Project, plan: Plan, state: RebaseState, waiting: Waiting, confirm: bool, remove: Sequence[str]
) -> RebaseState:
    """The state with the worktree's content as a decision."""
    place = tree_place(project, state.onto)
    if place.is_dir() and not (place / ".git").exists():
        raise PyggmlError(
            f"{place}: its .git is gone, so what was edited there cannot be told from the rest",
            f"Move {place} elsewhere; {NEXT} makes it anew, then copy the files that you resolved into it",
        )
    if not (place / ".git").is_dir():
        write_state(project, replace(state, waiting=None))
        raise PyggmlError(
            f"{place} is gone: what was resolved there is lost",
            f"Make it anew with: {NEXT}   (or give up: pyggml patch rebase --abort)",
        )
    git = Git(place / ".git", place)
    tree = resolved_tree(git, waiting, remove)
    head_tree = git.text("rev-parse", f"{waiting.head}^{{tree}}")
    if waiting.kind == "confirm" and tree == waiting.start and not confirm:
        raise PyggmlError(
            f"patch {waiting.name}: {', '.join(waiting.unconfirmed)}",
            f"If that is right: {NEXT} --confirm; else move it in {place}",
        )
    if waiting.kind == "build" and tree == waiting.start:
        return state
    if waiting.kind in ("conflict", "misfit") and tree == head_tree and waiting.mechanical != head_tree:
        raise PyggmlError(
            f"the resolution leaves nothing of patch {waiting.name}",
            "If it is not needed any more: pyggml patch rebase --skip --reason TEXT",
        )
    old = state.decisions.get(waiting.name, Decision(waiting.name))
    confirmed = tuple(dict.fromkeys((*old.confirmed, *waiting.unconfirmed))) if confirm else old.confirmed
    resolution = make_resolution(git, waiting.mechanical, tree, conflicting=bool(waiting.paths))
    decision = replace(old, action=PICK, resolution=resolution, confirmed=confirmed)
    edited = tuple(dict.fromkeys((*state.edited, waiting.name))) if waiting.kind == "edit" else state.edited
    return replace(state, decisions={**state.decisions, waiting.name: decision}, edited=edited)


def onto_workspace(work: Workspace, name: str) -> Workspace:
    """The new pin as a workspace with an empty series: what lies there is only compared in the end."""
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
    base = base_commit(work.project, work.pins, pin)
    directory = work.project.patches_dir / pin.name
    return Workspace(work.project, work.pins, pin, work.git, base, directory, Series(pin.name, pin.tree, ()))


def _digest(work: Workspace, onto: Workspace) -> str:
    digest = hashlib.sha256(f"{work.base} {onto.base}".encode())
    for path in sorted(work.directory.glob("*.patch")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    listing = work.directory / SERIES_FILE
    digest.update(listing.read_bytes() if listing.is_file() else b"")
    return digest.hexdigest()


def _todo(work: Workspace, decisions: dict[str, Decision]) -> tuple[Todo, ...]:
    """The plan: the old order, or the recorded one; a patch was left out for what it changed then only."""
    names = [patch.name for patch in work.series.patches]
    if set(names) == set(decisions):
        names = list(decisions)
    trees = work.series.trees
    found = []
    for name in names:
        decision = decisions.get(name, Decision(name))
        number = work.series.find(name)
        same = decision.action == PICK or decision.change == change_id(
            work.git, trees[number - 1], trees[number]
        )
        if decision.action != PICK and same:
            found.append(Todo(decision.action, name, decision.reason))
        else:
            found.append(Todo(PICK, name))
    return tuple(found)


def todo_text(todo: Sequence[Todo]) -> str:
    """The plan for an editor."""
    rows = [f"{item.action} {item.name}" + (f"  # {item.reason}" if item.reason else "") for item in todo]
    rows += [
        "",
        "# pick NAME               merge the patch",
        "# edit NAME               merge it, then stop so that it can be changed",
        "# skip NAME  # reason     leave it out",
        "# upstream NAME  # why    leave it out: upstream has it",
        "# The order can be changed; every patch must be named once.",
    ]
    return "\n".join(rows) + "\n"


def parse_todo(text: str, before: Sequence[Todo]) -> tuple[Todo, ...]:
    """Read a plan back.

    Raises:
        PyggmlError: an unknown action, or a patch that is unknown, missing or named twice.
    """
    found = []
    for line in text.splitlines():
        words, _, reason = line.partition("#")
        if not words.strip():
            continue
        action, _, name = words.strip().partition(" ")
        if action not in (PICK, "edit", SKIP, GONE):
            raise PyggmlError(
                f"the plan has a line that is none: {line!r}", "Begin it with pick, edit, skip or upstream."
            )
        found.append(Todo(action, name.strip(), reason.strip()))
    wanted, named = sorted(item.name for item in before), sorted(item.name for item in found)
    if wanted != named:
        odd = sorted(set(wanted) ^ set(named)) or [name for name in named if named.count(name) > 1]
        raise PyggmlError(
            f"the plan must name each patch once; not so: {', '.join(dict.fromkeys(odd))}",
            "Leave a patch out with: skip NAME  # reason",
        )
    return tuple(found)
