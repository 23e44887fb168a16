"""Reads tar and zip archives member by member, strictly: a cut-off or malformed archive is an error."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Self, cast

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.snapshot import EXECUTABLE, FILE, SYMLINK, SourceEntry, printable

_MAX_HEADER_BYTES = 1 << 20
_MAX_LINK_BYTES = 1 << 16
_CHUNK = 1 << 20

_READ_ERRORS = (
    OSError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
)


def archive_entries(path: Path, report: Progress = silent) -> Iterator[SourceEntry]:
    """The members of the archive `path` in order; each one's content is valid until the next is requested.

    Args:
        path: a zip file, or a tar file, plain or compressed with gzip, xz or bzip2; recognized by content.
        report: called with the number of bytes read so far.

    Raises:
        PyggmlError: it cannot be read, is not such an archive, is encrypted, or is cut off.
    """
    try:
        with path.open("rb") as file:
            counting = _CountingReader(file, path, report)
            start = file.read(512)
            file.seek(0)
            if start.startswith(b"PK"):
                yield from _zip_entries(file, path, report)
            else:
                yield from _tar_entries(_decompressed(counting, start, path), path)
            size = path.stat().st_size
            report(f"importing {path.name}", size, size)
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PyggmlError:
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno is not None:
        return PyggmlError(f"cannot read {path}: {error.strerror}", "Nothing was imported.")
    reason = str(error) or type(error).__name__
    return PyggmlError(
        f"{path.name}: the archive is damaged or cut off ({reason})",
        "Nothing was imported. Get the archive again.",
    )


class _Content:
    """A member's content; errors while reading it are reported like those of the archive itself."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._stream.read(size)
        except _READ_ERRORS as error:
            raise _unreadable(self._path, error) from error


class _CountingReader(io.RawIOBase):
    """The archive's file; reports how far it has been read."""

    def __init__(self, file: BinaryIO, path: Path, report: Progress) -> None:
        self._file = file
        self._what = f"importing {path.name}"
        self._report = report
        self._total = path.stat().st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._report(self._what, self._file.tell(), self._total)
        return cast(int, count)


def _decompressed(raw: io.RawIOBase, start: bytes, path: Path) -> IO[bytes]:
    file = io.BufferedReader(raw, _CHUNK)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="rb"))
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start[257:262] == b"ustar":
        return file
    raise PyggmlError(
        f"{path.name} is not an archive that pyggml can read",
        "Use zip, or tar (plain or compressed with gz, xz or bz2).",
    )


class _StrictTarInfo(tarfile.TarInfo):
    """`tarfile` treats a cut-off or garbled header as the end of the archive; here it is an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in b"xgLKX" and info.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header is unreasonably large")
        return info

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error) or "a header is cut off") from error


def _tar_entries(stream: IO[bytes], path: Path) -> Iterator[SourceEntry]:
    with tarfile.open(
        fileobj=stream,
        mode="r|",
        bufsize=_CHUNK,
        tarinfo=_StrictTarInfo,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        for info in tar:
            yield _tar_entry(tar, info, path)
            tar.members.clear()  # type: ignore[attr-defined]
    # The rest is padding, but reading it verifies the checksum of the whole file.
    while stream.read(_CHUNK):
        pass


def _tar_entry(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> SourceEntry:
    name = info.name.encode("utf-8", "surrogateescape")
    mode = EXECUTABLE if info.mode & 0o100 else FILE
    if info.isdir():
        return SourceEntry(name)
    if info.issym():
        return SourceEntry(name, SYMLINK, target=info.linkname.encode("utf-8", "surrogateescape"))
    if info.islnk():
        return SourceEntry(name, mode, same_as=info.linkname.encode("utf-8", "surrogateescape"))
    if info.isreg():
        content = tar.extractfile(info)
        assert content is not None  # noqa: S101
        return SourceEntry(name, mode, info.size, content=_Content(content, path))
    kinds = {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a FIFO"}
    return SourceEntry(name, FILE, unsupported=kinds.get(info.type, "a member of unknown type"))


def _zip_entries(file: BinaryIO, path: Path, report: Progress) -> Iterator[SourceEntry]:
    with zipfile.ZipFile(file) as archive:
        done = 0
        total = sum(info.compress_size for info in archive.infolist())
        for info in archive.infolist():
            report(f"importing {path.name}", done, total)
            done += info.compress_size
            with contextlib.ExitStack() as stack:
                yield _zip_entry(archive, info, path, stack)


def _zip_entry(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, stack: contextlib.ExitStack
) -> SourceEntry:
    name = info.orig_filename.encode("utf-8", "surrogateescape")
    if info.flag_bits & 1:
        raise PyggmlError(f"{path.name}: {printable(name)} is encrypted", "Nothing was imported.")
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        if info.file_size > _MAX_LINK_BYTES:
            return SourceEntry(name, SYMLINK, unsupported="an unreasonably long link")
        return SourceEntry(name, SYMLINK, target=archive.read(info))
    if name.endswith(b"/") or kind == stat.S_IFDIR:
        return SourceEntry(name)
    if kind not in (0, stat.S_IFREG):
        return SourceEntry(name, FILE, unsupported="a device or FIFO")
    content = stack.enter_context(archive.open(info))
    return SourceEntry(
        name, EXECUTABLE if mode & 0o100 else FILE, info.file_size, content=_Content(content, path)
    )
