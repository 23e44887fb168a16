"""What the user decided in a rebase, written down so that it can be replayed anywhere.

`patches/<pin>/resolutions/` has `rebase.toml`, which says what became of each patch of the old series, and one
`<name>.patch` for each patch that the merge alone did not give: the difference between the mechanical merge (with
its conflict marks, whose text is the same everywhere) and the result. It serves both for a resolved conflict and
for a patch that was adapted after a clean merge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.patchfile.mail import Identity
from pyggml.series.patchfile.placement import place_all
from pyggml.series.stack.commits import scratch_index
from pyggml.series.stack.merge import ConflictLabels
from pyggml.series.stack.series_file import PATCH_NAME, read_toml
from pyggml.series.stack.trees import parsed_tree_diff, tree_diff, tree_reader

DIRECTORY = "resolutions"
DECISIONS_FILE = "rebase.toml"
PICK, SKIP, IN_UPSTREAM, ADD = "pick", "skip", "upstream", "add"
LABELS = ConflictLabels("upstream", "patch's base", "patch")
"""The labels of every conflict; the recorded resolutions contain them."""
_HEADER = re.compile(rb"^(Mechanical-Tree|Resolved-Tree): ([0-9a-f]{40,64})$", re.MULTILINE)
_ENTRY_KEYS = {"purpose": "purpose", "drop-when": "drop_when", "proof": "proof", "fails-with": "fails_with"}


@dataclass(frozen=True)
class Resolution:
    """How the result of a mechanical merge was changed.

    Attributes:
        mechanical, resolved: tree ids; on another mechanical tree the diff must still fit unambiguously.
        diff: empty if a conflict without marks (a file that upstream deleted, a binary one) was resolved
            with what the merge left there.
    """

    mechanical: str
    resolved: str
    diff: bytes


@dataclass(frozen=True)
class Decision:
    """What was decided about one patch.

    Attributes:
        action: `pick`, `skip` (left out), `upstream` (left out, because upstream has it) or `add` (a patch that
            only the new pin has; its whole change is the resolution).
        reason: why a patch is left out.
        confirmed: hunks whose enclosing function changed on purpose (`HunkMove.key`).
        message: the commit message, if it differs from the old one.
        author: of an added patch.
        entry: fields of `series.toml` that differ from the old ones.
        resolution: how the mechanical merge became the result.
        change: for a patch that is left out, the id of what it changed (`change_id`); the decision holds
            for that change only.
        verdict: in words, for readers of the file.
    """

    name: str
    action: str = PICK
    reason: str = ""
    confirmed: tuple[str, ...] = ()
    message: str | None = None
    author: Identity | None = None
    entry: Mapping[str, Any] = field(default_factory=dict)
    resolution: Resolution | None = None
    change: str = ""
    verdict: str = ""


def make_resolution(git: Git, mechanical: str, resolved: str, *, conflicting: bool) -> Resolution | None:
    """The resolution; None if the merge needs none. One that conflicts needs it even if its tree is right."""
    if mechanical == resolved:
        return Resolution(mechanical, resolved, b"") if conflicting else None
    return Resolution(mechanical, resolved, tree_diff(git, mechanical, resolved, "--no-renames"))


def replay(git: Git, resolution: Resolution, mechanical: str) -> str:
    """The resolved tree on the tree `mechanical`.

    Raises:
        PyggmlError: the resolution was recorded for another merge and does not fit this one unambiguously.
    """
    if not resolution.diff:
        if mechanical != resolution.mechanical:
            raise PyggmlError("the merge was accepted as it was, but it has another result now")
        return mechanical
    exact, _ = place_all(parse_diff(resolution.diff), tree_reader(git, mechanical))
    with scratch_index(git, mechanical) as index:
        index.run("apply", "--cached", "-", stdin=exact)
        tree = index.text("write-tree")
    if mechanical == resolution.mechanical and tree != resolution.resolved:
        raise PyggmlError(
            f"the recorded resolution gives tree {tree[:12]}, not the recorded {resolution.resolved[:12]}",
            "It was changed by hand: restore it (git checkout -- patches), or remove it and resolve again.",
        )
    return tree


def read_decisions(directory: Path, source: str) -> dict[str, Decision]:
    """The decisions for a rebase from pin `source`, by patch name, in order.

    Args:
        directory: the `resolutions` directory of the new pin.

    Raises:
        PyggmlError: the file is malformed, or a resolution is damaged.
    """
    path = directory / DECISIONS_FILE
    document = read_toml(path, {})
    if document.get("from") != source:
        return {}
    entries = document.get("patch", [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise PyggmlError(f"{path}: 'patch' must be a list of tables", "Correct the file, or restore it.")
    decisions = [_read_decision(path, entry) for entry in entries]
    return {decision.name: decision for decision in decisions}


def change_id(git: Git, before: str, after: str) -> str:
    """An id of what a patch removes and adds, whatever it applies to."""
    digest = hashlib.sha256()
    for run in changed_runs(parsed_tree_diff(git, before, after)):
        path = run.path.encode("utf-8", "surrogateescape")
        for part in (path, *run.removed, b"\0", *run.added, b"\0\0"):
            digest.update(part)
    return digest.hexdigest()[:16]


def _read_decision(path: Path, entry: dict[str, Any]) -> Decision:
    try:
        name, action = str(entry["name"]), str(entry.get("action", PICK))
        if action not in (PICK, SKIP, IN_UPSTREAM, ADD) or not PATCH_NAME.fullmatch(name):
            raise ValueError(f"{name}: action {action!r}")
        confirmed = tuple(str(key) for key in entry.get("confirmed", []))
        message = entry.get("message")
        author = None
        if action == ADD:
            message = str(entry["message"])
            author = Identity(*(str(entry["author"][key]) for key in ("name", "email", "date")))
        values = {
            _ENTRY_KEYS[key]: tuple(value) if isinstance(value, list) else str(value)
            for key, value in dict(entry.get("entry", {})).items()
            if key in _ENTRY_KEYS
        }
    except (KeyError, ValueError, TypeError) as error:
        raise PyggmlError(
            f"{path}: a decision is malformed: {error}", "Correct it, or restore the file."
        ) from error
    file = path.with_name(f"{name}.patch")
    resolution = _read_resolution(file) if file.is_file() else None
    if action == ADD and resolution is None:
        raise PyggmlError(
            f"{file} is missing: it holds the added patch", "Restore it: git checkout -- patches"
        )
    reason, change = str(entry.get("reason", "")), str(entry.get("change", ""))
    return Decision(name, action, reason, confirmed, message, author, values, resolution, change)


def _read_resolution(path: Path) -> Resolution:
    data = path.read_bytes()
    match = re.search(rb"^diff --git ", data, re.MULTILINE)
    head, diff = (data[: match.start()], data[match.start() :]) if match else (data, b"")
    fields = dict(_HEADER.findall(head))
    if len(fields) != 2 or (not diff and len(set(fields.values())) != 1):
        raise PyggmlError(
            f"{path}: not a recorded resolution, or truncated",
            "Restore it (git checkout -- patches), or remove it and resolve the conflict again.",
        )
    return Resolution(fields[b"Mechanical-Tree"].decode(), fields[b"Resolved-Tree"].decode(), diff)


def decision_files(source: str, onto: str, decisions: Mapping[str, Decision]) -> dict[str, bytes]:
    """The content of the `resolutions` directory: file name to bytes. The same decisions give the same bytes."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"What became of each patch of pin {source} on pin {onto}. Written by"))
    document.add(tomlkit.comment("`pyggml patch rebase`, and replayed by it; NAME.patch is the way from the"))
    document.add(tomlkit.comment("merge that git makes to the result."))
    document["from"] = source
    entries = tomlkit.aot()
    files: dict[str, bytes] = {}
    for decision in decisions.values():
        entry = tomlkit.table()
        entry["name"] = decision.name
        entry["action"] = decision.action
        texts = {"verdict": decision.verdict, "reason": decision.reason, "change": decision.change}
        for key, text in {**texts, "message": decision.message}.items():
            if text:
                entry[key] = tomlkit.string(text, multiline="\n" in text)
        if decision.author is not None:
            entry["author"] = tomlkit.inline_table()
            entry["author"].update(asdict(decision.author))
        if decision.confirmed:
            entry["confirmed"] = list(decision.confirmed)
        if decision.entry:
            entry["entry"] = tomlkit.inline_table()
            for key, name in _ENTRY_KEYS.items():
                if name in decision.entry:
                    value = decision.entry[name]
                    entry["entry"][key] = list(value) if isinstance(value, tuple) else value
        entries.append(entry)
        if decision.resolution is not None:
            files[f"{decision.name}.patch"] = _resolution_file(source, onto, decision)
    if decisions:
        document["patch"] = entries
    files[DECISIONS_FILE] = tomlkit.dumps(document).encode("utf-8")
    return files


def _resolution_file(source: str, onto: str, decision: Decision) -> bytes:
    assert decision.resolution is not None  # noqa: S101
    told = (
        f"Patch {decision.name}, which only pin {onto} has.\n"
        if decision.action == ADD
        else f"Patch {decision.name} of pin {source} on pin {onto}: from git's merge, conflict marks included,\n"
        f"to the result.\n"
    )
    head = (
        f"{told}\n"
        f"Mechanical-Tree: {decision.resolution.mechanical}\n"
        f"Resolved-Tree: {decision.resolution.resolved}\n\n"
    )
    return head.encode("utf-8") + decision.resolution.diff
