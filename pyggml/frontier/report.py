"""A frontier as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyggml.frontier.collision import FATE_DEPENDS, FATE_EMPTY, FATE_PARTLY, FATE_UPSTREAM, Collision
from pyggml.frontier.placing import GONE
from pyggml.frontier.run import Break, FrontierReport, PatchFrontier

_SHOWN_HUNKS = 3
_SHOWN_LINES = 14
_QUESTIONS = {"compile": "does not compile", "proof": "its proof fails (semantics)"}


def report_lines(report: FrontierReport) -> list[str]:
    """Each patch and its frontier, then how it was found."""
    width = max(len(patch.name) for patch in report.patches)
    out = []
    for patch in report.patches:
        head = f"{patch.number:3d}  {patch.name:<{width}}  "
        out.append(head + _summary(patch, report))
        for one in patch.breaks:
            out += [f"     {line}" for line in _break_lines(one, patch)]
        if patch.contained:
            out.append(f"     {report.newest} has hunk {_numbers(patch)} of it already")
        out += [f"     note: {note}" for note in patch.notes]
    out += [f"note: {note}" for note in report.notes]
    broken = sum(patch.broken for patch in report.patches)
    out.append(
        f"pin {report.pin} over {report.ladder}, {report.first} to {report.newest}: "
        f"{broken} of {len(report.patches)} patches break; {len(report.probed)} of {report.rungs} trees looked at"
    )
    return out


def _numbers(patch: PatchFrontier) -> str:
    return ", ".join(str(hunk.number) for hunk in patch.contained)


def _summary(patch: PatchFrontier, report: FrontierReport) -> str:
    if not patch.breaks:
        return f"applies up to {report.newest}"
    one = patch.breaks[0]
    verb = f"applies up to {one.last_good}; from {one.first_bad} on: "
    if one.collision is not None:
        return verb + _fate(one.collision)
    return verb + _QUESTIONS[one.question]


def _fate(collision: Collision) -> str:
    if collision.fate == FATE_DEPENDS:
        return "needs a patch before it that does not apply"
    if collision.fate == FATE_PARTLY:
        return f"collides, {len(collision.contained)} of {collision.total} hunks are upstream"
    if collision.fate == FATE_UPSTREAM:
        return "wholly upstream: it can be dropped"
    if collision.fate == FATE_EMPTY:
        return "nothing is left to do for it"
    return {"renamed": "collides, its file was moved", "removed": "collides, its file was removed"}.get(
        collision.fate, collision.fate
    )


def _break_lines(one: Break, patch: PatchFrontier) -> list[str]:
    collision = one.collision
    if collision is None:
        return [one.detail] if one.detail else []
    out = []
    if one is not patch.breaks[0]:
        out.append(f"{one.question}: from {one.first_bad} on: {_fate(collision)}")
    if patch.without and patch.state != GONE:
        numbers = ", ".join(f"{number:04d}" for number in patch.without)
        out.append(f"judged without what conflicts of {numbers} (same files)")
    if collision.contained:
        out.append(
            "upstream already: "
            + ", ".join(f"hunk {h.number} ({h.path}:{h.line})" for h in collision.contained)
        )
    out += [f"moved: {old} -> {new}" for old, new in collision.moved]
    if collision.paths:
        out.append(f"conflicts in {', '.join(collision.paths)}")
    if collision.hunks:
        where = "at its lines" if collision.nearby else "in these files, none of it at its lines"
        out.append(f"upstream changed {where} from {one.last_good} to {one.first_bad}:")
    for hunk in collision.hunks[:_SHOWN_HUNKS]:
        lines = hunk.text.splitlines()
        out.append(f"  {hunk.path}:{hunk.line}")
        out += [f"    {line}" for line in lines[:_SHOWN_LINES]]
        if len(lines) > _SHOWN_LINES:
            out.append(f"    … {len(lines) - _SHOWN_LINES} more lines")
    if len(collision.hunks) > _SHOWN_HUNKS:
        out.append(f"  … {len(collision.hunks) - _SHOWN_HUNKS} more hunks (all of them with --json)")
    return out


def report_document(report: FrontierReport) -> dict[str, Any]:
    """The frontier for `--json`."""
    document = asdict(report)
    for row, patch in zip(document["patches"], report.patches, strict=True):
        row["broken"] = patch.broken
    return {**document, "broken": report.broken}
