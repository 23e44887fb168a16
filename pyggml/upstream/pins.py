"""`vendor/pins.toml`: the upstream snapshots that a project is based on."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from pyggml.errors import PyggmlError, did_you_mean
from pyggml.files import remove_file, write_atomic
from pyggml.project import Project

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SdistSource:
    """A source distribution in a Python package index.

    Attributes:
        project: the project's name in the index.
        version: its version.
        file: the archive's file name; it selects the archive among the project's files.
        sha256: checksum of the archive.
        subdir: upstream's directory inside the archive's single top directory; empty for all of it.
    """

    project: str
    version: str
    file: str
    sha256: str
    subdir: str = ""

    kind: ClassVar[str] = "sdist"

    def describe(self) -> str:
        return f"sdist {self.project} {self.version}"


@dataclass(frozen=True)
class GitSource:
    """A git repository; the pin's `commit` is what to take from it."""

    url: str
    subdir: str = ""

    kind: ClassVar[str] = "git"

    def describe(self) -> str:
        return f"git {self.url}"


@dataclass(frozen=True)
class ArchiveSource:
    """A tar or zip archive on this machine; `path` can be relative to the project's root."""

    path: str
    sha256: str
    subdir: str = ""

    kind: ClassVar[str] = "archive"

    def describe(self) -> str:
        return f"archive {self.path}"


@dataclass(frozen=True)
class DirectorySource:
    """A directory on this machine; `path` can be relative to the project's root."""

    path: str

    kind: ClassVar[str] = "directory"

    def describe(self) -> str:
        return f"directory {self.path}"


Source = SdistSource | GitSource | ArchiveSource | DirectorySource

_KINDS = tuple(model.kind for model in (SdistSource, GitSource, ArchiveSource, DirectorySource))


@dataclass(frozen=True)
class Pin:
    """One upstream snapshot.

    Attributes:
        name: its name in commands.
        commit: upstream's commit id, if known.
        tree: git tree id of the imported snapshot, without `exclude`.
        exclude: paths left out, relative to the snapshot's root.
        source: where it comes from.
    """

    name: str
    commit: str | None
    tree: str
    exclude: tuple[str, ...]
    source: Source

    @property
    def ref(self) -> str:
        return f"refs/tags/pin/{self.name}"


@dataclass(frozen=True)
class Pins:
    """A project's pins, oldest first.

    Attributes:
        upstream: the directory of the work tree inside `vendor/`.
        default: the pin that commands work on if none is named: the one chosen in this checkout (`choose_pin`), else
            that of the file. Empty only if there are no pins.
        chosen: `default` was chosen in this checkout.
    """

    upstream: str
    default: str
    pins: tuple[Pin, ...]
    chosen: bool = False

    def get(self, name: str | None) -> Pin:
        """The pin called `name`; None is the default pin.

        Raises:
            PyggmlError: there is no such pin.
        """
        wanted = self.default if name is None else name
        for pin in self.pins:
            if pin.name == wanted:
                return pin
        if not self.pins:
            raise PyggmlError("this project has no pins yet", "Add one with: pyggml vendor add (see --help)")
        known = ", ".join(pin.name for pin in self.pins)
        raise PyggmlError(
            f"there is no pin {wanted}",
            f"{did_you_mean(wanted, [pin.name for pin in self.pins])}Known pins: {known} (vendor/pins.toml).",
        )


def read_pins(project: Project) -> Pins:
    """Read and check `vendor/pins.toml`, and what was chosen in this checkout.

    Raises:
        PyggmlError: it cannot be read or a value is invalid (the message names the file and the key), or the chosen
            pin is not there any more.
    """
    pins = _parse(_Table(str(project.pins_file), "", _load(project)))
    try:
        chosen = _choice(project).read_text("utf-8", "replace").strip()
    except OSError:
        return pins
    if chosen not in {pin.name for pin in pins.pins}:
        raise PyggmlError(
            f"the pin {chosen!r}, chosen with `pyggml vendor use`, is not in {project.pins_file} any more",
            "Go back to the project's default: pyggml vendor use --default",
        )
    return replace(pins, default=chosen, chosen=True)


