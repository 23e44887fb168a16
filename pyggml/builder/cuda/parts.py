"""What a CUDA toolkit consists of, as far as ggml needs it, and which of that a directory has."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.tool_environment import tool_environment

TIMEOUT_SECONDS = 60
LIBRARY_DIRS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
INCLUDE_DIRS = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
_SYSTEM_LIBRARY_DIRS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_RELEASE = re.compile(r"release \d+\.\d+, V(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class Part:
    """A part of a toolkit: every file of `needs` has to be there, each at one of its alternatives.

    Attributes:
        name: in a sentence, "it has no ...".
        wheel: the wheel of the `cuda` extra that brings it.
        needs: alternatives of paths from the root; those of `include/` are looked for in INCLUDE_DIRS.
        libraries: shared libraries by their name, `cublas` for libcublas.so.
    """

    name: str
    wheel: str
    needs: tuple[tuple[str, ...], ...] = ()
    libraries: tuple[str, ...] = ()


PARTS = (
    Part(
        "compiler driver (nvcc, ptxas, fatbinary, cudafe++, nvlink)",
        "nvidia-cuda-nvcc",
        tuple(
            (f"bin/{name}",) for name in ("nvcc", "nvcc.profile", "ptxas", "fatbinary", "cudafe++", "nvlink")
        ),
    ),
    Part(
        "device code generator (NVVM: cicc, libdevice)",
        "nvidia-nvvm",
        (("nvvm/bin/cicc",), ("nvvm/libdevice/libdevice.10.bc",)),
    ),
    Part("compiler headers (crt/)", "nvidia-cuda-crt", (("include/crt/host_config.h",),)),
    Part(
        "runtime (cuda_runtime.h, cuda.h, libcudart)",
        "nvidia-cuda-runtime",
        (("include/cuda_runtime.h",), ("include/cuda.h",)),
        ("cudart",),
    ),
    Part("CCCL headers (cub)", "nvidia-cuda-cccl", (("include/cccl/cub/cub.cuh", "include/cub/cub.cuh"),)),
    Part("cuBLAS", "nvidia-cublas", (("include/cublas_v2.h",),), ("cublas", "cublasLt")),
)


@dataclass(frozen=True)
class Inspection:
    """A directory looked at as a toolkit.

    Attributes:
        missing: parts of which something is not there.
        raw: nothing is missing, but the links that linking needs are (the wheels' layout).
    """

    root: Path
    missing: tuple[Part, ...]
    raw: bool


def inspect(root: Path, only: Sequence[Part] = PARTS) -> Inspection:
    """Which parts `root` lacks, of all or of `only` these."""
    missing = tuple(part for part in only if not _has(root, part))
    linkable = all(find_library(root, name, exact=True) for part in PARTS for name in part.libraries)
    return Inspection(root, missing, not missing and not (linkable and _driver_stub(root)))


def find_header(root: Path, name: str) -> Path | None:
    """A header of the toolkit by its name below `include/`."""
    places = [root / top for top in INCLUDE_DIRS] + ([Path("/usr/include")] if _of_distribution(root) else [])
    return next((place / name for place in places if (place / name).is_file()), None)


def find_library(root: Path, name: str, *, exact: bool = False) -> Path | None:
    """The file of a shared library; unless `exact`, one with a version after its name will do."""
    for directory in library_dirs(root):
        path = directory / f"lib{name}.so"
        if path.is_file():
            return path
        if not exact and (versioned := sorted(directory.glob(f"lib{name}.so.[0-9]*"))):
            return versioned[0]
    return None


def library_dirs(root: Path) -> list[Path]:
    """Where the toolkit's libraries may lie; a distribution's own toolkit has them among the system's."""
    found = [root / name for name in LIBRARY_DIRS]
    return found + [Path(path) for path in _SYSTEM_LIBRARY_DIRS] if _of_distribution(root) else found


def compiler_version(nvcc: Path) -> str:
    """`13.0.88` of an nvcc; empty when it does not run or does not say."""
    found = _RELEASE.search(output_of([str(nvcc), "--version"]))
    return found[1] if found else ""


def known_numbers(nvcc: Path) -> tuple[int, ...]:
    """The compute capabilities that an nvcc compiles for (`--list-gpu-arch`); empty where it cannot say."""
    return tuple(
        sorted({int(n) for n in re.findall(r"compute_(\d+)\b", output_of([str(nvcc), "--list-gpu-arch"]))})
    )


def toolkit_of(nvcc: Path) -> Path:
    """The root of the toolkit that an nvcc on PATH belongs to; it may be a script that starts another one.

    nvcc prints its settings, TOP among them, before it finds out that there is nothing to compile; CMake
    asks it in the same way (CMakeDetermineCUDACompiler.cmake).
    """
    told = re.search(r"^#\$ TOP=(.+)$", output_of([str(nvcc), "-v", "__pyggml__"]), re.MULTILINE)
    return Path(os.path.normpath(told[1].strip())) if told else nvcc.resolve().parent.parent


def output_of(command: Sequence[str]) -> str:
    """What a program prints, both streams together; empty when it does not start or end."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
            env=tool_environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _of_distribution(root: Path) -> bool:
    return root.is_relative_to("/usr") and not root.is_relative_to("/usr/local")


def _has(root: Path, part: Part) -> bool:
    return all(_any_file(root, paths) for paths in part.needs) and all(
        find_library(root, name) for name in part.libraries
    )


def _any_file(root: Path, paths: Iterable[str]) -> bool:
    for path in paths:
        if path.startswith("include/"):
            if find_header(root, path.removeprefix("include/")) is not None:
                return True
        elif (root / path).is_file():
            return True
    return False


def _driver_stub(root: Path) -> bool:
    # CMake takes the driver's own library as well (FindCUDAToolkit.cmake).
    places = [path / "stubs" for path in library_dirs(root)] + [Path(path) for path in _SYSTEM_LIBRARY_DIRS]
    return any((place / "libcuda.so").is_file() for place in places)
