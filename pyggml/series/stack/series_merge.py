"""A three-way merge of `series.toml` that knows patches: by name, key by key, each at its place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

_DERIVED = ("file", "tree")
"""Keys that `pyggml patch renumber` makes anew: other values are no conflict."""


@dataclass(frozen=True)
class _Entry:
    """A `[[patch]]` of the file.

    Attributes:
        text: its lines and the comments right above it, without blank lines at the ends.
        keys: what it says, `_DERIVED` included.
    """

    text: str
    keys: Mapping[str, Any]

    @property
    def comments(self) -> tuple[str, ...]:
        return tuple(line.strip() for line in self.text.splitlines() if line.lstrip().startswith("#"))

    @property
    def own(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a person or a command has said about the patch."""
        return {key: value for key, value in self.keys.items() if key not in _DERIVED}, self.comments


@dataclass(frozen=True)
class MergedSeries:
    """The merged text; if `conflict`, with conflict marks around what the two sides say differently."""

    text: str
    conflict: bool


def merge_series(base: str, ours: str, theirs: str) -> MergedSeries:
    """Merge the changes from `base` to `theirs` into `ours`; all three are texts of a `series.toml`.

    Entries are matched by name. Those that only one side has added come in behind all that they stand behind
    there, ours before theirs. An entry that one side has removed goes, unless the other has changed what it
    says. A patch moves if one side has moved it. Comments stay with what they stand above. Line ends are those
    of `ours`.

    Raises:
        ValueError: one of the texts is no `series.toml` that can be taken apart.
    """
    if "\r\n" in ours:
        made = merge_series(*(text.replace("\r\n", "\n") for text in (base, ours, theirs)))
        return MergedSeries(made.text.replace("\n", "\r\n"), made.conflict)
    (head_b, b), (head_o, o), (head_t, t) = (
        _parse(text.replace("\r\n", "\n")) for text in (base, ours, theirs)
    )
    t = _keep_apart(b, o, t)
    texts = {"": _merge_text(head_b, head_o, head_t)}
    for name in {**o, **t}:
        merged = _merge_entry(b.get(name), o.get(name), t.get(name))
        if merged:
            texts[name] = merged
    blocks = [texts[""], *_ordered(texts, [*b], [*o], [*t])]
    text = "\n\n".join(block for block in blocks if block) + "\n"
    conflict = any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines())
    if not conflict and len(_parse_entries(text)) != len(texts) - 1:
        raise ValueError("the merged file has other entries than its parts")
    return MergedSeries(text, conflict)


def _parse(text: str) -> tuple[str, dict[str, _Entry]]:
    """What stands before the first entry, and the entries by name.

    A name that stands twice gets the file behind it.
    """
    lines, starts = text.splitlines(), list[int]()
    for number, line in enumerate(lines):
        if re.fullmatch(r"\s*\[\[\s*patch\s*\]\]\s*(#.*)?", line):
            start = number
            while start > 0 and lines[start - 1].lstrip().startswith("#") and lines[start - 1].strip():
                start -= 1
            starts.append(start)
    cuts = [*starts, len(lines)]
    blocks = ["\n".join(lines[a:z]).strip("\n") for a, z in pairwise(cuts)]
    entries: dict[str, _Entry] = {}
    for block, keys in zip(blocks, _parse_entries(text), strict=True):
        document = tomllib.loads(block)
        if document != {"patch": [keys]} or not isinstance(keys.get("name"), str):
            raise ValueError("an entry cannot be told from what stands around it")
        name = keys["name"]
        entries[f"{name}\n{keys.get('file')}" if name in entries else name] = _Entry(block, keys)
    return "\n".join(lines[: cuts[0]]).strip("\n"), entries


