"""Files that are replaced as a whole: afterwards either the old one or the new one is there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """A path for the block to write what a user wants in `path`.

    A regular file is replaced as `replacing` does, at the end of a link if `path` is one. A device, a pipe and whatever
    else lies under /dev or /proc is opened as it is: a rename would put a file in its place.

    Raises:
        OSError: the directory, the flush or the rename failed.
    """
    if _leads_to_itself(path):  # of which pathlib makes a RuntimeError before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    special = path.exists() and not path.is_file()
    if special or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        yield path
        return
    with replacing(path.resolve()) as temporary:
        yield temporary


def _leads_to_itself(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def write_output(path: Path, data: bytes) -> None:
    """Write `data` to the `path` that a user has named, as `output_file` does.

    Raises:
        PyggmlError: it cannot be written (no space, no permission, a directory); a regular file is unchanged.
    """
    try:
        with output_file(path) as place:
            place.write_bytes(data)
    except OSError as error:
        raise PyggmlError(
            f"cannot write {path}: {error.strerror or error}", "Make room there, or name another file."
        ) from error


def whole_lines(path: Path, what: str) -> list[bytes]:
    """The lines of a file that another process appends to, without a last one that was cut off.

    Raises:
        PyggmlError: the file cannot be read; the message says `what` it is.
    """
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise PyggmlError(f"cannot read the {what} {path}: {error.strerror or error}") from error


def remove_file(path: Path) -> None:
    """Remove `path`; it may not exist."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def with_lines(before: bytes, comment: str, lines: Sequence[str]) -> bytes:
    """The content of a text file with those of `lines` appended, below `comment`, that it does not have yet."""
    there = before.decode("utf-8", "surrogateescape").splitlines()
    missing = [line for line in lines if line not in there]
    if not missing:
        return before
    gap = b"" if not before or before.endswith(b"\n") else b"\n"
    return before + gap + ("\n".join([comment, *missing]) + "\n").encode()