def choose_pin(project: Project, name: str | None) -> Pins:
    """Make a pin the default in this checkout alone; None goes back to the default of `vendor/pins.toml`.

    Returns:
        the pins as the next command reads them.

    Raises:
        PyggmlError: there is no such pin, or the choice cannot be written; nothing is changed then.
    """
    pins = _parse(_Table(str(project.pins_file), "", _load(project)))
    if name is None or pins.get(name).name == pins.default:
        remove_file(_choice(project))
    else:
        project.make_state_dir()
        write_atomic(_choice(project), f"{name}\n".encode())
    return read_pins(project)


def _choice(project: Project) -> Path:
    return project.state_dir / "pin"


def valid_pin_name(name: str) -> bool:
    """Whether `name` can be a pin's name; it also becomes the last part of a tag."""
    return (
        _NAME.fullmatch(name) is not None
        and ".." not in name
        and not name.endswith((".", ".lock"))
        and len(name) <= 100
    )


def is_commit_id(text: str) -> bool:
    """Whether `text` is a full git object id."""
    return _OBJECT_ID.fullmatch(text) is not None


def check_name_is_free(project: Project, pins: Pins, name: str) -> None:
    """Raise if there is a pin `name` already.

    Raises:
        PyggmlError: there is.
    """
    if any(pin.name == name for pin in pins.pins):
        raise PyggmlError(
            f"there is already a pin {name} in {project.pins_file}",
            "Choose another name; nothing was changed.",
        )


def write_pin(project: Project, pin: Pin, *, make_default: bool) -> None:
    """Append `pin` to `vendor/pins.toml`; the comments and layout of the rest are kept.

    Args:
        make_default: also make it the default pin; the first pin always is.

    Raises:
        PyggmlError: the name is taken, or the file cannot be read or written; it is unchanged then.
    """
    import tomlkit

    pins = read_pins(project)
    check_name_is_free(project, pins, pin.name)
    document = tomlkit.parse(project.pins_file.read_bytes())
    table = tomlkit.table()
    if pin.commit is not None:
        table.add("commit", pin.commit)
    table.add("tree", pin.tree)
    table.add("exclude", list(pin.exclude))
    source = tomlkit.table()
    source.add("kind", pin.source.kind)
    for key, value in vars(pin.source).items():
        if value != "":
            source.add(key, value)
    table.add("source", source)
    if make_default or not pins.pins:
        if "default" in document:
            document["default"] = pin.name
        else:
            document.add("default", tomlkit.item(pin.name))
    parent = document.get("pin")
    if parent is None:
        parent = tomlkit.table(is_super_table=True)
        document.add("pin", parent)
    parent.append(pin.name, table)
    text = tomlkit.dumps(document)
    _check_written(project, text, pin)
    write_atomic(project.pins_file, text.encode())
    if make_default:
        remove_file(_choice(project))


def _check_written(project: Project, text: str, pin: Pin) -> None:
    last = None
    with contextlib.suppress(tomllib.TOMLDecodeError, PyggmlError):
        last = _parse(_Table(str(project.pins_file), "", tomllib.loads(text))).pins[-1]
    if last != pin:
        raise PyggmlError(
            f"cannot add pin {pin.name} to {project.pins_file} without damaging it",
            "Nothing was changed. Move all [pin.*] tables to the end of that file and try again.",
        )


