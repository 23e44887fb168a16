"""Load the bindings of one build into this process, after checking everything that can be checked."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.builder.record import Build, check_instruction_set, find_build, read_record
from pyggml.errors import PyggmlError
from pyggml.native.callbacks import Callback, Callbacks
from pyggml.native.extension import stamp, state_file, state_format
from pyggml.native.logs import LineLogger, abort_descriptor, last_words, levels_of, write_all
from pyggml.project import find_project

if TYPE_CHECKING:
    from pyggml.native.c_library import CLibrary

BUILD = "PYGGML_BUILD"
_LAYOUT = re.compile(
    r"^(?P<struct>[^:]+): (?P<what>wrong [a-z ]+?)(?: for field '(?P<field>[^']+)')?"
    r" \(cdef says (?P<python>-?\d+), but C compiler says (?P<c>-?\d+)\)"
)
_AGAIN = "Make the Python side anew: pyggml build"


@dataclass(frozen=True)
class Bindings:
    """The raw level of the build that this process has loaded.

    Attributes:
        ffi, lib: of cffi; every exported function of the six headers is an attribute of `lib`.
        directory: the build's python/ directory.
        extension: the loaded file.
        has_vdev: the virtual devices are linked in.
        callbacks: Python functions as C callbacks.
    """

    ffi: Any
    lib: CLibrary
    build: Build
    directory: Path
    extension: Path
    has_vdev: bool
    callbacks: Callbacks

    def guard(self) -> AbstractContextManager[None]:
        """Raise what a callback raised during the block; see pyggml.native.callbacks."""
        return self.callbacks.guard()

    def guarded(self, function: Any, *arguments: Any) -> Any:
        """`function(*arguments)`; raises what a callback raised in it."""
        return self.callbacks.guarded(function, *arguments)


_lock = threading.RLock()
_loaded: Bindings | None = None
_kept: list[Callback] = []


def load(build: Build | None = None, directory: Path | None = None) -> Bindings:
    """The bindings of `build`; the same ones each time, because a process holds one build only.

    The libraries' logs go to the loggers `pyggml.ggml` and `pyggml.llama` from here on. A failed assertion in a
    plain C function of ggml.h raises AssertionError (see pyggml.native.plain_calls). Any other one writes its
    message and the Python stacks to standard error, or to the descriptor that the environment variable
    PYGGML_ABORT_FD names, before the process dies.

    Args:
        build: by default the active one (see active_build).
        directory: where its Python side lies; by default in the build.

    Raises:
        PyggmlError: there is no finished build, this processor cannot run it, its Python side is missing
            or older than its libraries, a struct is not laid out as declared, or another build is loaded.
    """
    global _loaded
    with _lock:
        if build is None:
            build = _loaded.build if _loaded is not None else active_build()
        directory = (directory or build.directory / "python").resolve()
        if _loaded is not None:
            if _loaded.directory != directory:
                raise PyggmlError(
                    f"this process has loaded the build in {_loaded.build.directory} and cannot load "
                    f"{build.directory} as well",
                    "Use one process for each build.",
                )
            return _loaded
        _check_build(build)
        abort_fd = abort_descriptor()
        state = _read_state(build, directory)
        _check_libraries(build, directory, state)
        _refuse_foreign(build)
        module = _import(build, state["module"], directory / state["file"])
        check_layout(module.ffi, module.lib, state["structs"])
        bindings = Bindings(
            ffi=module.ffi,
            lib=module.lib,
            build=build,
            directory=directory,
            extension=directory / state["file"],
            has_vdev=bool(state["vdev"]),
            callbacks=Callbacks(module.ffi, module.lib),
        )
        _begin(bindings, abort_fd)
        _loaded = bindings
        return bindings


def loaded() -> Bindings | None:
    """The bindings that this process has loaded, if any."""
    return _loaded


def active_build(start: Path | None = None) -> Build:
    """The build to use: PYGGML_BUILD (a build directory, or a variant of the project), else the project's.

    Args:
        start: the directory to look for the project from; by default the working directory.

    Raises:
        PyggmlError: there is none, or it is not finished.
        UsageError: there is no project around `start`.
    """
    start = start or Path.cwd()
    named = os.environ.get(BUILD)
    if not named:
        return find_build(find_project(start))
    directory = Path(named)
    if os.sep not in named and not (directory / "pyggml-build.json").is_file():
        return find_build(find_project(start), variant=named)
    return build_in(directory)


def build_in(directory: Path) -> Build:
    """The finished build in `directory`.

    Raises:
        PyggmlError: there is none, or it is not finished.
    """
    record = read_record(directory)
    if record is None:
        raise PyggmlError(f"there is no build in {directory}", "Make it with: pyggml build")
    build = Build(directory.resolve(), record)
    _check_done(build)
    return build


def check_layout(ffi: Any, lib: CLibrary, structs: Iterable[str]) -> None:
    """Touch every struct and constant: cffi compares it with the headers' the first time it is used.

    Args:
        structs: those whose fields are declared, as C names them. (Asking cffi 2.1 for the fields of an
            opaque one fails an assertion in its C code.)

    Raises:
        PyggmlError: one differs; the message names the struct, the field and both offsets.
    """
    for name in structs:
        try:
            ffi.sizeof(name)
        except ffi.error as error:
            raise PyggmlError(layout_message(str(error)), _AGAIN) from error
    for name in dir(lib):
        try:
            getattr(lib, name)
        except ffi.error as error:
            raise PyggmlError(f"a constant differs from the headers': {error}", _AGAIN) from error


def layout_message(told: str) -> str:
    """cffi's complaint about a struct, saying which number is the declarations' and which the headers'."""
    complaint = _LAYOUT.match(told)
    if complaint is None:
        return f"a struct is not laid out as declared: {told}"
    field = f", field {complaint['field']}" if complaint["field"] else ""
    return (
        f"{complaint['struct']}{field}: {complaint['what']}: {complaint['python']} in the declarations, "
        f"{complaint['c']} in the headers that the library was compiled with"
    )