def _parse_entries(text: str) -> list[dict[str, Any]]:
    entries = tomllib.loads(text).get("patch", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("'patch' is no list of tables")
    return entries


def _keep_apart(
    base: Mapping[str, _Entry], ours: Mapping[str, _Entry], theirs: Mapping[str, _Entry]
) -> dict[str, _Entry]:
    """`theirs`, with patches of another file that only share the name with one that ours has added."""
    kept = {}
    for name, entry in theirs.items():
        mine = ours.get(name)
        twins = name not in base and mine is not None and mine.keys.get("file") != entry.keys.get("file")
        kept[f"{name}\n{entry.keys.get('file')}" if twins else name] = entry
    return kept


def _merge_value(base: T, ours: T, theirs: T) -> tuple[T, bool]:
    """Whichever side has changed, ours if both have; and whether both have, in different ways."""
    if ours == base:
        return theirs, False
    return ours, theirs not in (base, ours)


def _marked(ours: str, theirs: str) -> str:
    rows = ["<<<<<<< ours", *ours.splitlines(), "=======", *theirs.splitlines(), ">>>>>>> theirs"]
    return "\n".join(rows)


def _merge_text(base: str, ours: str, theirs: str) -> str:
    text, conflict = _merge_value(base, ours, theirs)
    return _marked(ours, theirs) if conflict else text


def _merge_entry(base: _Entry | None, ours: _Entry | None, theirs: _Entry | None) -> str:
    """The text of an entry; empty if it is gone."""
    if ours is None or theirs is None:
        there = ours or theirs
        assert there is not None  # noqa: S101
        if base is None:
            return there.text
        if there.own == base.own:
            return ""
        return _marked(ours.text if ours else "", theirs.text if theirs else "")
    old = base.own if base else ({}, ())
    comments, conflict = _merge_value(old[1], ours.comments, theirs.comments)
    keys: dict[str, Any] = {}
    absent = object()
    for key in {**ours.keys, **theirs.keys}:
        before = base.keys.get(key, absent) if base else absent
        keys[key], differ = _merge_value(before, ours.keys.get(key, absent), theirs.keys.get(key, absent))
        conflict = conflict or (differ and key not in _DERIVED)
    if conflict:
        return _marked(ours.text, theirs.text)
    kept, other = (ours, theirs) if comments == ours.comments else (theirs, ours)
    return _with_keys(kept, other, {k: v for k, v in keys.items() if v is not absent})


def _with_keys(entry: _Entry, other: _Entry, keys: Mapping[str, Any]) -> str:
    """The text of `entry` with other keys, each written as in `entry` or in `other`."""
    if keys == entry.keys:
        return entry.text
    import tomlkit

    document, written = tomlkit.parse(entry.text + "\n"), tomlkit.parse(other.text + "\n")
    table: Any = document["patch"][0]
    source: Any = written["patch"][0]
    for key in [*entry.keys]:
        if key not in keys:
            del table[key]
    for key, value in keys.items():
        if key not in entry.keys or entry.keys[key] != value:
            table[key] = source[key]
    return tomlkit.dumps(document).strip("\n")


def _ordered(
    texts: Mapping[str, str], base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> list[str]:
    """The texts of the entries in their merged order."""
    common = [name for name in ours if name in theirs and name in texts]
    places = [{name: n for n, name in enumerate(side)} for side in (base, ours, theirs)]

    def before(one: str, two: str) -> bool:
        was, now, other = (side[one] < side[two] if one in side and two in side else None for side in places)
        assert now is not None  # noqa: S101
        return now if was is None or other is None or now != was else other

    merged = sorted(common, key=lambda name: sum(before(one, name) for one in common if one != name))
    if all(before(one, two) for n, one in enumerate(merged) for two in merged[n + 1 :]):
        return [texts[name] for name in _inserted(merged, texts, ours, theirs)]
    # The two sides move the same patches in ways that no one order has.
    mine, yours = (
        _inserted([name for name in side if name in common], texts, ours, theirs) for side in (ours, theirs)
    )
    first = next(n for n, (one, two) in enumerate(zip(mine, yours, strict=True)) if one != two)
    last = len(mine) - next(
        n for n, (one, two) in enumerate(zip(mine[::-1], yours[::-1], strict=True)) if one != two
    )
    parts = ("\n\n".join(texts[name] for name in side[first:last]) for side in (mine, yours))
    marked = _marked(*parts)
    return [*(texts[name] for name in mine[:first]), marked, *(texts[name] for name in mine[last:])]


def _inserted(
    common: Sequence[str], texts: Mapping[str, str], ours: Sequence[str], theirs: Sequence[str]
) -> list[str]:
    """`common` with the entries that only one side has, each behind all that it stands behind there, ours first."""
    place = {name: number for number, name in enumerate(common, 1)}
    behind: list[list[str]] = [[] for _ in range(len(common) + 1)]
    for side in (ours, theirs):
        last = 0
        for name in side:
            if name in place:
                last = max(last, place[name])
            elif name in texts:
                behind[last].append(name)
    return [*behind[0], *(one for name in common for one in (name, *behind[place[name]]))]
