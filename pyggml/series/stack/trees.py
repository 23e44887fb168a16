"""Reading and comparing trees: the same bytes with every configuration of git."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from pyggml.git import Git
from pyggml.git.object_store import TREE_MODE, Entry, ObjectStore, open_objects
from pyggml.git.pipe import piped
from pyggml.git.runner import DIFF_FORMAT
from pyggml.series.patchfile.diff import FileDiff, parse_diff
from pyggml.series.patchfile.placement import ReadFile
from pyggml.series.patchfile.prefixes import Kind

_KINDS = {TREE_MODE: "tree", b"160000": "commit"}
"""What is at an entry of this mode; at all others it is a blob."""
_END_OF_DIFF = b"pyggml: end of the diff\n"


def tree_diff(git: Git, old: str, new: str, *options: str, paths: Sequence[str] = ()) -> bytes:
    """The diff of two trees; with `paths`, only of what they match."""
    return git.run("diff-tree", "-r", "-p", *DIFF_FORMAT, "--find-renames", *options, old, new, "--", *paths)


def parsed_tree_diff(git: Git, old: str, new: str) -> tuple[FileDiff, ...]:
    """The diff of two trees, parsed."""
    return parse_diff(tree_diff(git, old, new)) if old != new else ()


def renamed_paths(git: Git, old: str, new: str) -> dict[str, str]:
    """Files that moved between two trees: old path to new path."""
    out = git.run("diff-tree", "-r", "-z", "--find-renames", "--diff-filter=R", "--name-status", old, new)
    parts = out.decode("utf-8", "surrogateescape").split("\0")
    return {parts[i + 1]: parts[i + 2] for i in range(0, len(parts) - 2, 3)}


def tree_reader(git: Git, tree: str) -> ReadFile:
    """A function that gives the content of a file of `tree`; each file is read once."""
    known: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        if path not in known:
            status, out = git.status("cat-file", "blob", f"{tree}:{path}", ok=(0, 1, 128))
            known[path] = out if status == 0 else None
        return known[path]

    return read


@dataclass
class Trees:
    """Many trees compared, with two processes for all of them.

    Attributes:
        store: their objects.
    """

    store: ObjectStore
    _diffs: tuple[IO[bytes], IO[bytes]]
    _known: dict[frozenset[tuple[bytes, Entry | None, Entry | None]], tuple[FileDiff, ...]] = field(
        default_factory=dict
    )

    def diff(self, old: str, new: str) -> tuple[FileDiff, ...]:
        """As `parsed_tree_diff`. The same change of the same files has the same diff, whatever else is in the trees."""
        changes = self.store.changes(old, new)
        key = frozenset((path, self.store.entry(old, path), entry) for path, entry in changes.items())
        if key not in self._known:
            self.store.flush()
            self._known[key] = parse_diff(self._ask(old, new))
        return self._known[key]

    def _ask(self, old: str, new: str) -> bytes:
        stdin, stdout = self._diffs
        # What is no object is printed as it is, and everything with it (builtin/diff-tree.c, `cmd_diff_tree`).
        stdin.write(f"{old} {new}\n".encode() + _END_OF_DIFF)
        stdin.flush()
        lines = list(iter(stdout.readline, _END_OF_DIFF))
        return b"".join(lines)

    def reader(self, tree: str) -> ReadFile:
        """As `tree_reader`."""
        return stored_reader(self.store, tree)


@contextlib.contextmanager
def open_trees(git: Git) -> Iterator[Trees]:
    """The trees of a repository; objects that are made meanwhile are written at the end.

    Raises:
        GitError: git cannot read or write them.
    """
    command = ("diff-tree", "--stdin", "-r", "-p", *DIFF_FORMAT, "--find-renames")
    with open_objects(git) as store, piped(git, *command) as diffs:
        yield Trees(store, diffs)


def stored_reader(store: ObjectStore, tree: str) -> ReadFile:
    """As `tree_reader`, without a process."""

    def read(path: str) -> bytes | None:
        entry = store.entry(tree, path.encode("utf-8", "surrogateescape"))
        return None if entry is None or entry.mode in _KINDS else store.content(entry.id)

    return read


def path_kinds(git: Git, tree: str) -> Kind:
    """A function that says what a path of `tree` is."""

    def kind(path: str) -> str | None:
        status, out = git.status("cat-file", "-t", f"{tree}:{path}", ok=(0, 1, 128))
        return out.decode().strip() if status == 0 else None

    return kind


def stored_kinds(store: ObjectStore, tree: str) -> Kind:
    """As `path_kinds`, without a process."""

    def kind(path: str) -> str | None:
        entry = store.entry(tree, path.encode("utf-8", "surrogateescape"))
        return None if entry is None else _KINDS.get(entry.mode, "blob")

    return kind


def read_blobs(git: Git, ids: Sequence[str]) -> list[bytes]:
    """The contents of blobs, in order, read by one process."""
    if not ids:
        return []
    out = git.run("cat-file", "--batch", stdin="".join(f"{i}\n" for i in ids).encode())
    contents: list[bytes] = []
    at = 0
    for _ in ids:
        end = out.index(b"\n", at)
        size = int(out[at:end].rsplit(b" ", 1)[1])
        contents.append(out[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
    return contents
