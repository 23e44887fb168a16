"""Everything about one CUDA build, decided and checked before anything is compiled."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyggml.builder.cuda.archs import ArchChoice, choose_archs
from pyggml.builder.cuda.driver import Driver, read_driver
from pyggml.builder.cuda.host import HostCompiler, choose_host, read_limits
from pyggml.builder.cuda.nccl import Nccl, find_nccl
from pyggml.builder.cuda.options import CudaOptions
from pyggml.builder.cuda.parts import find_header, find_library, known_numbers
from pyggml.builder.cuda.root import assemble
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError
from pyggml.files import write_atomic

ROOT = "toolkit"
NEEDED_BYTES = 3 * 1024 * 1024 * 1024
NEEDED_TEMPORARY_BYTES = 512 * 1024 * 1024

_OVERRIDE = "pyggml-cuda.cmake"
_PLUGIN = "pyggml-cuda-plugin.cpp"


@dataclass(frozen=True)
class CudaSetup:
    """One CUDA build, ready to be planned.

    Attributes:
        host: the compiler for host code.
        flags: CUDAFLAGS.
    """

    options: CudaOptions
    driver: Driver
    toolkit: Toolkit
    archs: ArchChoice
    host: HostCompiler
    nccl: Nccl | None = None
    flags: str = ""

    target: ClassVar[str] = "ggml-cuda"
    bytes_per_job: ClassVar[int] = 2 * 1024 * 1024 * 1024
    """What nvcc and its helpers take at their worst on ggml's kernels; architectures come one after another."""

    def root(self, directory: Path) -> Path:
        """The toolkit for the build in `directory`: itself, or the root of links over it."""
        return directory / ROOT if self.toolkit.raw else self.toolkit.root

    def entries(
        self,
        directory: Path,
        declared: Collection[str],
        launcher: Path,
        *,
        fatal_warnings: bool = False,
    ) -> list[tuple[str, str]]:
        """CMake cache entries.

        Raises:
            UsageError: this upstream has no CUDA backend, or lacks what an option stands for.
        """
        if "GGML_CUDA" not in declared:
            raise UsageError("this upstream has no option GGML_CUDA", "Build it without --cuda.")
        root = self.root(directory)
        entries = [
            ("GGML_CUDA", "ON"),
            ("CUDAToolkit_ROOT", str(root)),
            ("CMAKE_CUDA_COMPILER", str(root / "bin" / "nvcc")),
            ("CMAKE_CUDA_HOST_COMPILER", str(self.host.path)),
            ("CMAKE_CUDA_ARCHITECTURES", self.archs.cmake),
            ("CMAKE_USER_MAKE_RULES_OVERRIDE_CUDA", str(directory / _OVERRIDE)),
            ("PYGGML_CUDA_RPATH", ";".join(self._rpath())),
        ]
        quants, nccl = "GGML_CUDA_FA_ALL_QUANTS", "GGML_CUDA_NCCL"
        if quants in declared:
            entries.append((quants, "OFF" if self.options.minimal else "ON"))
        if nccl in declared:
            entries.append((nccl, "ON" if self.nccl else "OFF"))
        elif self.nccl:
            raise UsageError(f"this upstream has no option {nccl}", "Build it without --nccl.")
        if self.nccl:
            linked = directory / ROOT / "nccl" if self.toolkit.raw else self.nccl.root
            entries.append(("NCCL_ROOT", str(linked)))
        flags = self.flags
        if fatal_warnings and self.host.family == "gcc":
            # GCC 12 believes that a vector of two elements grows by insert() past its end (GCC bug 88443);
            # the warning stands in its own headers.
            flags = f"{flags} -Xcompiler=-Wno-error=stringop-overflow".strip()
        if flags:
            entries.append(("CMAKE_CUDA_FLAGS", flags))
        entries.append(("CMAKE_CUDA_COMPILER_LAUNCHER", str(launcher)))
        return entries

    def _rpath(self) -> list[str]:
        """Where libggml-cuda.so finds the runtime, cuBLAS and NCCL; the root of links by relative paths."""
        if self.toolkit.raw:
            return [f"$ORIGIN/../{ROOT}/{name}" for name in ("lib", *(["nccl/lib"] if self.nccl else []))]
        found = [find_library(self.toolkit.root, name) for name in ("cudart", "cublas")]
        found += [find_library(self.nccl.root, "nccl")] if self.nccl else []
        return list(dict.fromkeys(str(library.parent) for library in found if library is not None))

    def record(self, directory: Path) -> tuple[tuple[str, str], ...]:
        """What the build's record says about CUDA, in the order of importance."""
        toolkit = self.toolkit
        rows = {
            "cuda_version": toolkit.version,
            "cuda_toolkit": str(toolkit.root),
            "cuda_kind": toolkit.kind,
            "cuda_rejected": "; ".join(f"{root}: {why}" for root, why in toolkit.rejected),
            "cuda_wheels": " ".join(f"{name}=={version}" for name, version in toolkit.wheels.items()),
            "cuda_architectures": self.archs.cmake,
            "cuda_architectures_reason": self.archs.reason,
            "cuda_host": f"{self.host.path} ({self.host.family} {self.host.major})",
            "cuda_nccl": "" if self.nccl is None else f"{self.nccl.version} in {self.nccl.root}",
            "cuda_driver": self.driver.describe(),
            "nvcc": str(self.root(directory) / "bin" / "nvcc"),
        }
        return tuple(rows.items())

    def explain(self) -> list[str]:
        """The choice and its reasons, a line each."""
        toolkit = self.toolkit
        origin = {
            "system": f"installed in {toolkit.root}",
            "wheels": f"from the NVIDIA wheels in {toolkit.root}",
            "given": f"in {toolkit.root}, as asked",
        }[toolkit.kind]
        lines = [f"not {root}: {why}" for root, why in toolkit.rejected]
        lines += [
            f"CUDA {toolkit.version} {origin}{self._completion()}",
            f"CUDA architectures {self.archs.cmake.replace(';', ', ')} ({self.archs.reason})",
            *self.archs.notes,
        ]
        if self.nccl is not None:
            lines.append(f"NCCL {self.nccl.version} in {self.nccl.root}")
        return lines

    def _completion(self) -> str:
        if self.toolkit.completed_by is None:
            return ""
        wheels = ", ".join(f"{name} {version}" for name, version in self.toolkit.wheels.items())
        return f", completed by the wheel{'s' if len(self.toolkit.wheels) > 1 else ''} {wheels}"

    def prepare(self, directory: Path, compiler: Path, say: Callable[[str], None]) -> None:
        """Write what configuring needs into the build's directory.

        Raises:
            PyggmlError: too little space for a build that begins, or the driver stub cannot be compiled.
        """
        if not (directory / "build.ninja").is_file():
            check_space(directory)
        for name, own in ((_OVERRIDE, "backend.cmake"), (_PLUGIN, "plugin.cpp")):
            content = (Path(__file__).parent / own).read_bytes()
            if not (directory / name).is_file() or (directory / name).read_bytes() != content:
                write_atomic(directory / name, content)
        if self.toolkit.raw:
            nccl = None if self.nccl is None else self.nccl.root
            roots = self.toolkit.roots
            if assemble(directory / ROOT, roots[0], self.toolkit.key, compiler, nccl, roots[1:]):
                say(f"assembled a toolkit of links in {directory / ROOT}")


