"""A rebase in words and as JSON."""

from __future__ import annotations

from typing import Any

from pyggml.series.patchfile.hunks import HunkMove
from pyggml.series.rebasing.plan import summary
from pyggml.series.rebasing.run import RebaseResult
from pyggml.series.rebasing.verdict import CONFLICT, Step

SHOWN_HUNKS = 8


def step_lines(step: Step) -> list[str]:
    """One patch: its verdict, then what moved, is upstream, or deserves a look."""
    how = ""
    if step.how:
        how = ", resolved as recorded" if step.verdict == CONFLICT else ", adapted as recorded"
    out = [f"{step.number:3d}  {step.patch.name:<28}  {summary(step)}{how}"]
    if step.reason:
        out.append(f"     {step.reason}")
    moved = [move for move in step.judged.hunks if _moved(move)]
    for move in moved[:SHOWN_HUNKS]:
        out.append(f"     {_move_line(move)}")
    if len(moved) > SHOWN_HUNKS:
        out.append(f"     … and {len(moved) - SHOWN_HUNKS} hunks more that moved")
    gone = [m for m in step.judged.hunks if m.after is None and m.number not in step.judged.upstream]
    for move in gone if step.commit is not None else ():
        where = f"{move.before.path}:{move.before.line}"
        out.append(f"     look: hunk {move.number} ({where}) has no counterpart in the new patch")
    if step.judged.upstream and step.commit is not None:
        numbers = ", ".join(map(str, step.judged.upstream))
        out.append(f"     upstream already: hunks {numbers}; the new patch is what is left")
    for path, line in step.judged.deleted:
        out.append(
            f"     look: deletes a line of upstream that the old patch did not: {path}: {line.strip()}"
        )
    for path, directory in step.judged.left_behind:
        out.append(
            f"     look: upstream moved the files beside {path} to {directory}; the new file stays behind"
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
        text += f", places that look alike: {before.candidates} before, {after.candidates} now"
    return text


def step_document(step: Step) -> dict[str, Any]:
    """One patch for `--json`."""

    def place(move: HunkMove, after: bool) -> dict[str, Any] | None:
        where = move.after if after else move.before
        return None if where is None else dict(vars(where))

    return {
        "number": step.number,
        "name": step.patch.name,
        "subject": step.subject,
        "verdict": step.verdict,
        "summary": summary(step),
        "resolution": step.how or None,
        "reason": step.reason or None,
        "hunks": step.judged.total,
        "upstream_hunks": list(step.judged.upstream),
        "moves": [
            {
                "hunk": move.number,
                "before": place(move, False),
                "after": place(move, True),
                "offset": move.offset,
                "function_changed": move.function_changed,
            }
            for move in step.judged.hunks
        ],
        "deleted_upstream_lines": [{"path": path, "line": line} for path, line in step.judged.deleted],
        "left_behind": [{"path": path, "directory": to} for path, to in step.judged.left_behind],
        "commit": step.commit.id if step.commit else None,
        "tree": step.commit.tree if step.commit else None,
    }


def result_lines(result: RebaseResult) -> list[str]:
    """What was published, in words."""
    if result.recovered:
        return [f"finished `{result.recovered}`, which had been killed half-way"]
    kept = sum(step.commit is not None for step in result.steps)
    out = [f"{kept} of {len(result.steps)} patches are on pin {result.onto}"]
    if not result.published.written:
        out.append(f"patches/{result.onto} says exactly this already: nothing was written")
    out += [f"wrote {path}" for path in result.published.written]
    if result.published.moved:
        out.append("the work tree moved along; `pyggml undo` brings everything back")
    if result.published.default:
        out.append(f"{result.onto} is the default pin now")
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
