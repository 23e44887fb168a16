"""A driver library to link against where there is no driver: every name of `cuda.h`, none of which works.

The programs load the real libcuda.so.1; the stub has its SONAME and lies where only the linker looks.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from pyggml.builder.tool_environment import tool_environment
from pyggml.errors import PyggmlError

STUB_ERROR = 34
"""`CUDA_ERROR_STUB_LIBRARY`, which NVIDIA's own stub answers as well."""

_DECLARED = re.compile(r"^\s*(?:extern\s+)?CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(", re.MULTILINE)
_RENAMED = re.compile(
    r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_PT\w+\(\s*)?(cu[A-Z]\w*)\s*\)?\s*$", re.MULTILINE
)


def driver_functions(header: str) -> tuple[str, ...]:
    """The functions that the text of a `cuda.h` declares, and those that its macros turn them into."""
    return tuple(sorted({*_DECLARED.findall(header), *_RENAMED.findall(header)}))


def make_stub(header: Path, library: Path, compiler: Path) -> None:
    """Compile the stub.

    Args:
        header: the toolkit's cuda.h.
        library: the file to make.
        compiler: a C compiler.

    Raises:
        PyggmlError: the header declares nothing, or the compiler fails.
    """
    names = driver_functions(header.read_text("utf-8", "replace"))
    if not names:
        raise PyggmlError(f"{header} declares no function of the driver", "Reinstall the toolkit.")
    lines = [f"int {name}(void) {{ return {STUB_ERROR}; }}" for name in names]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        source = Path(scratch) / "libcuda.c"
        source.write_text("\n".join(lines) + "\n", "utf-8")
        command = [str(compiler), "-shared", "-fPIC", "-O0", "-w", "-Wl,-soname,libcuda.so.1"]
        done = subprocess.run(
            [*command, str(source), "-o", str(library)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=tool_environment(),
            check=False,
        )
    if done.returncode != 0:
        told = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise PyggmlError(f"the stub of the CUDA driver cannot be compiled: {told}")
