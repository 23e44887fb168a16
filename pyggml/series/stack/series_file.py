"""A series on disk: `patches/<pin>/series.toml` and the patch files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError, did_you_mean
from pyggml.series.patchfile.mail import NamedPatch, read_patch

SERIES_FILE = "series.toml"
CLOSED = "closed"
"""The key that closes a series; its text says why."""
_FILE = re.compile(r"(\d{4})-([a-z0-9][a-z0-9._-]*)\.patch")
PATCH_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
_TREE = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True)
class Patch:
    """One entry of a series.

    Attributes:
        name: unique in the series; it stays the same when the patch moves.
        tree: git tree id of the whole source after this patch.
        purpose: what it is for, in a sentence.
        drop_when: the condition under which it can be dropped.
        proof: pytest node ids that fail without it and pass with it.
        fails_with: a regular expression that matches the way the proof fails without it.
    """

    name: str
    tree: str
    purpose: str = ""
    drop_when: str = ""
    proof: tuple[str, ...] = ()
    fails_with: str = ""

    def file(self, number: int) -> str:
        """The file name of this patch as the `number`-th (from 1) of its series."""
        return f"{number:04d}-{self.name}.patch"


@dataclass(frozen=True)
class Series:
    """An ordered series on the snapshot of one pin.

    Attributes:
        base: git tree id of the snapshot that the first patch applies to.
        closed: why no patch may be changed any more; empty for an open series.
    """

    pin: str
    base: str
    patches: tuple[Patch, ...]
    closed: str = ""

    @property
    def trees(self) -> tuple[str, ...]:
        """Tree ids at every position: index 0 is the base, index k the tree after patch k."""
        return (self.base, *(patch.tree for patch in self.patches))

    def find(self, wanted: str) -> int:
        """The number (from 1) of the patch that a user calls `wanted`: a number, a name or a file name.

        Raises:
            PyggmlError: there is no such patch.
        """
        if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= len(self.patches):
            return int(wanted)
        for number, patch in enumerate(self.patches, 1):
            if wanted in (patch.name, patch.file(number), patch.file(number).removesuffix(".patch")):
                return number
        raise PyggmlError(
            f"no patch {wanted!r} in the series of pin {self.pin} ({len(self.patches)} patches)",
            f"{did_you_mean(wanted, [patch.name for patch in self.patches])}List them with: pyggml patch list",
        )


def slug(text: str, taken: Iterable[str] = ()) -> str:
    """A patch name made from `text` (a subject or a file name) that is not among those `taken`."""
    text = re.sub(r"\.(patch|diff|txt|eml)$", "", text.strip(), flags=re.IGNORECASE)
    text = re.sub(r"^\d+[-_. ]+(?=[A-Za-z])", "", text)
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:52].strip("-") or "patch"
    used = set(taken)
    name, count = plain, 2
    while name in used:
        name, count = f"{plain}-{count}", count + 1
    return name


def check_new_name(name: str, series: Series) -> None:
    """Refuse a name that a new patch of `series` cannot have.

    Raises:
        PyggmlError: it is not a valid patch name, or it is taken.
    """
    if not PATCH_NAME.fullmatch(name) or len(name) > 64:
        raise PyggmlError(
            f"{name!r} cannot be a patch name",
            "Use at most 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit.",
        )
    if any(patch.name == name for patch in series.patches):
        raise PyggmlError(f"there is a patch named {name} already", "List the names with: pyggml patch list")


def read_series(directory: Path, pin: str, base: str) -> Series:
    """Read and check `directory/series.toml` against the files beside it.

    A directory without one is an empty series on `base`.

    Raises:
        PyggmlError: the file is malformed, records another pin or base, or disagrees with the
            directory (a patch missing, listed twice, out of order, unlisted or empty).
    """
    path = directory / SERIES_FILE
    document, entries = _read_document(path, pin, base)
    _refuse_duplicates(path, entries)
    patches = tuple(_read_entry(path, number, entry)[0] for number, entry in enumerate(entries, 1))
    _check_files(directory, patches)
    return Series(pin, base, patches, _closed(path, document))


def read_listing(directory: Path, pin: str, base: str) -> tuple[Series, tuple[str, ...]]:
    """Read `directory/series.toml` as a merge may leave it, whatever lies beside it.

    Numbers may be missing or stand twice, trees may be wrong, and two patches may have one name.

    Returns:
        the series in the order of the file, and the file that each entry names.

    Raises:
        PyggmlError: the file is malformed, or records another pin or base.
    """
    path = directory / SERIES_FILE
    document, entries = _read_document(path, pin, base)
    rows = [_read_entry(path, n, entry, numbered=False) for n, entry in enumerate(entries, 1)]
    series = Series(pin, base, tuple(patch for patch, _ in rows), _closed(path, document))
    return series, tuple(file for _, file in rows)


def _read_document(path: Path, pin: str, base: str) -> tuple[Mapping[str, Any], list[Any]]:
    """The whole file and its entries.

    Raises:
        PyggmlError: it is malformed, or records another pin or base.
    """
    document = read_toml(path, {"pin": pin, "base": base})
    if document.get("pin") != pin:
        raise PyggmlError(
            f"{path}: this is the series of pin {document.get('pin')!r}, but the directory is that of pin {pin!r}",
            f'Set pin = "{pin}" if you renamed the directory on purpose.',
        )
    if document.get("base") != base:
        raise PyggmlError(
            f"{path}: recorded on base tree {document.get('base')}, but pin {pin} has tree {base}",
            "A series is only built on the base it records: restore vendor/pins.toml or this file.",
        )
    entries = document.get("patch", [])
    if not isinstance(entries, list):
        raise PyggmlError(f"{path}: 'patch' must be a list of tables", "Put each patch under [[patch]].")
    return document, entries


def _closed(path: Path, document: Mapping[str, Any]) -> str:
    closed = document.get(CLOSED, "")
    if not isinstance(closed, str):
        raise PyggmlError(f"{path}: '{CLOSED}' must be a string that says why", "Correct it, or remove it.")
    return closed


def read_toml(path: Path, missing: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of a TOML file; `missing` if there is no such file.

    Raises:
        PyggmlError: it is not valid TOML, or a merge left conflict marks in it.
    """
    import tomllib

    try:
        text = path.read_text("utf-8")
        if mark := _CONFLICT.search(text):
            line = text.count("\n", 0, mark.start()) + 1
            raise PyggmlError(
                f"{path}:{line}: a merge left conflict marks",
                "Keep the entries of both sides in the order you want, then: pyggml patch renumber. To let git "
                "merge it: pyggml patch install-merge-driver; git checkout --merge FILE"
                if path.name == SERIES_FILE
                else "Resolve them, or take one side whole: git checkout --ours, or --theirs, and the file.",
            )
        return tomllib.loads(text)
    except FileNotFoundError:
        return missing
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PyggmlError(
            f"{path}: not valid TOML: {error}", "Correct the file, or restore it (git checkout -- patches)."
        ) from error


