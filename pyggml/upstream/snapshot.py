"""What a snapshot may hold: the checks that make a hostile archive harmless.

A source yields `Entry` objects one after another; `Snapshot` takes them in, refuses what must not be in a
work tree, and remembers what the commit will consist of. Nothing is ever written to a path that came out
of an archive.
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
    """The one thing that is asked of a file's content."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class Entry:
    """One file, symbolic link, hard link or directory of a source.

    Attributes:
        path: relative, as in the source, `/` between components.
        mode: `FILE`, `EXECUTABLE` or `SYMLINK`; None is a directory.
        size: of the content, in bytes.
        content: the content of a file, positioned at its start; valid until the next entry is asked for.
        target: where a symbolic link points.
        same_as: for a hard link, the path of the entry whose content it shares.
        odd: what it is if it is nothing of the above ("a device"); it is refused unless skipped.
    """

    path: bytes
    mode: bytes | None = None
    size: int = 0
    content: Readable | None = None
    target: bytes | None = None
    same_as: bytes | None = None
    odd: str | None = None


class NotSingleTopError(Exception):
    """The archive does not keep everything in one top directory."""


def shown(path: bytes) -> str:
    """`path` for a message: on one line, undecodable bytes and control characters escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def is_dot_git(part: bytes) -> bool:
    """Whether some file system would take the path component `part` for `.git`.

    The rules are git's own (`is_hfs_dotgit` and `is_ntfs_dotgit` in path.c and utf8.c): HFS+ ignores some
    code points and case; NTFS ignores case and trailing dots and spaces, has the short name `git~1`,
    and takes what follows a colon for a stream's name.
    """
    text = part.decode("utf-8", "surrogateescape")
    bare = "".join(sign for sign in text if unicodedata.category(sign) != "Cf").casefold()
    if bare == ".git":
        return True
    return text.split(":")[0].rstrip(". ").casefold() in (".git", "git~1")


@dataclass
class Snapshot:
    """The growing content of one import.

    Attributes:
        origin: what is imported, for messages.
        subdir: only what lies in this directory is taken, and its path is cut off.
        exclude: paths inside `subdir` that are left out.
        strip_top: the source keeps everything in one top directory that is cut off first.
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
            f"{self.origin}: refused because of {shown(path)}: {why}",
            "Nothing was imported. Use a source without that, or leave the path out with `exclude`.",
        )

    def place(self, entry: Entry) -> bytes | None:
        """Where `entry` goes in the snapshot, or None if it is left out.

        Raises:
            PyggmlError: it must not be there at all.
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
                raise self.refuse(entry.path, "it would land in git's own directory")
            if b".." in part.split(b"\\"):
                raise self.refuse(entry.path, "it leads out through '..'")
        if entry.odd is not None:
            raise self.refuse(entry.path, f"{entry.odd}, neither file nor directory nor link")
        self._claim(entry, path)
        if entry.mode is None:
            return None
        if entry.target is not None:
            self._check_target(entry, path)
        return path

    def same(self, entry: Entry, path: bytes) -> tuple[bytes, int]:
        """(mode, mark) of what the hard link `entry`, placed at `path`, shares its content with.

        Raises:
            PyggmlError: that is not an earlier file of the snapshot.
        """
        assert entry.same_as is not None and entry.mode is not None  # noqa: S101
        try:
            inner = self._inner(entry, self._parts(entry.same_as))
        except NotSingleTopError:
            inner = None
        found = self.files.get(inner) if inner is not None else None
        if found is None or inner == path:
            raise self.refuse(entry.path, f"a hard link to {shown(entry.same_as)}, which was not imported")
        mode, mark = found
        return (mode if mode == SYMLINK else entry.mode), mark

    def finish(self) -> None:
        """Check what can only be seen with everything in place.

        Raises:
            PyggmlError: a link leads out, or there is nothing at all.
        """
        if not self.files:
            place = f" in its directory {self.subdir}" if self.subdir else ""
            raise PyggmlError(
                f"{self.origin}: there are no files{place}",
                "Check the `subdir` of the pin's source; nothing was imported.",
            )
        for path, target in self._links.items():
            if not self._stays_inside(path, target):
                raise self.refuse(path, f"a symbolic link out of the tree ({shown(target)})")

    def _parts(self, path: bytes) -> list[bytes]:
        if b"\0" in path:
            raise self.refuse(path, "a NUL byte in its name")
        if len(path) > MAX_PATH_BYTES:
            raise self.refuse(path[:100], f"a name of more than {MAX_PATH_BYTES} bytes")
        if path.startswith((b"/", b"\\")) or (
            path[1:2] == b":" and path[:1].isalpha() and path[2:3] in b"/\\"
        ):
            raise self.refuse(path, "an absolute path")
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise self.refuse(path, "it leads out through '..'")
        return parts

    def _inner(self, entry: Entry, parts: list[bytes]) -> bytes | None:
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

    def _claim(self, entry: Entry, path: bytes) -> None:
        parents = path.split(b"/")[:-1]
        above = b""
        for part in parents:
            above = above + b"/" + part if above else part
            if above in self.files:
                raise self.refuse(entry.path, f"{shown(above)} is a file and a directory")
            self._directories.add(above)
        if path in self.files:
            raise self.refuse(entry.path, "it is there twice")
        if entry.mode is None:
            self._directories.add(path)
        elif path in self._directories:
            raise self.refuse(entry.path, f"{shown(path)} is a file and a directory")

    def _check_target(self, entry: Entry, path: bytes) -> None:
        target = entry.target or b""
        if not target or b"\0" in target:
            raise self.refuse(entry.path, "a symbolic link to nowhere")
        if path.split(b"/")[-1].lower() == b".gitmodules":
            raise self.refuse(entry.path, "a symbolic link that git itself refuses")
        if any(is_dot_git(part) for part in target.split(b"/")):
            raise self.refuse(entry.path, "a symbolic link into git's own directory")
        self._links[path] = target

    def _stays_inside(self, path: bytes, target: bytes) -> bool:
        # As the kernel walks it, link by link: by text alone `d/..` says nothing once `d` is a link.
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
            onward = self._links.get(b"/".join(here))
            if onward is not None:
                if onward.startswith(b"/"):
                    return False
                followed += 1
                if followed > _MAX_LINKS_FOLLOWED:
                    return True
                here.pop()
                pending.extend(onward.split(b"/")[::-1])
        return True