def set_up(
    options: CudaOptions,
    tools: Toolchain,
    say: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    driver: Driver | None = None,
    toolkit: Toolkit | None = None,
) -> CudaSetup:
    """Choose toolkit, architectures and host compiler.

    Args:
        tools: the compilers of the build.
        say: told the choice, and why, in a few lines.
        env: the environment to look in (PATH, CUDA_HOME, CUDAHOSTCXX, CUDAFLAGS), by default the process's.
        driver, toolkit: instead of those that would be found.

    Raises:
        UsageError: --arch or --toolkit names what is not there.
        PyggmlError: no toolkit, a driver too old, a GPU or a host compiler that the toolkit does not support.
    """
    env = os.environ if env is None else env
    driver = read_driver(env) if driver is None else driver
    toolkit = toolkit or choose_toolkit(options.toolkit, driver, for_here=not options.archs, env=env)
    known = known_numbers(toolkit.root / "bin" / "nvcc")
    archs = choose_archs(options.archs, driver, known, toolkit.version)
    host = host_for(toolkit, tools.cxx, env)
    nccl = find_nccl(toolkit) if options.nccl else None
    setup = CudaSetup(options, driver, toolkit, archs, host, nccl, env.get("CUDAFLAGS", "").strip())
    for line in setup.explain():
        say(line)
    return setup


def host_for(toolkit: Toolkit, cxx: Path, env: Mapping[str, str]) -> HostCompiler:
    """The compiler for host code: CUDAHOSTCXX, or the build's, or another one on PATH that nvcc takes.

    Raises:
        PyggmlError: there is none.
    """
    headers = (find_header(root, "crt/host_config.h") for root in toolkit.roots)
    header = next(filter(None, headers), None)
    limits = read_limits(header.read_text("utf-8", "replace") if header is not None else "")
    path = env.get("PATH", "")
    asked = shutil.which(env["CUDAHOSTCXX"], path=path) if env.get("CUDAHOSTCXX") else str(cxx)
    if asked is None:
        raise PyggmlError(
            f"CUDAHOSTCXX is set to {env['CUDAHOSTCXX']!r}, and there is no such program",
            "Set it to a C++ compiler, or unset it.",
        )
    return choose_host(Path(asked).absolute(), limits, toolkit.version, path)


def check_space(directory: Path, temporary: Path | None = None) -> None:
    """Refuse to begin a build that will not fit.

    Raises:
        PyggmlError: there is too little space for the build, or for nvcc's temporary files.
    """
    for place, needed, what in (
        (directory, NEEDED_BYTES, "a CUDA build needs"),
        (temporary or Path(tempfile.gettempdir()), NEEDED_TEMPORARY_BYTES, "nvcc's temporary files need"),
    ):
        free = shutil.disk_usage(place).free
        if free < needed:
            raise PyggmlError(
                f"{free / 2**30:.1f} GiB free in {place}; {what} about {needed / 2**30:.1f} GiB",
                "Make room there"
                + ("." if what.startswith("a ") else ", or set TMPDIR to another directory."),
            )
