"""The cache of downloaded archives: `sources/<sha256>/<file>` in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress, silent

_CHUNK = 1 << 20


def cache_dir() -> Path:
    """The user's cache directory for pyggml; the environment variable PYGGML_CACHE_DIR overrides it."""
    override = os.environ.get("PYGGML_CACHE_DIR")
    if override:
        return Path(override).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("pyggml"))


def cached_path(sha256: str, file: str) -> Path:
    """Where the archive with this checksum is, or will be, stored."""
    return cache_dir() / "sources" / sha256 / file


def file_sha256(path: Path, report: Progress = silent) -> str:
    """The SHA-256 of a file, in hex.

    Raises:
        PyggmlError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            done = 0
            while data := file.read(_CHUNK):
                digest.update(data)
                done += len(data)
                report(f"checking {path.name}", done, total)
    except OSError as error:
        raise PyggmlError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def check_sha256(path: Path, sha256: str, report: Progress = silent) -> None:
    """Raise unless the file has this checksum.

    Raises:
        PyggmlError: it cannot be read or has another checksum.
    """
    actual = file_sha256(path, report)
    if actual != sha256:
        raise PyggmlError(
            f"{path} has sha256 {actual}, but vendor/pins.toml records {sha256}",
            "This is not the file that was pinned; nothing was unpacked.",
        )
