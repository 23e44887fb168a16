"""A rebase as a pure function: old series, new base and decisions in; new commits or the first stop out.

Only objects are written. Going on after a stop means one more decision and the same function again, so that a
rebase that was finished by hand has been replayed by the time it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.git.object_store import ObjectStore
from pyggml.series.patchfile.mail import Identity
from pyggml.series.rebasing.decisions import (
    ADD,
    DECISIONS_FILE,
    DIRECTORY,
    IN_UPSTREAM,
    LABELS,
    PICK,
    SKIP,
    Decision,
    change_id,
    make_resolution,
    replay,
)
from pyggml.series.rebasing.missing_names import names_added
from pyggml.series.rebasing.todo import EDIT, PlanLine
from pyggml.series.rebasing.verdict import (
    ADDED,
    CONFLICT,
    EMPTY,
    SKIPPED,
    UPSTREAM,
    PatchComparison,
    RebasedPatch,
    compare_patch,
)
from pyggml.series.stack.commits import Commit, stored_commit
from pyggml.series.stack.links import check_new_links
from pyggml.series.stack.merge import MergeResult, merge_stored
from pyggml.series.stack.series_file import Patch
from pyggml.series.stack.trees import Trees, open_trees, read_blobs, renamed_paths
from pyggml.series.worktree.workspace import Workspace

Check = Callable[[RebasedPatch], str | None]


@dataclass(frozen=True)
class RebasePlan:
    """Everything that decides the outcome.

    Attributes:
        stack: the commits of the old series on its recorded base.
        edited: patches whose `edit` stop is over.
    """

    source: Workspace
    stack: Sequence[Commit]
    onto: Workspace
    todo: tuple[PlanLine, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    edited: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RebaseStop:
    """Where the user is needed.

    Attributes:
        kind: `conflict`, `misfit` (a recorded resolution does not fit), `confirm` (a hunk is in another
            function now), `edit` or `build`.
        head: the commit that the patch goes on, and `ours`, its tree.
        base, theirs: the trees before and after the old patch.
        merged: the mechanical merge.
        start: the tree to begin editing with.
        note: why a resolution does not fit, or what the compiler said.
    """

    kind: str
    number: int
    patch: Patch
    author: Identity
    message: str
    head: str
    ours: str
    base: str
    theirs: str
    merged: MergeResult
    start: str
    comparison: PatchComparison
    note: str = ""

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(move.key for move in self.comparison.hunks if move.function_changed))


@dataclass(frozen=True)
class PlanResult:
    """The patches that are done, and where it stopped if it did."""

    steps: tuple[RebasedPatch, ...]
    stop: RebaseStop | None = None


def run_plan(
    plan: RebasePlan,
    report: Callable[[RebasedPatch], None] = lambda step: None,
    check: Check | None = None,
) -> PlanResult:
    """Merge patch by patch onto the new base.

    Args:
        report: called after each patch.
        check: called with each new commit; if it returns a text, the rebase stops there (a build that fails).
    """
    with open_trees(plan.onto.git) as trees:
        return _run_plan(plan, trees, report, check)


def _run_plan(
    plan: RebasePlan, trees: Trees, report: Callable[[RebasedPatch], None], check: Check | None
) -> PlanResult:
    base = plan.onto.pin.tree
    renames = renamed_paths(plan.onto.git, plan.source.pin.tree, base)
    parent, tree = plan.onto.base, base
    steps: list[RebasedPatch] = []
    left_out: dict[str, frozenset[bytes]] = {}
    for line in plan.todo:
        step = _rebase_patch(plan, trees, line, parent, tree, renames, left_out, check)
        if isinstance(step, RebaseStop):
            return PlanResult(tuple(steps), step)
        steps.append(step)
        report(step)
        if step.commit is not None:
            parent, tree = step.commit.id, step.commit.tree
        else:
            before, after = plan.source.series.trees[step.number - 1 : step.number + 1]
            left_out[line.name] = names_added(trees.diff(before, after), trees.reader(before))
    return PlanResult(tuple(steps))


def _rebase_patch(
    plan: RebasePlan,
    trees: Trees,
    line: PlanLine,
    parent: str,
    tree: str,
    renames: Mapping[str, str],
    left_out: Mapping[str, frozenset[bytes]],
    check: Check | None,
) -> RebasedPatch | RebaseStop:
    git, upstream = plan.onto.git, plan.onto.pin.tree
    if line.action == ADD:
        return _add_patch(plan, trees.store, plan.decisions[line.name], parent, tree)
    number = plan.source.series.find(line.name)
    patch, old = plan.source.series.patches[number - 1], plan.stack[number - 1]
    base, theirs = plan.source.series.trees[number - 1], old.tree
    decision = plan.decisions.get(line.name, Decision(line.name))
    if line.action in (SKIP, IN_UPSTREAM):
        comparison = compare_patch(trees, (base, theirs), tree, tree, upstream, renames, conflicts=False)
        comparison = replace(comparison, verdict=UPSTREAM if line.action == IN_UPSTREAM else SKIPPED)
        return RebasedPatch(number, patch, old.subject, comparison, tree, "", line.reason)
    merged = merge_stored(trees.store, base, tree, theirs, LABELS)
    result, how, misfit = merged.tree, "", ""
    if decision.resolution is not None:
        try:
            trees.store.flush()
            result, how = replay(git, decision.resolution, merged.tree), "replayed"
        except PyggmlError as error:
            misfit = error.message
    conflicts = bool(merged.stages)
    comparison = compare_patch(
        trees, (base, theirs), tree, result, upstream, renames, left_out, conflicts=conflicts
    )
    message = old.message if decision.message is None else decision.message
    stop = RebaseStop(
        "", number, patch, old.author, old.message, parent, tree, base, theirs, merged, result, comparison
    )
    if misfit:
        return replace(stop, kind="misfit", note=misfit)
    if conflicts and not how:
        return replace(stop, kind="conflict", note=_changed_line_ends(git, merged))
    if line.action == EDIT and line.name not in plan.edited:
        return replace(stop, kind="edit")
    if any(move.function_changed and move.key not in decision.confirmed for move in comparison.hunks):
        return replace(stop, kind="confirm")
    if result == tree:
        reason = f"{len(comparison.upstream)} of {comparison.total} hunks are in {plan.onto.pin.name} word for word"
        if comparison.verdict == EMPTY:
            reason = "it changes nothing on what comes before it"
        return RebasedPatch(number, patch, old.subject, comparison, merged.tree, how, reason)
    check_new_links(trees.store, tree, result, f"patch {patch.name}")
    commit = stored_commit(trees.store, result, parent, old.author, message)
    new = replace(patch, **decision.entry, tree=result)
    step = RebasedPatch(number, new, commit.subject, comparison, merged.tree, how, "", commit)
    if check is None:
        return step
    trees.store.flush()
    if failure := check(step):
        return replace(stop, kind="build", patch=new, message=message, note=failure)
    return step


def _add_patch(
    plan: RebasePlan, store: ObjectStore, decision: Decision, parent: str, tree: str
) -> RebasedPatch:
    assert decision.resolution and decision.author and decision.message  # noqa: S101 -- see read_decisions
    try:
        store.flush()
        result = replay(plan.onto.git, decision.resolution, tree)
    except PyggmlError as error:
        raise PyggmlError(
            f"patch {decision.name}, which only pin {plan.onto.pin.name} has, does not apply: {error.message}",
            f"Adapt {DIRECTORY}/{decision.name}.patch, or remove it and its entry in {DIRECTORY}/{DECISIONS_FILE}.",
        ) from error
    commit = stored_commit(store, result, parent, decision.author, decision.message)
    patch = Patch(decision.name, result, **decision.entry)
    return RebasedPatch(0, patch, commit.subject, PatchComparison(ADDED, (), 0), tree, commit=commit)


def _changed_line_ends(git: Git, merged: MergeResult) -> str:
    """Says so if upstream converted a conflicting file: then every line conflicts."""
    for path in merged.paths:
        blobs = {stage.stage: stage.blob for stage in merged.stages if stage.path == path}
        if not {1, 2} <= set(blobs):
            continue
        base, ours = (b"\r\n" in content for content in read_blobs(git, [blobs[1], blobs[2]]))
        if base != ours:
            ends = ("LF to CRLF", "CRLF to LF")[base]
            return f"upstream changed the line ends of {path} from {ends}; take its version and repeat the change there"
    return ""


def decisions_of(plan: RebasePlan, steps: Sequence[RebasedPatch]) -> dict[str, Decision]:
    """The decisions that give exactly `steps` again, in their order."""
    actions = {line.name: line.action for line in plan.todo}
    decisions: dict[str, Decision] = {}
    for step in steps:
        name = step.patch.name
        old = plan.decisions.get(name, Decision(name))
        action = PICK if actions[name] == EDIT else actions[name]
        change = ""
        resolution = None
        if action in (SKIP, IN_UPSTREAM):
            trees = plan.source.series.trees
            change = change_id(plan.source.git, trees[step.number - 1], trees[step.number])
        elif old.resolution is not None:
            result = step.commit.tree if step.commit else None
            conflicting = step.verdict == CONFLICT
            resolution = old.resolution
            if result:
                resolution = make_resolution(plan.onto.git, step.mechanical, result, conflicting=conflicting)
        keys = {move.key for move in step.comparison.hunks if move.function_changed}
        decisions[name] = Decision(
            name,
            action,
            step.reason,
            tuple(key for key in old.confirmed if key in keys),
            old.message,
            old.author,
            old.entry,
            resolution,
            change,
            verdict_text(step),
        )
    return decisions


def verdict_text(step: RebasedPatch) -> str:
    """The verdict for people, e.g. `partly upstream (15 of 24 hunks are upstream)`."""
    comparison = step.comparison
    if comparison.upstream and step.verdict not in (UPSTREAM, EMPTY):
        return f"{step.verdict} ({len(comparison.upstream)} of {comparison.total} hunks are upstream)"
    return step.verdict
