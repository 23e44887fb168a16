"""Many objects read and written with two processes: one that reads while the work is done, one that writes it all.

A process for every blob, tree and commit is what makes a series of hundreds slow. Here objects are made in memory, with
the ids that git gives them, and written as one pack; nothing refers to them before `flush`. The ids are SHA-1, as in
every repository that pyggml makes.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from pyggml.errors import PyggmlError
from pyggml.git.pipe import piped
from pyggml.git.runner import Git

TREE_MODE = b"40000"
_KINDS = {"commit": 1, "tree": 2, "blob": 3}
_AT_ONCE = 99
"""So many ids fit in the smallest pipe there is, a page: neither side ever waits for the other to read."""
_LOOSE_UNTIL = 100
"""As git's `fetch.unpackLimit`: so many objects become loose ones, more a pack."""


@dataclass(frozen=True)
class Entry:
    """A file or directory in a tree; `mode` as git writes it, e.g. `100644`."""

    mode: bytes
    id: str


@dataclass
class ObjectStore:
    """The objects of a repository, and those that are made here and not written yet."""

    git: Git
    _streams: tuple[IO[bytes], IO[bytes]]
    _new: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _trees: dict[str, Mapping[bytes, Entry]] = field(default_factory=dict)
    _ahead: dict[str, bytes] = field(default_factory=dict)

    def content(self, made: str) -> bytes:
        """The content of the object with the id `made`.

        Raises:
            PyggmlError: the repository lacks it.
        """
        if made in self._new:
            return self._new[made][1]
        if made in self._ahead:
            return self._ahead[made]
        (content,) = self._ask([made])
        if content is None:
            raise PyggmlError(f"{self.git.git_dir}: object {made} is missing", "Check it with: git fsck")
        return content

    def read_ahead(self, ids: Iterable[str]) -> None:
        """Read what will be asked for, without waiting for each answer; ids that the repository lacks do no harm."""
        wanted = [made for made in dict.fromkeys(ids) if made not in self._new]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            contents = zip(some, self._ask(some), strict=True)
            self._ahead.update((made, content) for made, content in contents if content is not None)

    def _ask(self, ids: Sequence[str]) -> list[bytes | None]:
        """The contents of up to `_AT_ONCE` objects of the repository; None for one that it lacks."""
        stdin, stdout = self._streams
        stdin.write("".join(f"{made}\n" for made in ids).encode("ascii"))
        stdin.flush()
        contents: list[bytes | None] = []
        for _ in ids:
            size = stdout.readline().split()[-1]
            contents.append(stdout.read(int(size)) if size.isdigit() else None)
            if size.isdigit():
                stdout.read(1)
        return contents

    def write(self, kind: str, content: bytes) -> str:
        """Make an object; returns its id. It is in the repository after `flush`."""
        made = hashlib.sha1(
            b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False
        ).hexdigest()
        self._new.setdefault(made, (kind, content))
        return made

    def tree(self, tree: str) -> Mapping[bytes, Entry]:
        """The entries of a tree by name."""
        known = self._trees.get(tree)
        if known is None:
            known = self._trees[tree] = _parse_tree(self.content(tree))
        return known

    def entry(self, tree: str, path: bytes) -> Entry | None:
        """What `path` is in a tree; None if it is nothing there."""
        *directories, name = path.split(b"/")
        for directory in directories:
            inner = self.tree(tree).get(directory)
            if inner is None or inner.mode != TREE_MODE:
                return None
            tree = inner.id
        return self.tree(tree).get(name)

    def with_files(self, tree: str, files: Mapping[bytes, Entry | None]) -> str:
        """The tree with `files` (path to entry, None to remove it) changed; a directory that is empty then is gone."""
        here: dict[bytes, Entry | None] = {}
        below: dict[bytes, dict[bytes, Entry | None]] = {}
        for path, entry in files.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(name, {})[rest] = entry
            else:
                here[name] = entry
        entries = dict(self.tree(tree)) if tree else {}
        for name, inside in below.items():
            inner = entries.get(name)
            made = self.with_files(inner.id if inner and inner.mode == TREE_MODE else "", inside)
            here[name] = Entry(TREE_MODE, made) if self.tree(made) else None
        for name, entry in here.items():
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        content = b"".join(
            b"%s %s\0%s" % (entries[name].mode, name, bytes.fromhex(entries[name].id))
            for name in sorted(entries, key=lambda name: name + b"/" * (entries[name].mode == TREE_MODE))
        )
        made = self.write("tree", content)
        self._trees[made] = entries
        return made

    def changes(self, old: str, new: str) -> dict[bytes, Entry | None]:
        """The files that differ between two trees: path to what it is in `new`, None if it is gone."""
        before, after = (self.tree(tree) if tree else {} for tree in (old, new))
        changed: dict[bytes, Entry | None] = {}
        for name in before.keys() | after.keys():
            a, b = before.get(name), after.get(name)
            if a == b:
                continue
            inner = [entry.id if entry and entry.mode == TREE_MODE else "" for entry in (a, b)]
            if any(inner):
                below = self.changes(*inner)
                changed.update((name + b"/" + path, entry) for path, entry in below.items())
            if b is not None and b.mode != TREE_MODE:
                changed[name] = b
            elif b is None and a is not None and a.mode != TREE_MODE:
                changed[name] = None
        return changed

    def is_free(self, tree: str, path: bytes) -> bool:
        """Whether there can be a new file: nothing is there, and nothing but directories is on the way."""
        parts = path.split(b"/")
        above = (self.entry(tree, b"/".join(parts[:count])) for count in range(1, len(parts)))
        free = all(entry is None or entry.mode == TREE_MODE for entry in above)
        return free and self.entry(tree, path) is None

    def flush(self) -> None:
        """Write what was made to the repository.

        Raises:
            GitError: git cannot write it, e.g. since the disk is full.
        """
        if not self._new:
            return
        if len(self._new) <= _LOOSE_UNTIL:
            # It leaves out what is there already.
            self.git.run("unpack-objects", "-q", stdin=_pack(self._new.values()))
        elif missing := self._missing():
            self.git.run("index-pack", "--stdin", stdin=_pack(missing))
        self._new.clear()

    def _missing(self) -> list[tuple[str, bytes]]:
        ids = "".join(f"{one}\n" for one in self._new)
        rows = self.git.run("cat-file", "--batch-check", stdin=ids.encode()).splitlines()
        pairs = zip(self._new.values(), rows, strict=True)
        return [content for content, row in pairs if row.endswith(b" missing")]


@contextlib.contextmanager
def open_objects(git: Git) -> Iterator[ObjectStore]:
    """The objects of a repository. What was made is written at the end, and not after an exception.

    Raises:
        GitError: git cannot read or write them.
    """
    with piped(git, "cat-file", "--batch") as streams:
        store = ObjectStore(git, streams)
        yield store
        store.flush()


def _parse_tree(content: bytes) -> dict[bytes, Entry]:
    entries: dict[bytes, Entry] = {}
    at = 0
    while at < len(content):
        space, end = content.index(b" ", at), content.index(b"\0", at)
        entries[content[space + 1 : end]] = Entry(content[at:space], content[end + 1 : end + 21].hex())
        at = end + 21
    return entries


def _pack(objects: Collection[tuple[str, bytes]]) -> bytes:
    """A pack of whole objects. Source: git's Documentation/gitformat-pack."""
    parts = [b"PACK" + struct.pack(">II", 2, len(objects))]
    for kind, content in objects:
        size = len(content)
        byte = _KINDS[kind] << 4 | size & 15
        size >>= 4
        head = bytearray()
        while size:
            head.append(byte | 128)
            byte, size = size & 127, size >> 7
        head.append(byte)
        parts += [bytes(head), zlib.compress(content, 1)]
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
