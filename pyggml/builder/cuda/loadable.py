"""Can the CUDA backend that was linked be loaded where there is a driver?

The linker leaves the undefined symbols of a shared library to whoever loads it, so a backend that is linked
may still be of no use, and without a driver nothing would show it. Here the driver's stub takes the driver's
place: it has every function of cuda.h, and what is then still undefined, or not found, is a defect.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from pyggml.builder.cuda.parts import library_dirs
from pyggml.builder.record import Build
from pyggml.errors import PyggmlError

LIBRARY = "libggml-cuda.so"
SECONDS = 120
_LOADED_FROM = "LD_LIBRARY_PATH"


def driver_stub(root: Path) -> Path | None:
    """The library that stands in for the driver in a toolkit, or in a root assembled over one."""
    places = (directory / "stubs" / "libcuda.so" for directory in library_dirs(root))
    return next((place for place in places if place.is_file()), None)


def load_problem(library: Path, stub: Path | None) -> str:
    """Why a library cannot be loaded, in a line; empty when it can.

    Args:
        stub: what to take for libcuda.so.1; None for the machine's own.
    """
    probe = Path(__file__).with_name("load_probe.py")
    # The build has to find its libraries by itself.
    env = {name: value for name, value in os.environ.items() if name != _LOADED_FROM}
    command = [sys.executable, "-I", str(probe), str(library), *([] if stub is None else [str(stub)])]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
        return str(json.loads(done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2])["problem"])
    except subprocess.TimeoutExpired:
        return f"loading it did not end within {SECONDS} s"
    except (OSError, ValueError, KeyError):
        return "loading it ended the process"


def check_loadable(build: Build, root: Path) -> None:
    """Load the CUDA backend of a finished build, in a process of its own; half a second.

    Args:
        root: the toolkit that it was linked with.

    Raises:
        PyggmlError: a symbol other than the driver's is undefined, or a library is not found.
    """
    library = build.bin_dir / LIBRARY
    if not library.is_file():
        return
    problem = load_problem(library, driver_stub(root))
    if not problem:
        return
    why = "A source of this tree's ggml-cuda is missing" if "undefined symbol" in problem else "It was moved"
    raise PyggmlError(
        f"{LIBRARY} is linked, but it cannot be loaded: {_told(problem)}",
        f"{why}, or the toolkit was changed meanwhile: {build.record.command} --clean",
    )


def _told(problem: str) -> str:
    found = re.search(r"([^\s/]+): undefined symbol: (\w+)", problem)
    return f"{found[1]} needs {found[2]}, which no library has" if found else problem
