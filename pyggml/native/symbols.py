"""Which functions a build's shared libraries export."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.native.preprocess import Compiler, first_error, run_compiler

LIBRARIES = ("ggml-base", "ggml", "ggml-cpu", "llama")
"""Names without prefix and suffix; with GGML_BACKEND_DL, ggml-cpu is a plugin that cannot be linked."""

_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


def library_file(name: str) -> str:
    """`libggml-base.so` for `ggml-base`."""
    return f"lib{name}{_SUFFIX}"


def build_libraries(bin_dir: Path) -> tuple[Path, ...]:
    """The libraries in `bin_dir` that can be linked.

    Raises:
        PyggmlError: a library that every build has is missing.
    """
    libraries = []
    for name in LIBRARIES:
        path = bin_dir / library_file(name)
        if path.is_file():
            libraries.append(path)
        elif name != "ggml-cpu":
            raise PyggmlError(
                f"the build has no {path.name} in {bin_dir}",
                "Build the libraries: pyggml build (a build of single targets may not make them)",
            )
    return tuple(libraries)


def exported(compiler: Compiler, libraries: tuple[Path, ...]) -> frozenset[str]:
    """The names that `libraries` export, as `nm` lists them.

    Raises:
        PyggmlError: there is no nm, or it cannot read a library.
    """
    names: set[str] = set()
    nm = _nm(compiler)
    for library in libraries:
        arguments = ["-gU"] if sys.platform == "darwin" else ["-D", "--defined-only"]
        done = run_compiler([nm, *arguments, str(library)], library.parent)
        if done.returncode != 0:
            raise PyggmlError(f"nm cannot read {library}: {first_error(done.stderr)}")
        for line in done.stdout.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in "TWDBRViu":
                name = words[2].partition("@")[0]
                names.add(name.removeprefix("_") if sys.platform == "darwin" else name)
    return frozenset(names)


def _nm(compiler: Compiler) -> str:
    done = run_compiler([str(compiler.program), "-print-prog-name=nm"], Path.cwd())
    named = done.stdout.strip() if done.returncode == 0 else ""
    path = (shutil.which(named) if named else None) or shutil.which("nm")
    if path is None:
        raise PyggmlError(
            "there is no nm beside the compiler or on PATH",
            "It comes with binutils. Debian: apt install binutils",
        )
    return path
