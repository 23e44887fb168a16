"""The plan of a rebase: what to do with each patch, and the plan as text for an editor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.series.rebasing.decisions import ADD, IN_UPSTREAM, PICK, SKIP, Decision, change_id
from pyggml.series.worktree.workspace import Workspace

EDIT = "edit"


@dataclass(frozen=True)
class PlanLine:
    """What to do with one patch: `pick`, `edit` (stop after the merge), `skip`, `upstream` or `add`."""

    action: str
    name: str
    reason: str = ""


def initial_plan(work: Workspace, decisions: Mapping[str, Decision]) -> tuple[PlanLine, ...]:
    """The old order or the recorded one; a patch is left out only if it still changes what it did then."""
    old = [patch.name for patch in work.series.patches]
    added = [name for name, decision in decisions.items() if decision.action == ADD and name not in old]
    recorded = list(decisions)
    if {*old, *added} == set(recorded):
        names = recorded
    else:
        names = old
        for name in added:
            before = [other for other in recorded[: recorded.index(name)] if other in names]
            names.insert(names.index(before[-1]) + 1 if before else 0, name)
    trees = work.series.trees
    lines = []
    for name in names:
        decision = decisions.get(name, Decision(name))
        if name in added:
            lines.append(PlanLine(ADD, name))
            continue
        number = work.series.find(name)
        if decision.action in (SKIP, IN_UPSTREAM) and decision.change == change_id(
            work.git, trees[number - 1], trees[number]
        ):
            lines.append(PlanLine(decision.action, name, decision.reason))
        else:
            lines.append(PlanLine(PICK, name))
    return tuple(lines)


def plan_text(plan: Sequence[PlanLine]) -> str:
    """The plan for an editor."""
    rows = [f"{line.action} {line.name}" + (f"  # {line.reason}" if line.reason else "") for line in plan]
    rows += [
        "",
        "# pick NAME               merge the patch",
        "# edit NAME               merge it, then stop so that it can be changed",
        "# skip NAME  # reason     leave it out",
        "# upstream NAME  # why    leave it out: upstream has it",
        "# The order can be changed; every patch must be named once.",
        *(
            ["# add NAME                a patch that only the new pin has; remove the line to leave it out"]
            * any(line.action == ADD for line in plan)
        ),
    ]
    return "\n".join(rows) + "\n"


def parse_plan(text: str, before: Sequence[PlanLine]) -> tuple[PlanLine, ...]:
    """Read a plan back.

    Raises:
        PyggmlError: an unknown action, or a patch that is unknown, missing or named twice.
    """
    plan = []
    added = {line.name for line in before if line.action == ADD}
    for line in text.splitlines():
        words, _, reason = line.partition("#")
        if not words.strip():
            continue
        action, _, name = words.strip().partition(" ")
        name = name.strip()
        if action not in (PICK, EDIT, SKIP, IN_UPSTREAM, ADD):
            raise PyggmlError(
                f"this line of the plan has no known action: {line!r}",
                "Begin it with pick, edit, skip or upstream.",
            )
        if (action == ADD) != (name in added):
            raise PyggmlError(
                f"this line of the plan has another action than before: {line!r}",
                "A patch that only the new pin has is added, or its line removed; only such a patch can be added.",
            )
        plan.append(PlanLine(action, name, reason.strip()))
    named = sorted(line.name for line in plan)
    wanted = sorted(line.name for line in before if line.action != ADD or line.name in named)
    if wanted != named:
        wrong = sorted(set(wanted) ^ set(named)) or [name for name in named if named.count(name) > 1]
        raise PyggmlError(
            f"the plan must name each patch once; check: {', '.join(dict.fromkeys(wrong))}",
            "Leave a patch out with: skip NAME  # reason",
        )
    return tuple(plan)