def series_patches(
    directory: Path, series: Series, upto: int | None = None, *, recorded: bool = True
) -> Iterator[NamedPatch]:
    """Read the first `upto` patch files (all by default), each when it is asked for.

    Args:
        recorded: with the trees that the series records, which the patches must then give.

    Raises:
        PyggmlError: a file cannot be read as a patch.
    """
    for number, patch in enumerate(series.patches[:upto], 1):
        file = patch.file(number)
        mail = read_patch((directory / file).read_bytes(), file)
        yield NamedPatch(file, mail, tree=patch.tree if recorded else "")


def _read_entry(path: Path, number: int, entry: Any, *, numbered: bool = True) -> tuple[Patch, str]:
    """An entry and the file it names.

    Args:
        numbered: `file` must have the entry's number, and `tree` must be there.
    """

    def text(key: str, default: str | None = None) -> str:
        value = entry.get(key, default) if isinstance(entry, dict) else None
        if not isinstance(value, str):
            raise PyggmlError(f"{path}: patch {number}: '{key}' must be a string", "Correct that entry.")
        return value

    name, file, tree = text("name"), text("file"), text("tree", None if numbered else "")
    match = _FILE.fullmatch(file)
    if not match or not PATCH_NAME.fullmatch(name) or match[2] != name:
        raise PyggmlError(
            f"{path}: patch {number}: file {file!r} does not match name {name!r}",
            f"The file of this patch must be {number:04d}-{name}.patch; `pyggml patch rename` renames both.",
        )
    if numbered and int(match[1]) != number:
        raise PyggmlError(
            f"{path}: {file} is entry {number}: the series is out of order",
            "Number the files in the order of the entries with: pyggml patch renumber",
        )
    if numbered and not _TREE.fullmatch(tree):
        raise PyggmlError(f"{path}: patch {number}: 'tree' is not a git tree id", "Correct that entry.")
    proof = entry.get("proof", [])
    if not isinstance(proof, list) or not all(isinstance(node, str) for node in proof):
        raise PyggmlError(f"{path}: patch {number}: 'proof' must be a list of strings", "Correct that entry.")
    fails_with = text("fails-with", "")
    try:
        re.compile(fails_with)
    except re.error as error:
        raise PyggmlError(
            f"{path}: patch {number}: 'fails-with' is not a regular expression: {error}",
            "Correct that entry.",
        ) from error
    return Patch(name, tree, text("purpose", ""), text("drop-when", ""), tuple(proof), fails_with), file


