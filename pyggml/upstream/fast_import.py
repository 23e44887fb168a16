"""Imports a snapshot as one commit: entries are streamed into `git fast-import`, never onto the disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from pyggml.errors import PyggmlError
from pyggml.files import remove_file
from pyggml.git.pipe import piped
from pyggml.git.runner import Git
from pyggml.upstream.snapshot import SYMLINK, Readable, Snapshot, SourceEntry, printable

_CHUNK = 1 << 20
IDENTITY = b"pyggml <pyggml@users.noreply.github.com> 1577836800 +0000"
"""Author and committer of every imported commit, so that the same content has the same id everywhere."""


def import_snapshot(
    git: Git, entries: Iterable[SourceEntry], snapshot: Snapshot, message: str, ref: str
) -> None:
    """Make `entries` one parentless commit with `message` and point `ref` at it.

    The contents end up in one pack. On any failure `ref` is unchanged and no object is visible.

    Raises:
        PyggmlError: an entry is refused, the source cannot be read completely, or git failed.
    """
    try:
        _import(git, entries, snapshot, message, ref)
    except BaseException:
        # The repository is our own new one: nobody else writes there.
        for unfinished in (git.git_dir / "objects" / "pack").glob("tmp_*"):
            remove_file(unfinished)
        raise


def _import(git: Git, entries: Iterable[SourceEntry], snapshot: Snapshot, message: str, ref: str) -> None:
    # No deltas and no loose objects: both cost seconds here and save little.
    args = (
        "-c",
        "fastimport.unpackLimit=0",
        "fast-import",
        "--quiet",
        "--done",
        "--depth=0",
        "--date-format=raw",
    )
    with piped(git, *args) as (stream, _):
        mark = 0
        for entry in entries:
            path = snapshot.place(entry)
            if path is None or entry.mode is None:
                continue
            if entry.same_as is not None:
                snapshot.files[path] = snapshot.hard_link(entry, path)
                continue
            mark += 1
            stream.write(b"blob\nmark :%d\n" % mark)
            if entry.mode == SYMLINK:
                target = entry.target or b""
                stream.write(b"data %d\n%b\n" % (len(target), target))
            else:
                stream.write(b"data %d\n" % entry.size)
                _copy(entry, stream, snapshot)
                stream.write(b"\n")
            snapshot.files[path] = (entry.mode, mark)
        snapshot.finish()
        text = message.encode("utf-8", "surrogateescape")
        stream.write(b"commit %b\nauthor %b\ncommitter %b\n" % (ref.encode(), IDENTITY, IDENTITY))
        stream.write(b"data %d\n%b\n" % (len(text), text))
        for path, (mode, number) in sorted(snapshot.files.items()):
            stream.write(b"M %b :%d %b\n" % (mode, number, quoted(path)))
        stream.write(b"\ndone\n")


def quoted(path: bytes) -> bytes:
    """`path` quoted for git, whatever bytes it contains; a plain one is left as it is."""
    if all(32 < byte < 127 and byte not in b'"\\' for byte in path):
        return path
    plain = (32 <= byte < 127 and byte not in b'"\\' for byte in path)
    return b'"%b"' % b"".join(
        bytes((byte,)) if as_is else b"\\%03o" % byte for byte, as_is in zip(path, plain, strict=True)
    )


def _copy(entry: SourceEntry, stream: IO[bytes], snapshot: Snapshot) -> None:
    assert entry.content is not None  # noqa: S101
    left = entry.size
    while left and (data := _read(entry.content, min(left, _CHUNK), entry, snapshot)):
        stream.write(data)
        left -= len(data)
    if left or _read(entry.content, 1, entry, snapshot):
        raise PyggmlError(
            f"{snapshot.origin}: {printable(entry.path)} is cut off, or changed while it was being read",
            "Nothing was imported.",
        )


def _read(content: Readable, size: int, entry: SourceEntry, snapshot: Snapshot) -> bytes:
    try:
        return content.read(size)
    except OSError as error:
        raise PyggmlError(
            f"{snapshot.origin}: cannot read {printable(entry.path)}: {error.strerror or error}",
            "Nothing was imported.",
        ) from error
