"""Reads a directory on this machine as a source."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.snapshot import EXECUTABLE, FILE, SYMLINK, SourceEntry

_REPORT_EVERY = 256


def directory_entries(
    directory: Path, exclude: tuple[str, ...] = (), report: Progress = silent
) -> Iterator[SourceEntry]:
    """The contents of `directory`, without `.git` at any depth and without entering excluded directories.

    Raises:
        PyggmlError: it is not a directory, or something in it cannot be read.
    """
    if not directory.is_dir():
        raise PyggmlError(f"{directory} is not a directory", "Correct the `path` of the pin's source.")
    excluded = {os.fsencode(path) for path in exclude}
    count = 0
    pending = [b""]
    try:
        while pending:
            inner = pending.pop()
            with os.scandir(os.fsencode(directory) + b"/" + inner) as listing:
                items = sorted(listing, key=lambda item: item.name)
            for item in items:
                path = inner + b"/" + item.name if inner else item.name
                if item.name == b".git" or path in excluded:
                    continue
                if item.is_dir(follow_symlinks=False):
                    pending.append(path)
                    yield SourceEntry(path)
                else:
                    yield from _entry(item, path)
                count += 1
                if count % _REPORT_EVERY == 0:
                    report(f"importing {directory.name} ({count} files)", 0, None)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else str(directory)
        raise PyggmlError(
            f"cannot read {where}: {error.strerror or error}", "Nothing was imported."
        ) from error


def _entry(item: os.DirEntry[bytes], path: bytes) -> Iterator[SourceEntry]:
    if item.is_symlink():
        yield SourceEntry(path, SYMLINK, target=os.readlink(item.path))  # noqa: PTH115 - as bytes
        return
    if not item.is_file(follow_symlinks=False):
        yield SourceEntry(path, FILE, unsupported="a device, FIFO or socket")
        return
    with os.fdopen(os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        mode = EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE
        yield SourceEntry(path, mode, status.st_size, content=file)
