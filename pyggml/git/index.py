"""Entries of an index written as they are, without looking at files."""

from __future__ import annotations

from collections.abc import Mapping

from pyggml.git.runner import Git

NO_ENTRY = f"0 {'0' * 40}"
"""What takes a path out of the index, in the form of `git update-index --index-info`."""


def write_entries(index: Git, entries: Mapping[str, tuple[str, str] | None]) -> None:
    """Put paths into the index, or take them out of it.

    Args:
        entries: path to mode and blob, or None to take it out.
    """
    rows = [f"{' '.join(entry) if entry else NO_ENTRY}\t{path}" for path, entry in entries.items()]
    write_rows(index, rows)


def write_rows(index: Git, rows: list[str]) -> None:
    """As `write_entries`, with rows of `git update-index --index-info`: those of unmerged paths have stages."""
    if not rows:
        return
    data = "".join(f"{row}\0" for row in rows).encode("utf-8", "surrogateescape")
    index.run("update-index", "-z", "--index-info", stdin=data)
