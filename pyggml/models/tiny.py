"""Upstream's tiny random models, written by the build's own test-llama-archs and kept with the build."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.record import Build, check_instruction_set
from pyggml.errors import PyggmlError, UsageError
from pyggml.upstream.progress import Progress, silent

PROGRAM = "test-llama-archs"
SEED = 20200101
"""Fixed, so that the same build writes the same bytes; the program's default is a random seed."""

_FORMAT = 1
_LIST = "tiny.json"
_NAME = re.compile(r'\{\s*LLM_ARCH_\w+\s*,\s*"([a-z0-9][\w.-]*)"\s*\}')
_SAVING = re.compile(r"Saving (\S+) model \((\w+)\)")
_LAST_LINES = 4


@dataclass(frozen=True)
class TinyModels:
    """A directory with models, sorted by name.

    Attributes:
        fresh: they were written now; otherwise they were there already.
    """

    directory: Path
    files: tuple[Path, ...]
    fresh: bool


def tiny_models(
    build: Build,
    regex: str | None = None,
    out: Path | None = None,
    place: Path | None = None,
    report: Progress = silent,
) -> TinyModels:
    """Upstream's tiny models, one file `<architecture>-dense.gguf` or `-moe.gguf` for each kind.

    Args:
        regex: which architectures: the name of one, or a regular expression that matches anywhere in the
            names, as in upstream's newer versions of the program; by default all (0.6 GB).
        out: write them here instead of keeping them with the build; other files there are kept.
        place: keep them here; by default in the build's directory `models`.

    Raises:
        UsageError: `regex` is not a regular expression, or no architecture matches.
        PyggmlError: the build lacks the program or is for another processor, the program fails, or the
            directory cannot be written.
    """
    archs = None if regex is None else select_architectures(architectures(build), regex)
    program = build.bin_dir / PROGRAM
    if not program.is_file():
        raise PyggmlError(
            f"the build {build.record.variant} has no {PROGRAM}",
            f"Make it with: pyggml build --target {PROGRAM}",
        )
    if out is None:
        return _keep(build, archs, (place or build.directory / "models").absolute(), report)
    check_instruction_set(build)
    with _locked(out) as lock, _new_directory(out / ".pyggml-tiny.new") as new:
        files = [path.replace(out / path.name) for path in _run(build, archs, new, lock, report)]
    return TinyModels(out, tuple(files), fresh=True)


def _keep(build: Build, archs: tuple[str, ...] | None, place: Path, report: Progress) -> TinyModels:
    directory = place / _directory_name(archs)
    with _locked(place) as lock:
        key = _key(build, archs)
        kept = _kept(directory, key)
        if kept is not None:
            return TinyModels(directory, kept, fresh=False)
        check_instruction_set(build)
        with _new_directory(place / f".{directory.name}.new") as new:
            sizes = {path.name: path.stat().st_size for path in _run(build, archs, new, lock, report)}
            (new / _LIST).write_text(json.dumps({"key": key, "files": sizes}, indent=2) + "\n", "utf-8")
            if directory.exists():
                shutil.rmtree(directory)
            new.rename(directory)
    return TinyModels(directory, tuple(directory / name for name in sizes), fresh=True)


def architectures(build: Build) -> tuple[str, ...]:
    """The names of all architectures in the source of `build`, from its src/llama-arch.cpp.

    Raises:
        PyggmlError: the source no longer exists, or no names are found in it.
    """
    from pyggml.native.preprocess import source_of

    path = source_of(build) / "src" / "llama-arch.cpp"
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise PyggmlError(
            f"cannot read the names of the architectures: {path}: {error.strerror or error}",
            "Leave --arch out, or restore the source of the build: pyggml patch apply",
        ) from error
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    if not names:
        raise PyggmlError(
            f"no names of architectures found in {path}", "Leave --arch out to write the models of all."
        )
    return names


