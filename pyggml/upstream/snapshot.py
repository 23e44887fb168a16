"""What a snapshot may contain: the checks that make a hostile archive harmless.

A source yields `SourceEntry` objects one by one; `Snapshot` takes them in, refuses what must not be in a work
tree, and collects the contents of the commit. Nothing is ever written to a path that comes from an archive.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from typing import Protocol

from pyggml.errors import PyggmlError

MAX_BYTES = 4 << 30
MAX_MEMBERS = 500_000
MAX_PATH_BYTES = 4096
_MAX_LINKS_FOLLOWED = 40

FILE = b"100644"
EXECUTABLE = b"100755"
SYMLINK = b"120000"


class Readable(Protocol):
    """A file's content."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class SourceEntry:
    """One file, symbolic link, hard link or directory of a source.

    Attributes:
        path: relative, as in the source, with `/` between components.
        mode: `FILE`, `EXECUTABLE` or `SYMLINK`; None for a directory.
        size: size of the content, in bytes.
        content: the content of a file, positioned at its start; valid until the next entry is requested.
        target: where a symbolic link points.
        same_as: for a hard link, the path of the entry whose content it shares.
        unsupported: what it is if none of the above ("a device"); it is refused unless left out.
    """

    path: bytes
    mode: bytes | None = None
    size: int = 0
    content: Readable | None = None
    target: bytes | None = None
    same_as: bytes | None = None
    unsupported: str | None = None


class NotSingleTopError(Exception):
    """The archive does not have everything in one top directory."""


