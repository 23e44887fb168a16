"""A rebase as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyggml.series.patchfile.hunks import HunkMove
from pyggml.series.rebasing.plan import verdict_text
from pyggml.series.rebasing.run import RebaseResult
from pyggml.series.rebasing.verdict import CONFLICT, RebasedPatch

SHOWN_HUNKS = 8


def step_lines(step: RebasedPatch) -> list[str]:
    """One patch: its verdict, then what moved, what is upstream, and what needs a look."""
    how = ""
    if step.how:
        how = ", resolved as recorded" if step.verdict == CONFLICT else ", adapted as recorded"
    out = [f"{step.number or '+':>3}  {step.patch.name:<28}  {verdict_text(step)}{how}"]
    if step.reason:
        out.append(f"     {step.reason}")
    moved = [move for move in step.comparison.hunks if _moved(move)]
    for move in moved[:SHOWN_HUNKS]:
        out.append(f"     {_move_line(move)}")
    if len(moved) > SHOWN_HUNKS:
        out.append(f"     … and {len(moved) - SHOWN_HUNKS} more hunks that moved")
    gone = [m for m in step.comparison.hunks if m.after is None and m.number not in step.comparison.upstream]
    for move in gone if step.commit is not None else ():
        where = f"{move.before.path}:{move.before.line}"
        out.append(f"     look: hunk {move.number} ({where}) has no counterpart in the new patch")
    if step.comparison.upstream and step.commit is not None:
        numbers = ", ".join(map(str, step.comparison.upstream))
        out.append(f"     upstream already: hunks {numbers}; the new patch is what is left")
    for path, line in step.comparison.deleted:
        out.append(
            f"     look: deletes a line of upstream that the old patch did not delete: {path}: {line.strip()}"
        )
    for path, directory in step.comparison.left_behind:
        out.append(
            f"     look: upstream moved the files next to {path} to {directory}; the new file stays behind"
        )
    for block in step.comparison.repeated:
        out.append(
            f"     look: adds {block.count} lines that {block.path} has already, at line {block.line}: {block.first}"
        )
    for missing in step.comparison.missing:
        out.append(
            f"     look: uses {missing.name} in {missing.path}, which {missing.patch} would have added and is left out"
        )
    return out


def _moved(move: HunkMove) -> bool:
    return move.after is not None and (
        bool(move.offset) or move.after.path != move.before.path or move.function_changed
    )


def _move_line(move: HunkMove) -> str:
    assert move.after is not None  # noqa: S101
    before, after = move.before, move.after
    where = f"{before.path}:{before.line} -> " + ("" if after.path == before.path else f"{after.path}:")
    text = f"hunk {move.number}: {where}{after.line} ({move.offset:+d})"
    if after.function or before.function:
        text += f" in {after.function or 'no function'}"
    if move.function_changed:
        text += f" (was in {before.function or 'none'})"
    if after.candidates > 1 or before.candidates > 1:
        text += f", {before.candidates} places matched before, {after.candidates} now"
    return text


def step_document(step: RebasedPatch) -> dict[str, Any]:
    """One patch for `--json`."""
    return {
        "number": step.number or None,
        "name": step.patch.name,
        "subject": step.subject,
        "verdict": step.verdict,
        "summary": verdict_text(step),
        "resolution": step.how or None,
        "reason": step.reason or None,
        "hunks": step.comparison.total,
        "upstream_hunks": list(step.comparison.upstream),
        "moves": [
            {
                "hunk": move.number,
                "before": asdict(move.before),
                "after": asdict(move.after) if move.after else None,
                "offset": move.offset,
                "function_changed": move.function_changed,
            }
            for move in step.comparison.hunks
        ],
        "deleted_upstream_lines": [{"path": path, "line": line} for path, line in step.comparison.deleted],
        "left_behind": [{"path": path, "directory": to} for path, to in step.comparison.left_behind],
        "missing_names": [asdict(name) for name in step.comparison.missing],
        "repeated_blocks": [asdict(block) for block in step.comparison.repeated],
        "commit": step.commit.id if step.commit else None,
        "tree": step.commit.tree if step.commit else None,
    }


def result_lines(result: RebaseResult) -> list[str]:
    """What was published."""
    if result.recovered:
        return [f"finished `{result.recovered}`, which had been killed half-way"]
    kept = sum(step.commit is not None for step in result.steps)
    out = [f"{kept} of {len(result.steps)} patches are on pin {result.onto}"]
    if not result.published.written:
        out.append(f"patches/{result.onto} is up to date: nothing was written")
    out += [f"wrote {path}" for path in result.published.written]
    if result.published.moved:
        out.append("the work tree moved along; `pyggml undo` brings everything back")
    if result.published.default:
        out.append(f"{result.onto} is now the default pin")
    return out


def result_document(result: RebaseResult) -> dict[str, Any]:
    """A finished rebase for `--json`."""
    return {
        "state": "done",
        "from": result.source,
        "onto": result.onto,
        "recovered": result.recovered,
        "patches": [step_document(step) for step in result.steps],
        "written": list(result.published.written),
        "moved": result.published.moved,
        "default": result.published.default,
    }
