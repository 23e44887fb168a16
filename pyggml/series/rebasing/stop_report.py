"""What the user needs to know to resolve one stop of a rebase, as data and as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.git import Git
from pyggml.series.patchfile.diff import FileDiff, Hunk, path_text, split_lines
from pyggml.series.patchfile.hunks import numbered_hunks
from pyggml.series.patchfile.placement import ReadFile
from pyggml.series.rebasing.decisions import LABELS
from pyggml.series.rebasing.plan import RebasePlan, RebaseStop
from pyggml.series.rebasing.state import KINDS
from pyggml.series.stack.trees import parsed_tree_diff, renamed_paths, tree_reader
from pyggml.series.worktree.sequencer import REBASING

CONFLICT_MARKS = re.compile(
    rb"^<<<<<<< [^\n]*\n(?P<ours>.*?)^\|\|\|\|\|\|\| [^\n]*\n(?P<base>.*?)^=======\n(?P<theirs>.*?)^>>>>>>> [^\n]*$",
    re.MULTILINE | re.DOTALL,
)
"""A place that conflicts, with the marks of a merge that shows the base as well."""
MARGIN = 3
"""How many lines from a hunk a change of upstream still counts as being under it."""


@dataclass(frozen=True)
class ConflictHunk:
    """One marked place; `line` is the line of its first mark in the worktree's file."""

    line: int
    ours: str
    base: str
    theirs: str


@dataclass(frozen=True)
class ConflictFile:
    """One conflicting path.

    Attributes:
        kind: `content`, `deleted upstream`, `deleted by the patch`, `added by both` or `other`.
        upstream: what upstream changed under the patch's hunks, as a diff.
        patch: what the patch changes in this file, as a diff.
    """

    path: str
    kind: str
    hunks: tuple[ConflictHunk, ...]
    upstream: str
    patch: str


@dataclass(frozen=True)
class Traces:
    """How much of the patch the new upstream has line by line, where files changed too much to recognise a hunk.

    Attributes:
        standing, added: lines that the patch adds: how many the same files upstream have, and all of them.
        gone, removed: lines that it removes: how many the same files upstream do not have, and all of them.
    """

    standing: int
    added: int
    gone: int
    removed: int


@dataclass(frozen=True)
class StopReport:
    """One stop.

    Attributes:
        upstream_hunks: numbers of the patch's hunks that upstream has already.
        traces: the same line by line, anywhere in the file: a hint, no proof.
        functions: hunks that are in another function now: `path: old -> new`.
        worktree: where to edit.
        commands: what can be done next, and what each command means.
    """

    kind: str
    patch: str
    number: int
    total: int
    source: str
    onto: str
    message: str
    purpose: str
    drop_when: str
    proof: tuple[str, ...]
    files: tuple[ConflictFile, ...]
    hunks: int
    upstream_hunks: tuple[int, ...]
    functions: tuple[str, ...]
    deleted: tuple[tuple[str, str], ...]
    note: str
    worktree: str
    traces: Traces
    commands: Mapping[str, str] = field(default_factory=dict)


def make_report(plan: RebasePlan, stop: RebaseStop, worktree: Path) -> StopReport:
    """The report on a stop; reads objects only."""
    git = plan.onto.git
    diffs = parsed_tree_diff(git, stop.base, stop.theirs)
    renames = renamed_paths(git, plan.source.pin.tree, plan.onto.pin.tree)
    back = {new: old for old, new in renames.items()}
    now, before = tree_reader(git, stop.merged.tree), tree_reader(git, stop.base)
    files = tuple(
        _file(git, stop, path, back.get(path, path), diffs, now, before) for path in stop.merged.paths
    )
    functions = stop.unconfirmed if stop.kind == "confirm" else ()
    return StopReport(
        stop.kind,
        stop.patch.name,
        stop.number,
        len(plan.source.series.patches),
        plan.source.pin.name,
        plan.onto.pin.name,
        stop.message,
        stop.patch.purpose.strip(),
        stop.patch.drop_when,
        stop.patch.proof,
        files,
        len(numbered_hunks(diffs)),
        stop.comparison.upstream,
        functions,
        stop.comparison.deleted,
        stop.note,
        str(worktree),
        _traces(diffs, tree_reader(git, plan.onto.pin.tree), renames),
        _commands(stop),
    )


def _traces(diffs: tuple[FileDiff, ...], read: ReadFile, renames: Mapping[str, str]) -> Traces:
    """Lines are compared without blanks at either end; those of fewer than four characters do not count."""
    counts = Counter[str]()
    for diff in diffs:
        content = read(diff.old_path) or read(renames.get(diff.old_path, diff.old_path)) or b""
        lines = {line.strip() for line in split_lines(content)}
        for hunk in diff.hunks:
            for line in hunk.lines:
                kind, text = line[:1], line[1:].strip()
                if len(text) >= 4 and kind in (b"+", b"-"):
                    counts["added" if kind == b"+" else "removed"] += 1
                    counts["standing" if kind == b"+" else "gone"] += (text in lines) == (kind == b"+")
    return Traces(counts["standing"], counts["added"], counts["gone"], counts["removed"])