def printable(path: bytes) -> str:
    """`path` for a message: on one line, undecodable bytes and control characters escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def is_dot_git(part: bytes) -> bool:
    """Whether some file system treats the path component `part` as `.git`.

    The rules are git's own (`is_hfs_dotgit` and `is_ntfs_dotgit` in path.c and utf8.c): HFS+ ignores case and
    some code points; NTFS ignores case and trailing dots and spaces, has the short name `git~1`, and treats
    what follows a colon as the name of a stream.
    """
    text = part.decode("utf-8", "surrogateescape")
    bare = "".join(char for char in text if unicodedata.category(char) != "Cf").casefold()
    if bare == ".git":
        return True
    return text.split(":")[0].rstrip(". ").casefold() in (".git", "git~1")


@dataclass
class Snapshot:
    """The contents of one import, collected entry by entry.

    Attributes:
        origin: what is imported, for messages.
        subdir: only the contents of this directory are taken; its path is stripped.
        exclude: paths inside `subdir` that are left out.
        strip_top: the source has everything in one top directory, which is stripped first.
    """

    origin: str
    subdir: str = ""
    exclude: tuple[str, ...] = ()
    strip_top: bool = False
    files: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Path to (mode, mark of the content)."""
    _links: dict[bytes, bytes] = field(default_factory=dict)
    _directories: set[bytes] = field(default_factory=set)
    _top: bytes | None = None
    _members: int = 0
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._inside = self.subdir.encode("utf-8", "surrogateescape") + b"/" if self.subdir else b""
        self._excluded = tuple(path.encode("utf-8", "surrogateescape") for path in self.exclude)

    def refuse(self, path: bytes, why: str) -> PyggmlError:
        return PyggmlError(
            f"{self.origin}: refused because of {printable(path)}: {why}",
            "Nothing was imported. Use another source, or leave the path out with `exclude`.",
        )

    def place(self, entry: SourceEntry) -> bytes | None:
        """The path of `entry` in the snapshot, or None if it is left out.

        Raises:
            PyggmlError: it is not allowed in a snapshot.
            NotSingleTopError: `strip_top` is set and `entry` is outside the top directory.
        """
        self._members += 1
        self._bytes += entry.size
        if self._members > MAX_MEMBERS:
            raise self.refuse(entry.path, f"more than {MAX_MEMBERS} members")
        if self._bytes > MAX_BYTES:
            raise self.refuse(entry.path, f"more than {MAX_BYTES >> 30} GiB unpacked")
        parts = self._parts(entry.path)
        path = self._inner(entry, parts)
        if path is None or any(path == out or path.startswith(out + b"/") for out in self._excluded):
            return None
        if path == b".git" and entry.mode in (FILE, EXECUTABLE):
            return None
        for part in path.split(b"/"):
            if any(is_dot_git(piece) for piece in part.split(b"\\")):
                raise self.refuse(entry.path, "it would be in git's own directory")
            if b".." in part.split(b"\\"):
                raise self.refuse(entry.path, "it leaves the tree through '..'")
        if entry.unsupported is not None:
            raise self.refuse(entry.path, f"{entry.unsupported}, not a file, directory or link")
        self._claim(entry, path)
        if entry.mode is None:
            return None
        if entry.target is not None:
            self._check_target(entry, path)
        return path

    def hard_link(self, entry: SourceEntry, path: bytes) -> tuple[bytes, int]:
        """(mode, mark) of the hard link `entry` at `path`: the mark is that of the file it links to.

        Raises:
            PyggmlError: it does not link to an earlier file of the snapshot.
        """
        assert entry.same_as is not None and entry.mode is not None  # noqa: S101
        try:
            inner = self._inner(entry, self._parts(entry.same_as))
        except NotSingleTopError:
            inner = None
        original = self.files.get(inner) if inner is not None else None
        if original is None or inner == path:
            raise self.refuse(
                entry.path, f"a hard link to {printable(entry.same_as)}, which was not imported"
            )
        mode, mark = original
        return (mode if mode == SYMLINK else entry.mode), mark

    def finish(self) -> None:
        """Check what can only be checked once everything is there.

        Raises:
            PyggmlError: a link leaves the tree, or there are no files.
        """
        if not self.files:
            place = f" in its directory {self.subdir}" if self.subdir else ""
            raise PyggmlError(
                f"{self.origin}: there are no files{place}",
                "Nothing was imported. Check the `subdir` of the pin's source.",
            )
        for path, target in self._links.items():
            if not self._stays_inside(path, target):
                raise self.refuse(path, f"a symbolic link that leaves the tree ({printable(target)})")

    def _parts(self, path: bytes) -> list[bytes]:
        if b"\0" in path:
            raise self.refuse(path, "its name contains a NUL byte")
        if len(path) > MAX_PATH_BYTES:
            raise self.refuse(path[:100], f"its name is longer than {MAX_PATH_BYTES} bytes")
        if path.startswith((b"/", b"\\")) or (
            path[1:2] == b":" and path[:1].isalpha() and path[2:3] in b"/\\"
        ):
            raise self.refuse(path, "an absolute path")
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise self.refuse(path, "it leaves the tree through '..'")
        return parts

    def _inner(self, entry: SourceEntry, parts: list[bytes]) -> bytes | None:
        if self.strip_top and parts:
            if self._top is None:
                self._top = parts[0]
            if parts[0] != self._top or (len(parts) == 1 and entry.mode is not None):
                raise NotSingleTopError
            parts = parts[1:]
        path = b"/".join(parts)
        if not path or not path.startswith(self._inside):
            return None
        return path[len(self._inside) :] or None

    def _claim(self, entry: SourceEntry, path: bytes) -> None:
        parents = path.split(b"/")[:-1]
        above = b""
        for part in parents:
            above = above + b"/" + part if above else part
            if above in self.files:
                raise self.refuse(entry.path, f"{printable(above)} is both a file and a directory")
            self._directories.add(above)
        if path in self.files:
            raise self.refuse(entry.path, "it occurs twice")
        if entry.mode is None:
            self._directories.add(path)
        elif path in self._directories:
            raise self.refuse(entry.path, f"{printable(path)} is both a file and a directory")

    def _check_target(self, entry: SourceEntry, path: bytes) -> None:
        target = entry.target or b""
        if not target or b"\0" in target:
            raise self.refuse(entry.path, "a symbolic link to nowhere")
        if path.split(b"/")[-1].lower() == b".gitmodules":
            raise self.refuse(entry.path, "a symbolic link that git itself refuses")
        if any(is_dot_git(part) for part in target.split(b"/")):
            raise self.refuse(entry.path, "a symbolic link into git's own directory")
        self._links[path] = target

    def _stays_inside(self, path: bytes, target: bytes) -> bool:
        # Resolved link by link, as the kernel does: the text `d/..` means nothing if `d` is itself a link.
        here = path.split(b"/")[:-1]
        pending = target.split(b"/")[::-1]
        if target.startswith(b"/"):
            return False
        followed = 0
        while pending:
            part = pending.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here:
                    return False
                here.pop()
                continue
            here.append(part)
            next_target = self._links.get(b"/".join(here))
            if next_target is not None:
                if next_target.startswith(b"/"):
                    return False
                followed += 1
                if followed > _MAX_LINKS_FOLLOWED:
                    return True
                here.pop()
                pending.extend(next_target.split(b"/")[::-1])
        return True
