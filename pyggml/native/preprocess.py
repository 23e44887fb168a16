"""The C headers of a source tree as the build's own compiler reads them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.processes import run

HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-backend-impl.h", "gguf.h", "llama.h")
CPU_HEADER = "ggml-cpu.h"
VDEV_HEADER = "pyggml-vdev.h"
INCLUDE_DIRS = ("ggml/include", "include", "ggml/src")

_MARKER = re.compile(r'^# \d+ "((?:[^"\\]|\\.)*)"')
_DEFINE = re.compile(r"^#define ([A-Za-z_]\w*) (.+)$")
_EXPANDED = re.compile(r"^pyggml_macro_(\d+) (.*)$")


@dataclass(frozen=True)
class Compiler:
    """The C compiler of a build; `flags` may define macros that change structs."""

    program: Path
    flags: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class Line:
    """A line of preprocessed text and the header it comes from."""

    header: str
    text: str


@dataclass(frozen=True)
class Preprocessed:
    """What the compiler sees.

    Attributes:
        lines: the declarations, without system headers and directives.
        macros: macros without parameters to their expansion, in the order of definition.
    """

    lines: tuple[Line, ...]
    macros: Mapping[str, str]


def source_of(build: Build) -> Path:
    """The tree that CMake was configured with, from its cache.

    Raises:
        PyggmlError: there is no cache, or it does not name the tree.
    """
    try:
        cache = (build.directory / "CMakeCache.txt").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        cache = ""
    for line in cache.splitlines():
        if line.startswith("CMAKE_HOME_DIRECTORY:INTERNAL="):
            return Path(line.partition("=")[2])
    raise PyggmlError(
        f"{build.directory} does not say which tree it was built from", "Build it: pyggml build"
    )


def compiler_environment() -> dict[str, str]:
    """The environment for a compiler: English messages, and no variables that add include directories."""
    dropped = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "SOURCE_DATE_EPOCH", "GCC_COMPARE_DEBUG")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env.update(LC_ALL="C.UTF-8", LANGUAGE="C")
    return env


def include_text(source: Path, vdev_dir: Path | None) -> str:
    """The `#include` lines of the headers that `source` has.

    Raises:
        PyggmlError: one of the six headers is missing.
    """
    missing = missing_headers(source)
    if missing:
        raise PyggmlError(
            f"{source} has no {missing[0]} in {', '.join(INCLUDE_DIRS)}",
            "The Python side is made from the headers of the tree that was built. Bring it back: pyggml patch apply",
        )
    names = [*HEADERS, *([CPU_HEADER] if _exists(source, CPU_HEADER) else [])]
    if vdev_dir is not None:
        names.append(VDEV_HEADER)
    return "".join(f'#include "{name}"\n' for name in names)


def missing_headers(source: Path) -> tuple[str, ...]:
    """The ones of the six headers that a tree does not have; old upstreams lack some."""
    return tuple(name for name in HEADERS if not _exists(source, name))


def preprocess(compiler: Compiler, source: Path, vdev_dir: Path | None = None) -> Preprocessed:
    """Run `cc -E` over the headers.

    Attributes that are not part of a type are removed, because a C parser does not know them.

    Args:
        source: the tree; the compiler runs in it, so that the result has no absolute paths.
        vdev_dir: the directory of pyggml-vdev.h, or None to leave it out.

    Raises:
        PyggmlError: a header is missing, or the compiler fails.
    """
    includes = include_text(source, vdev_dir)
    own = {os.path.relpath(vdev_dir / VDEV_HEADER, source): VDEV_HEADER} if vdev_dir else {}
    directories = [*INCLUDE_DIRS, *([os.path.relpath(vdev_dir, source)] if vdev_dir else [])]
    lines: list[Line] = []
    defined: dict[str, None] = {}
    for header, text in _marked(_run(compiler, source, directories, includes, "-dD")):
        name = own.get(header) or _in_tree(header)
        if name is None:
            continue
        if text.startswith("#"):
            define = _DEFINE.match(text)
            if define:
                defined[define[1]] = None
            elif text.startswith("#undef "):
                defined.pop(text[7:].strip(), None)
        elif text.strip():
            lines.append(Line(name, text))
    asked = "".join(f"pyggml_macro_{number} {name}\n" for number, name in enumerate(defined))
    names = list(defined)
    macros = {}
    for header, text in _marked(_run(compiler, source, directories, includes + asked)):
        expanded = _EXPANDED.match(text) if header == "<stdin>" else None
        if expanded:
            macros[names[int(expanded[1])]] = expanded[2].strip()
    return Preprocessed(tuple(lines), macros)


def first_error(stderr: str) -> str:
    """The first error of a compiler or linker, in one or two lines."""
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
    pattern = re.compile(r"\b(fatal error|error|undefined reference|cannot find)\b")
    at = next((number for number, line in enumerate(lines) if pattern.search(line)), None)
    return "\n".join(lines[:1] if at is None else lines[at : at + 2]) or "it failed without a message"


def run_compiler(command: Sequence[str], cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Start a compiler and wait for it.

    Raises:
        PyggmlError: it cannot be started.
    """
    try:
        finished = run(
            command, env=compiler_environment(), cwd=cwd, text=text.encode("utf-8", "surrogateescape")
        )
    except PyggmlError as error:
        raise PyggmlError(
            f"cannot start the build's compiler{error.message.removeprefix('cannot start')}",
            "Build again with a compiler that is there: pyggml build --clean",
        ) from error
    assert finished.status is not None  # noqa: S101 -- it has no time limit
    output, errors = (part.decode("utf-8", "surrogateescape") for part in (finished.output, finished.errors))
    return subprocess.CompletedProcess(command, finished.status, output, errors)


def compiler_of(tools: Mapping[str, str], options: Mapping[str, str]) -> Compiler:
    """The C compiler of a build's record, with the user's flags."""
    flags = tuple(shlex.split(options.get("CMAKE_C_FLAGS", "")))
    return Compiler(Path(tools["cc"]), flags, tools.get("cc_version", ""))


def _run(compiler: Compiler, source: Path, directories: list[str], text: str, *more: str) -> str:
    command = [str(compiler.program), *compiler.flags, "-E", *more, "-x", "c", "-std=gnu11"]
    command += ["-D__attribute__(x)=", *(f"-I{directory}" for directory in directories), "-"]
    done = run_compiler(command, source, text)
    if done.returncode != 0:
        raise PyggmlError(f"the headers of {source} cannot be read:\n{first_error(done.stderr)}")
    return done.stdout


def _marked(text: str) -> Iterator[tuple[str, str]]:
    header = ""
    for line in text.splitlines():
        marker = _MARKER.match(line)
        if marker:
            header = re.sub(r"\\(.)", r"\1", marker[1])
        else:
            yield header, line


def _in_tree(header: str) -> str | None:
    directory, _, name = header.rpartition("/")
    return name if directory in INCLUDE_DIRS else None


def _exists(source: Path, name: str) -> bool:
    return any((source / directory / name).is_file() for directory in INCLUDE_DIRS)
