"""Compile the declarations of one build into a Python extension linked against its libraries."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.machine import run_path_here
from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.native.callbacks import KINDS, WITH_LOCK, glue_declarations
from pyggml.native.declarations import Declarations
from pyggml.native.plain_calls import plain_functions, rewrite_calls
from pyggml.native.preprocess import (
    INCLUDE_DIRS,
    Compiler,
    first_error,
    include_text,
    run_compiler,
)

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
EXPECTED_SECONDS = 12
_SCRATCH = ".compiling-"
_FLAGS = (
    "-O1",
    "-fPIC",
    "-std=gnu11",
    "-Wno-deprecated-declarations",
    # Each would let a declaration that is not the header's pass.
    "-Werror=incompatible-pointer-types",
    "-Werror=int-conversion",
    "-Werror=implicit-function-declaration",
    "-Werror=implicit-int",
    "-Werror=overflow",
    "-Wincompatible-pointer-types",
    "-Wint-conversion",
)


@dataclass(frozen=True)
class Inputs:
    """What an extension is made from.

    Attributes:
        source: the tree whose headers it includes.
        vdev_dir: where pyggml-vdev.h lies, or None.
        libraries: what it is linked against, in this order.
    """

    compiler: Compiler
    source: Path
    declarations: Declarations
    libraries: tuple[Path, ...]
    vdev_dir: Path | None = None


@dataclass(frozen=True)
class Compiled:
    """A compiled extension; `fresh` says that it was compiled now."""

    path: Path
    key: str
    fresh: bool


def extension_key(inputs: Inputs) -> str:
    """Sixteen hex digits that change whenever the extension would."""
    import cffi

    parts = [
        inputs.declarations.text,
        glue(inputs),
        _glue_source(),
        [str(inputs.compiler.program), inputs.compiler.version, *inputs.compiler.flags, *_FLAGS],
        [library.name for library in inputs.libraries],
        cffi.__version__,
        sorted(plain_functions(inputs.declarations)),
        sys.version,
        SUFFIX,
    ]
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def module_name(key: str) -> str:
    """Differs between builds, so that two of them never share an entry in sys.modules."""
    return f"_pyggml_{key}"


def glue(inputs: Inputs) -> str:
    """Declarations of the trampolines for the callbacks that the tree knows."""
    return glue_declarations(frozenset(name for name, _ in inputs.declarations.typedefs))


def compile_extension(
    inputs: Inputs, directory: Path, say: Callable[[str], None] = lambda text: None
) -> Compiled:
    """Compile the extension into `directory`, unless it is there already. The caller holds the directory.

    Args:
        directory: the build's python/ directory, beside bin/.
        say: told before the compiler starts, which takes about 10 s.

    Raises:
        PyggmlError: the compiler refuses; the first error is in the message, and an earlier extension stays.
    """
    key = extension_key(inputs)
    name = module_name(key)
    target = directory / f"{name}{SUFFIX}"
    if target.is_file():
        return Compiled(target, key, fresh=False)
    include = _python_include()
    say(f"compiling the Python bindings (about {EXPECTED_SECONDS} s)")
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch:
        generated = Path(scratch) / f"{name}.c"
        _generate(inputs, name, generated)
        made = Path(scratch) / target.name
        done = run_compiler(_command(inputs, directory, generated, made, include), directory)
        if done.returncode != 0:
            raise PyggmlError(
                f"compiling the Python bindings failed:\n{first_error(done.stderr)}",
                "The declarations in python/declarations.h do not match the headers of the tree.",
            )
        made.replace(target)
    # The one before stays, for a patch that is changed and changed back.
    others = (old for old in directory.glob(f"_pyggml_*{SUFFIX}") if old != target)
    for old in sorted(others, key=lambda old: old.stat().st_mtime)[:-1]:
        remove_file(old)
    return Compiled(target, key, fresh=True)


def write_state(directory: Path, compiled: Compiled, inputs: Inputs) -> None:
    """Record which extension belongs to which libraries; written last, so that the files are there."""
    document = {
        "format": state_format(),
        "module": module_name(compiled.key),
        "file": compiled.path.name,
        "libraries": {library.name: list(stamp(library)) for library in inputs.libraries},
        "structs": list(inputs.declarations.structs),
        "vdev": inputs.vdev_dir is not None,
    }
    write_atomic(state_file(directory), (json.dumps(document, indent=2) + "\n").encode())


def state_format() -> str:
    """Changes with the glue: an extension of another version of pyggml may lack functions that this one calls."""
    glue_text = _glue_source() + glue_declarations(frozenset(kind.typedef for kind in KINDS))
    return hashlib.sha256(glue_text.encode()).hexdigest()[:16]


def state_file(directory: Path) -> Path:
    """Per interpreter: two Pythons can use one build."""
    return directory / f"extension{SUFFIX}.json"


def stamp(library: Path) -> tuple[int, int]:
    """Size and time of a library; they change when it is linked again."""
    status = library.stat()
    return status.st_size, status.st_mtime_ns


def _generate(inputs: Inputs, name: str, target: Path) -> None:
    import cffi

    ffi = cffi.FFI()
    try:
        ffi.cdef(inputs.declarations.text)
        ffi.cdef(glue(inputs))
        ffi.set_source(name, include_text(inputs.source, inputs.vdev_dir) + _glue_source())
        # cffi says on standard output what it does, and that belongs to the command's result.
        with contextlib.redirect_stdout(io.StringIO()):
            ffi.emit_c_code(str(target))
        target.write_text(
            rewrite_calls(target.read_text("utf-8"), plain_functions(inputs.declarations) | WITH_LOCK),
            "utf-8",
        )
    except (cffi.CDefError, cffi.FFIError) as error:
        raise PyggmlError(f"cffi does not accept the declarations of {inputs.source}: {error}") from error


def _command(inputs: Inputs, directory: Path, generated: Path, made: Path, python: list[str]) -> list[str]:
    mac = sys.platform == "darwin"
    here = run_path_here(platform.system())
    command = [str(inputs.compiler.program), *inputs.compiler.flags, *_FLAGS]
    command += ["-bundle", "-undefined", "dynamic_lookup"] if mac else ["-shared"]
    command += [f"-I{inputs.source / one}" for one in INCLUDE_DIRS]
    command += [f"-I{inputs.vdev_dir}"] if inputs.vdev_dir else []
    command += [*(f"-I{one}" for one in python), str(generated), "-o", str(made)]
    # RPATH goes before LD_LIBRARY_PATH, RUNPATH after it; the build's own libraries are meant.
    command += [] if mac else ["-Wl,--disable-new-dtags", "-Wl,--no-as-needed"]
    command += [str(library) for library in reversed(inputs.libraries)]
    places = {os.path.relpath(library.parent, directory) for library in inputs.libraries}
    return command + [f"-Wl,-rpath,{here}/{place}" for place in sorted(places)]


def _python_include() -> list[str]:
    paths = sysconfig.get_paths()
    include = list(dict.fromkeys(paths[name] for name in ("include", "platinclude") if name in paths))
    if not any((Path(one) / "Python.h").is_file() for one in include):
        raise PyggmlError(
            f"this Python has no headers ({include[0]}/Python.h)",
            "Debian: apt install python3-dev. Fedora: dnf install python3-devel.",
        )
    return include


def _glue_source() -> str:
    return (Path(__file__).parent / "glue.c").read_text("utf-8")
