"""The Python side of a build: declarations, virtual devices, extension and ABI description, in its directory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyggml.builder.cmake import BuildResult
from pyggml.builder.plan import BuildOptions
from pyggml.builder.progress import Report
from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.files import write_atomic
from pyggml.native.preprocess import compiler_of, missing_headers, source_of
from pyggml.project import Project

DECLARATIONS = "declarations.h"
OMITTED = "omitted.json"
LOCK_PATIENCE_SECONDS = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class PythonSide:
    """What Python needs of a build.

    Attributes:
        directory: the build's python/ directory.
        functions: how many can be called.
        omitted: how many names of the headers cannot be used (listed in omitted.json).
        compiled: whether the extension was compiled just now.
    """

    directory: Path
    extension: Path
    declarations: Path
    abi: Path
    functions: int
    omitted: int
    compiled: bool
    seconds: float


def build_all(
    project: Project, options: BuildOptions, report: Report | None = None, say: Say = lambda text: None
) -> tuple[BuildResult, PythonSide | None]:
    """Build the work tree and its Python side; what is up to date is left alone.

    The Python side is left out (None) when only single targets were asked for; see also make_for.

    Raises:
        PyggmlError: a step failed, or the work tree was changed between the two.
    """
    from pyggml.builder.run import build_project

    result = build_project(project, options, report, say)
    return result, None if options.targets else make_for(project, result, say)


def make_for(project: Project, result: BuildResult, say: Say = lambda text: None) -> PythonSide | None:
    """Make the Python side of a build that has just been made, with the project locked.

    None for an upstream without all of the six headers; after a build that did something, a line says so.

    Raises:
        PyggmlError: see make_python_side; or the work tree was changed since the build.
    """
    from pyggml.builder.source import read_source

    with project.lock("build"):
        source, record = read_source(project), result.build.record
        if source.head != record.head:
            raise PyggmlError("the work tree was changed during the build", "Run it again: pyggml build")
        missing = missing_headers(source.path)
        if missing:
            if result.steps:
                say(f"no Python bindings: this upstream has no {', '.join(missing)}")
            return None
        return make_python_side(result.build, source.path, say=say)


def make_python_side(
    build: Build,
    source: Path | None = None,
    directory: Path | None = None,
    say: Say = lambda text: None,
    *,
    virtual_devices: bool = True,
) -> PythonSide:
    """Bring the Python side of a finished build up to date; takes 1 s if it already is.

    Args:
        source: the tree that was built; by default the one that CMake was configured with.
        directory: where it goes; by default the build's python/.
        say: called with a line for what takes long.
        virtual_devices: compile them and declare their functions (`lib.pyggml_vdev_...`) as well.

    Raises:
        PyggmlError: a library or header is missing, or a compiler fails; what was there stays.
    """
    import filelock

    source = source or source_of(build)
    directory = directory or build.directory / "python"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(directory / "python.lock", timeout=LOCK_PATIENCE_SECONDS):
            return _make(build, source, directory, say, virtual_devices)
    except filelock.Timeout as error:
        raise PyggmlError(
            f"another process has been at work in {directory} for {LOCK_PATIENCE_SECONDS:g} s",
            "Wait until it has finished, or stop it, and run the command again.",
        ) from error


def _make(build: Build, source: Path, directory: Path, say: Say, virtual_devices: bool) -> PythonSide:
    from pyggml.native.abi import FILE, describe
    from pyggml.native.declarations import make_declarations
    from pyggml.native.extension import Inputs, compile_extension, write_state
    from pyggml.native.symbols import build_libraries, exported
    from pyggml.native.vdev_library import SOURCES, compile_vdev

    started = time.monotonic()
    compiler = compiler_of(build.record.tools, build.record.options)
    libraries = build_libraries(build.bin_dir)
    vdev_dir = SOURCES if virtual_devices else None
    linked = (*libraries, *([compile_vdev(build, source, directory, say)] if virtual_devices else []))
    declarations = make_declarations(compiler, source, exported(compiler, linked), vdev_dir)
    inputs = Inputs(compiler, source, declarations, linked, vdev_dir)
    compiled = compile_extension(inputs, directory, say)
    _write(directory / DECLARATIONS, declarations.text.encode())
    _write(directory / OMITTED, _json([asdict(one) for one in declarations.omitted]))
    if compiled.fresh or not _is_of(directory / FILE, compiled.key):
        described = describe(declarations, build.record.variant, build.record.pin)
        _write(directory / FILE, _json({"extension": compiled.key, **described}))
    write_state(directory, compiled, inputs)
    return PythonSide(
        directory=directory,
        extension=compiled.path,
        declarations=directory / DECLARATIONS,
        abi=directory / FILE,
        functions=len(declarations.functions),
        omitted=len(declarations.omitted),
        compiled=compiled.fresh,
        seconds=round(time.monotonic() - started, 2),
    )


def _is_of(abi: Path, key: str) -> bool:
    try:
        return bool(json.loads(abi.read_bytes())["extension"] == key)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
