"""Files that are replaced as a whole: afterwards either the old one or the new one is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pyggml.errors import PyggmlError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` for the block to write; then it is flushed to disk and renamed to `path`.

    If the block raises, it is removed and `path` is unchanged. The temporary name is always the same, so that
    the next process overwrites what a killed one left; two processes that write the same file need a lock.

    Raises:
        OSError: the directory, the flush or the rename failed.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` as `replacing` does.

    Raises:
        PyggmlError: the file cannot be written (no space, no permission); `path` is unchanged.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise PyggmlError(
            f"cannot write {path}: {error.strerror or error}", "The file was not changed."
        ) from error


def remove_file(path: Path) -> None:
    """Remove `path`; it may not exist."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