def _load(project: Project) -> Mapping[str, Any]:
    path = project.pins_file
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise PyggmlError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PyggmlError(
            f"{path} is not UTF-8 text (byte {error.start})", "TOML files must be UTF-8."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise PyggmlError(f"{path} is not valid TOML: {error}", "Correct the file and try again.") from error


@dataclass(frozen=True)
class _Table:
    """A TOML table with its file and key, so that every error names them."""

    file: str
    key: str
    values: Mapping[str, Any]

    def invalid(self, key: str, expected: str) -> PyggmlError:
        name = f"{self.key}.{key}" if self.key else key
        value = f"It is {self.values[key]!r}." if key in self.values else "It is missing."
        return PyggmlError(f"{self.file}: {name} must be {expected}", value)

    def allow_only(self, *keys: str) -> None:
        for key in self.values:
            if key not in keys:
                place = f" in [{self.key}]" if self.key else ""
                raise PyggmlError(
                    f"{self.file}: unknown key {key!r}{place}", f"Known keys: {', '.join(keys)}."
                )

    def table(self, key: str) -> _Table:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.invalid(key, "a table")
        return _Table(self.file, f"{self.key}.{key}" if self.key else key, value)

    def text(self, key: str, expected: str = "a non-empty string") -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.invalid(key, expected)
        return value

    def matching(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.text(key, expected)
        if not pattern.fullmatch(value):
            raise self.invalid(key, expected)
        return value

    def inner_path(self, key: str) -> str:
        expected = "a relative path without '..'"
        value = self.text(key, expected) if key in self.values else ""
        if value and not is_relative_inside(value):
            raise self.invalid(key, expected)
        return str(PurePosixPath(value)) if value else ""

    def inner_paths(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(path, str) and is_relative_inside(path) for path in value
        ):
            raise self.invalid(key, "a list of relative paths without '..'")
        return tuple(str(PurePosixPath(path)) for path in value)


def is_relative_inside(path: str) -> bool:
    """Whether `path` is relative, not empty, and stays inside whatever it is joined to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


def _parse(top: _Table) -> Pins:
    top.allow_only("upstream", "default", "pin")
    upstream = top.text("upstream", "a plain directory name")
    if not valid_upstream(upstream):
        raise top.invalid("upstream", "a plain directory name")
    if not top.values.get("pin"):
        if top.values.get("default"):
            raise top.invalid("default", "left out while there are no pins")
        return Pins(upstream, "", ())
    table = top.table("pin")
    pins = tuple(_parse_pin(table, name) for name in table.values)
    default = top.text("default", "the name of a pin")
    if default not in {pin.name for pin in pins}:
        raise top.invalid("default", f"one of the pins ({', '.join(pin.name for pin in pins)})")
    return Pins(upstream, default, pins)


def valid_upstream(name: str) -> bool:
    """Whether `name` can be the directory of the work tree inside `vendor/`."""
    return _NAME.fullmatch(name) is not None and name != "pins.toml"


def _parse_pin(parent: _Table, name: str) -> Pin:
    if not valid_pin_name(name):
        raise PyggmlError(
            f"{parent.file}: {name!r} is not a valid pin name",
            "Use letters, digits, '.', '_' and '-'; no '..', no '.' or '-' first, no '.' or '.lock' last.",
        )
    table = parent.table(name)
    table.allow_only("commit", "tree", "exclude", "source")
    source = _parse_source(table.table("source"))
    commit = None
    if "commit" in table.values or isinstance(source, GitSource):
        commit = table.matching("commit", _OBJECT_ID, "a full commit id, 40 lowercase hex digits")
    return Pin(
        name=name,
        commit=commit,
        tree=table.matching("tree", _OBJECT_ID, "a full git tree id, 40 lowercase hex digits"),
        exclude=table.inner_paths("exclude"),
        source=source,
    )


def _parse_source(table: _Table) -> Source:
    kind = table.text("kind", f"one of {', '.join(_KINDS)}")
    digest = "64 lowercase hex digits"
    match kind:
        case "sdist":
            table.allow_only("kind", "project", "version", "file", "sha256", "subdir")
            file = table.text("file")
            if not is_file_name(file):
                raise table.invalid("file", "a file name without directories")
            return SdistSource(
                project=table.matching("project", _NAME, "the name of a project in a package index"),
                version=table.text("version"),
                file=file,
                sha256=table.matching("sha256", _SHA256, digest),
                subdir=table.inner_path("subdir"),
            )
        case "git":
            table.allow_only("kind", "url", "subdir")
            url = table.text("url")
            if url.startswith("-"):
                raise table.invalid("url", "the URL or path of a git repository")
            return GitSource(url=url, subdir=table.inner_path("subdir"))
        case "archive":
            table.allow_only("kind", "path", "sha256", "subdir")
            return ArchiveSource(
                path=table.text("path", "the path of an archive"),
                sha256=table.matching("sha256", _SHA256, digest),
                subdir=table.inner_path("subdir"),
            )
        case "directory":
            table.allow_only("kind", "path")
            return DirectorySource(path=table.text("path", "the path of a directory"))
        case _:
            raise table.invalid("kind", f"one of {', '.join(_KINDS)}")


def is_file_name(name: str) -> bool:
    """Whether `name` is a single component of a path, and not hidden."""
    return (
        name not in ("", ".", "..") and not any(char in name for char in "/\\\0") and not name.startswith(".")
    )