def _refuse_duplicates(path: Path, entries: list[Any]) -> None:
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    for name in names:
        if names.count(name) > 1:
            raise PyggmlError(
                f"{path}: patch {name!r} is listed twice",
                "After a merge, `pyggml patch renumber` keeps both; otherwise remove one of the two entries.",
            )


def _check_files(directory: Path, patches: tuple[Patch, ...]) -> None:
    listed = {patch.file(number) for number, patch in enumerate(patches, 1)}
    present = {path.name for path in directory.glob("*.patch")} if directory.is_dir() else set()
    missing, unlisted = sorted(listed - present), sorted(present - listed)
    if missing:
        raise PyggmlError(
            f"{directory / missing[0]} is listed in {SERIES_FILE} but missing",
            "Restore the file (git checkout -- patches), or take the last change back: pyggml undo",
        )
    if unlisted:
        raise PyggmlError(
            f"{directory / unlisted[0]} is not listed in {SERIES_FILE}",
            "Move it out of the directory and import it with: pyggml patch import FILE",
        )
    for name in sorted(listed):
        if (directory / name).stat().st_size == 0:
            raise PyggmlError(f"{directory / name} is empty", "Restore the file (git checkout -- patches).")


def series_toml(series: Series, previous: bytes | None) -> bytes:
    """The text of `series.toml` for `series`; comments, unknown keys and line ends of `previous` survive."""
    import tomlkit
    from tomlkit.items import AoT, Table

    text = (previous or b"").decode("utf-8")
    ends = "\r\n" if "\r\n" in text else "\n"
    document = tomlkit.parse(text.replace("\r\n", "\n"))
    if not previous:
        document.add(tomlkit.comment("The patches on this pin, in order. Written by `pyggml patch`;"))
        document.add(tomlkit.comment("purpose, drop-when and proof are yours to edit."))
    if document.get("pin") != series.pin and CLOSED in document:
        document.remove(CLOSED)
    document["pin"] = series.pin
    document["base"] = series.base
    old: dict[str, Table] = {}
    if isinstance(document.get("patch"), AoT):
        for table in document["patch"]:
            old.setdefault(str(table.get("name")), table)
        document.remove("patch")
    entries = tomlkit.aot()
    for number, patch in enumerate(series.patches, 1):
        entry = tomlkit.table()
        values: dict[str, Any] = {
            "name": patch.name,
            "file": patch.file(number),
            "purpose": patch.purpose,
            "drop-when": patch.drop_when,
            "proof": list(patch.proof),
            **({"fails-with": patch.fails_with} if patch.fails_with else {}),
            "tree": patch.tree,
        }
        for key, value in values.items():
            entry[key] = tomlkit.string(value, multiline="\n" in value) if isinstance(value, str) else value
        if len(patch.proof) > 1:
            entry["proof"].multiline(True)
        for key in old.get(patch.name, ()):
            if key not in values:
                entry[key] = old[patch.name][key]
        entries.append(entry)
    if series.patches:
        document["patch"] = entries
    return tomlkit.dumps(document).replace("\n", ends).encode("utf-8")
