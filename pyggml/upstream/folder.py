"""A directory on this machine as a source."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.snapshot import EXECUTABLE, FILE, SYMLINK, Entry

_REPORT_EVERY = 256


def folder_entries(folder: Path, exclude: tuple[str, ...] = (), report: Progress = silent) -> Iterator[Entry]:
    """What lies in `folder`, without `.git` at any depth and without looking into excluded directories.

    Raises:
        PyggmlError: it is not a directory, or something in it cannot be read.
    """
    if not folder.is_dir():
        raise PyggmlError(f"{folder} is not a directory", "Correct the `path` of the pin's source.")
    left_out = {os.fsencode(path) for path in exclude}
    count = 0
    pending = [b""]
    try:
        while pending:
            inner = pending.pop()
            with os.scandir(os.fsencode(folder) + b"/" + inner) as listing:
                found = sorted(listing, key=lambda item: item.name)
            for item in found:
                path = inner + b"/" + item.name if inner else item.name
                if item.name == b".git" or path in left_out:
                    continue
                if item.is_dir(follow_symlinks=False):
                    pending.append(path)
                    yield Entry(path)
                else:
                    yield from _entry(item, path)
                count += 1
                if count % _REPORT_EVERY == 0:
                    report(f"importing {folder.name} ({count} files)", 0, None)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else str(folder)
        raise PyggmlError(
            f"cannot read {where}: {error.strerror or error}", "Nothing was imported."
        ) from error


def _entry(item: os.DirEntry[bytes], path: bytes) -> Iterator[Entry]:
    if item.is_symlink():
        yield Entry(path, SYMLINK, target=os.readlink(item.path))  # noqa: PTH115 - as bytes
        return
    if not item.is_file(follow_symlinks=False):
        yield Entry(path, FILE, odd="a device, FIFO or socket")
        return
    with os.fdopen(os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        mode = EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE
        yield Entry(path, mode, status.st_size, content=file)