def _check_done(build: Build) -> None:
    if build.record.state != "done":
        raise PyggmlError(
            f"the build {build.record.variant} is not finished ({build.record.state})",
            f"Finish it with: {build.record.command}",
        )


def _check_build(build: Build) -> None:
    record = read_record(build.directory)
    if record is None:
        raise PyggmlError(f"there is no build in {build.directory}", "Make it with: pyggml build")
    _check_done(Build(build.directory, record))
    check_instruction_set(record)
    for name, library in (("ADDRESS", "libasan"), ("THREAD", "libtsan")):
        wanted = any(record.options.get(f"{part}_SANITIZE_{name}") == "ON" for part in ("LLAMA", "GGML"))
        # The sanitizer ends the process when it does not come first.
        if wanted and not any(library in path.name for path in _mapped()):
            raise PyggmlError(
                f"the build {record.variant} needs {library} in the process from its start",
                f'Start Python with: LD_PRELOAD="$({record.tools.get("cc", "cc")} '
                f'-print-file-name={library}.so)"',
            )


def _read_state(build: Build, directory: Path) -> dict[str, Any]:
    try:
        state = json.loads(state_file(directory).read_bytes())
        if (
            state["format"] == state_format()
            and {"module", "file", "libraries", "structs", "vdev"} <= state.keys()
        ):
            return dict(state)
        why = "is of another version of pyggml"
    except FileNotFoundError:
        why = f"is missing for this Python ({sys.version_info.major}.{sys.version_info.minor})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        why = "cannot be read"
    raise PyggmlError(f"the Python side of the build {build.record.variant} {why}", _AGAIN)


def _check_libraries(build: Build, directory: Path, state: dict[str, Any]) -> None:
    for name, expected in state["libraries"].items():
        path = next((one / name for one in (build.bin_dir, directory) if (one / name).is_file()), None)
        if path is None:
            raise PyggmlError(
                f"the build {build.record.variant} no longer has {name}", "Build it: pyggml build"
            )
        if list(stamp(path)) != list(expected):
            raise PyggmlError(
                f"the Python side of the build {build.record.variant} is older than its {name}", _AGAIN
            )
    if not (directory / state["file"]).is_file():
        raise PyggmlError(f"the build {build.record.variant} no longer has {state['file']}", _AGAIN)


def _mapped() -> set[Path]:
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return set()
    paths = (
        line.split(maxsplit=5)[5] for line in lines if line.count(b"/") and len(line.split(maxsplit=5)) > 5
    )
    return {Path(os.fsdecode(path)) for path in paths if path.startswith(b"/")}


def _refuse_foreign(build: Build) -> None:
    """The dynamic linker takes any library of the same name that is loaded already."""
    ours = build.bin_dir.resolve()
    for path in _mapped():
        if re.match(r"lib(ggml|llama)[-.\w]*\.so", path.name) and path.parent != ours:
            raise PyggmlError(
                f"this process has loaded another {path.name} already ({path})",
                "Do not import other bindings of ggml or llama.cpp in the same process.",
            )


def _import(build: Build, name: str, path: Path) -> Any:
    loader = ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # noqa: S101
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise PyggmlError(
            f"the bindings of {build.record.variant} cannot be loaded: {error}", _AGAIN
        ) from error
    _refuse_foreign(build)
    return module


def _begin(bindings: Bindings, abort_fd: int) -> None:
    ffi, lib = bindings.ffi, bindings.lib

    def on_abort(_message: Any) -> None:
        write_all(abort_fd, last_words(sys._getframe().f_back))

    ffi.def_extern(name="pyggml_on_abort")(on_abort)
    loggers = []
    # llama_log_set sets ggml's as well (src/llama-impl.cpp), so ggml's own comes after it.
    for name, setter in (("pyggml.llama", lib.llama_log_set), ("pyggml.ggml", lib.ggml_log_set)):
        logger = LineLogger(name, levels_of(lib), lib.GGML_LOG_LEVEL_CONT)
        callback = bindings.callbacks.make("log", logger)
        setter(callback.pointer, callback.data)
        _kept.append(callback)
        loggers.append(logger)
    lib.pyggml_python_begins(abort_fd)
    atexit.register(_end, lib, loggers)


def _end(lib: CLibrary, loggers: list[LineLogger]) -> None:
    for logger in loggers:
        logger.flush()
    lib.pyggml_python_ends()