def select_architectures(names: Sequence[str], regex: str) -> tuple[str, ...]:
    """The `names` selected by `regex`: the one that equals it, otherwise all in which it matches.

    Raises:
        UsageError: it is not a regular expression, or nothing matches.
    """
    if regex in names:
        return (regex,)
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(
            f"{regex!r} is not a regular expression: {error}", "Example: --arch 'llama|^qwen3'"
        ) from error
    selected = tuple(name for name in names if pattern.search(name))
    if not selected:
        import difflib

        close = difflib.get_close_matches(regex, names, n=5, cutoff=0.5)
        hint = f"Similar: {', '.join(close)}." if close else f"Architectures: {', '.join(names)}."
        raise UsageError(f"no architecture matches {regex!r}", hint)
    return selected


def _directory_name(archs: tuple[str, ...] | None) -> str:
    if archs is None:
        return "all"
    return archs[0] if len(archs) == 1 else hashlib.sha256("\n".join(archs).encode()).hexdigest()[:12]


def _key(build: Build, archs: tuple[str, ...] | None) -> str:
    """Changes with everything that determines the models: the program and llama.cpp's own libraries."""
    digest = hashlib.sha256(json.dumps([_FORMAT, SEED, archs]).encode())
    libraries = sorted({path.resolve() for path in build.bin_dir.glob("lib*.so*")})
    wanted = re.compile(r"lib(llama|llama-common|ggml|ggml-base|ggml-cpu)\.so\b")
    for path in [build.bin_dir / PROGRAM, *(path for path in libraries if wanted.match(path.name))]:
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _kept(directory: Path, key: str) -> tuple[Path, ...] | None:
    """The complete models there, if they were written with this key."""
    try:
        document = json.loads((directory / _LIST).read_bytes())
        if document["key"] != key:
            return None
        sizes = {directory / name: size for name, size in document["files"].items()}
        return tuple(sizes) if all(path.stat().st_size == size for path, size in sizes.items()) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _run(
    build: Build, archs: tuple[str, ...] | None, directory: Path, lock: int, report: Progress
) -> list[Path]:
    from pyggml.builder.tool_environment import tool_environment
    from pyggml.processes import run_lines

    last: list[str] = []
    count = 0

    def read(line: str) -> None:
        nonlocal count
        if line.strip():
            last.append(line.strip())
            del last[:-_LAST_LINES]
        if saving := _SAVING.search(line):
            count += 1
            report(f"writing {saving[1]} ({saving[2]})", count, None)

    environment = tool_environment({"GGML_NO_BACKTRACE": "1"})
    command: list[str | Path] = [build.bin_dir / PROGRAM, "-o", directory, "-s", str(SEED)]
    for arch in ("",) if archs is None else archs:
        more = ("-a", arch) if arch else ()
        # The child holds the lock as well, in case this process is killed while the child is still writing.
        status = run_lines([*command, *more], read, environment, keep_open=(lock,))
        if status != 0:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            raise PyggmlError(
                f"{PROGRAM} failed with {how}" + (f" at {arch}" if arch else ""), "\n".join(last) or None
            )
    files = sorted(directory.glob("*.gguf"))
    if not files:
        which = "any model" if archs is None else f"a model for {', '.join(archs)}"
        raise PyggmlError(
            f"this upstream's {PROGRAM} does not write {which}", "See its function arch_supported."
        )
    for path in files:
        _check(path)
    return files


def _check(path: Path) -> None:
    """The program does not notice a full disk when it closes a file."""
    import gguf

    try:
        end = max((one.data_offset + one.n_bytes for one in gguf.GGUFReader(path).tensors), default=0)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise PyggmlError(f"{path.name} was not written completely: {error}", "Is the disk full?") from error
    if int(end) > path.stat().st_size:
        raise PyggmlError(f"{path.name} was not written completely", "Is the disk full?")


@contextlib.contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """An empty directory; removed at the end unless it was renamed."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Lock a directory, created if necessary, for this process and its child; yields the lock's descriptor."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)
    except OSError as error:
        raise PyggmlError(
            f"cannot write to {directory}: {error.strerror or error}", "Use another directory with --out DIR."
        ) from error
