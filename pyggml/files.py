"""Files that are either the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyggml.errors import PyggmlError


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, flush it to the disk and rename it into place.

    The name beside it is always the same, so that what a killed process left is written over by the next;
    two processes that write one file need a lock of their own.

    Raises:
        PyggmlError: the file cannot be written (no space, no permission); `path` is unchanged.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise PyggmlError(
            f"cannot write {path}: {error.strerror or error}", "Nothing was changed there."
        ) from error


def remove_file(path: Path) -> None:
    """Remove `path`; one that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