def _commands(stop: RebaseStop) -> dict[str, str]:
    resume = REBASING.resume
    commands = {resume: "after editing there"}
    if stop.kind == "confirm":
        commands = {f"{resume} --confirm": "the hunks are where they belong", **commands}
    gone = [s.path for s in stop.merged.stages if s.stage == 3 and _kind(stop, s.path) == "deleted upstream"]
    if gone:
        commands[f"{resume} --remove {gone[0]}"] = "the file stays deleted, after `git rm` of it there"
    commands[REBASING.skip] = "leave the patch out"
    commands[REBASING.skip.replace("--skip", "--skip --upstream")] = "leave it out: upstream does it already"
    commands[REBASING.abort] = "everything stays as it was before the rebase"
    return commands


def _kind(stop: RebaseStop, path: str) -> str:
    stages = {stage.stage for stage in stop.merged.stages if stage.path == path}
    kinds = {
        (1, 2, 3): "content",
        (1, 3): "deleted upstream",
        (1, 2): "deleted by the patch",
        (2, 3): "added by both",
    }
    return kinds.get(tuple(sorted(stages)), "other")


def _file(
    git: Git,
    stop: RebaseStop,
    path: str,
    old: str,
    diffs: tuple[FileDiff, ...],
    now: ReadFile,
    before: ReadFile,
) -> ConflictFile:
    content = now(path) or b""
    hunks = tuple(
        ConflictHunk(
            content.count(b"\n", 0, match.start()) + 1,
            _text(match["ours"]),
            _text(match["base"]),
            _text(match["theirs"]),
        )
        for match in CONFLICT_MARKS.finditer(content)
    )
    own = [diff for diff in diffs if old in (path_text(diff.old), path_text(diff.new))]
    changed = _under(git, stop, old, path, own, before)
    return ConflictFile(
        path,
        _kind(stop, path),
        hunks,
        changed,
        _text(b"".join(line for diff in own for line in diff.lines())),
    )


def _under(git: Git, stop: RebaseStop, old: str, new: str, own: list[FileDiff], before: ReadFile) -> str:
    """The hunks of upstream's change of the file that touch what the patch touches."""
    spans = [(h.old_start - MARGIN, h.old_start + h.old_count + MARGIN) for diff in own for h in diff.hunks]
    if before(old) is None or not spans:
        return ""
    touching: list[bytes] = []
    for diff in parsed_tree_diff(git, stop.base, stop.ours):
        if old not in (path_text(diff.old), path_text(diff.new)) and path_text(diff.new) != new:
            continue
        if diff.new is None:
            return f"upstream removed {old} ({len(split_lines(before(old) or b''))} lines)\n"
        for hunk in diff.hunks:
            if any(touches(hunk, span) for span in spans):
                touching += [hunk.header(), *hunk.lines]
    return _text(b"".join(touching))


def touches(hunk: Hunk, span: tuple[int, int]) -> bool:
    """Whether the old side of `hunk` lies at the lines `span` (first, one after the last)."""
    return hunk.old_start < span[1] and span[0] < hunk.old_start + max(hunk.old_count, 1)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def report_text(report: StopReport, *, brief: bool = False) -> str:
    """The report in Markdown; `brief` leaves out what the worktree shows anyway."""
    out = [
        f"# Patch {report.patch} ({report.number} of {report.total}), "
        f"from pin {report.source} onto {report.onto}: {KINDS[report.kind]}",
        "",
        *_paragraph("Purpose", report.purpose),
        *_paragraph("Can be dropped when", report.drop_when),
        *_paragraph("Proof", ", ".join(report.proof)),
        *_paragraph("Note", report.note),
    ]
    if report.upstream_hunks:
        numbers = ", ".join(map(str, report.upstream_hunks))
        out += [
            f"{len(report.upstream_hunks)} of {report.hunks} hunks are upstream already ({numbers}): "
            "only the others are left of the patch.",
            "",
        ]
    traces = report.traces
    if traces.standing:
        out += [
            f"Line by line: {traces.standing} of the {traces.added} lines that the patch adds are in the same files of "
            f"{report.onto}, and {traces.gone} of the {traces.removed} that it removes are gone there.",
            "",
        ]
    for line in report.functions:
        out += [f"Another function: {line}"]
    for path, line in report.deleted:
        out += [f"Deletes a line of upstream that the old patch did not delete: {path}: {line.strip()}"]
    for file in report.files:
        out += ["", f"## {file.path} ({file.kind})", ""]
        if brief and file.hunks:
            out += [f"Conflicts at: {', '.join(f'line {hunk.line}' for hunk in file.hunks)}", ""]
        for hunk in () if brief else file.hunks:
            out += [f"Line {hunk.line}:", ""]
            sides = ((LABELS.ours, hunk.ours), (LABELS.base, hunk.base), (LABELS.theirs, hunk.theirs))
            for label, text in sides:
                out += [f"    [{label}]", *_indented(text), ""]
        if file.upstream:
            out += ["What upstream changed under the patch:", "", *_indented(file.upstream), ""]
        if file.patch and not brief:
            out += ["What the patch changes here:", "", *_indented(file.patch), ""]
    if not brief:
        out += ["", "## The patch's message", "", *_indented(report.message)]
    out += ["", f"## Edit {report.worktree}, then", ""]
    width = max(map(len, report.commands))
    out += [f"    {command:<{width}}   {meaning}" for command, meaning in report.commands.items()]
    return "\n".join(out) + "\n"


def _paragraph(title: str, text: str) -> list[str]:
    return [f"{title}: {' '.join(text.split())}", ""] if text else []


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()] or ["    (nothing)"]
