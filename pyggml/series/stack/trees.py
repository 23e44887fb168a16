"""Reading and comparing trees: the same bytes with every configuration of git."""

from __future__ import annotations

from collections.abc import Sequence

from pyggml.git import Git
from pyggml.git.runner import DIFF_FORMAT
from pyggml.series.patchfile.diff import FileDiff, parse_diff
from pyggml.series.patchfile.placement import ReadFile
from pyggml.series.patchfile.prefixes import Kind


def tree_diff(git: Git, old: str, new: str, *options: str) -> bytes:
    """The diff of two trees."""
    return git.run("diff-tree", "-r", "-p", *DIFF_FORMAT, "--find-renames", *options, old, new)


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


def path_kinds(git: Git, tree: str) -> Kind:
    """A function that says what a path of `tree` is."""

    def kind(path: str) -> str | None:
        status, out = git.status("cat-file", "-t", f"{tree}:{path}", ok=(0, 1, 128))
        return out.decode().strip() if status == 0 else None

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
