"""From a source tree, a request and a machine to one frozen plan; nothing here starts a process."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyggml.builder.cuda.options import CudaOptions
from pyggml.builder.features import choose
from pyggml.builder.launcher import FILE as LAUNCHER
from pyggml.builder.machine import BYTES_PER_JOB, Machine, default_jobs, run_path_here
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError

if TYPE_CHECKING:
    from pyggml.builder.cuda.setup import CudaSetup

DEFAULT_TARGETS = (
    "ggml-base",
    "ggml-cpu",
    "ggml",
    "llama",
    "test-alloc",
    "test-llama-archs",
    "llama-bench",
    "llama-perplexity",
    "llama-completion",
    "llama-parallel",
    "llama-batched-bench",
)

SANITIZERS = {"address": "asan", "undefined": "ubsan", "thread": "tsan"}

_FIXED = (
    ("BUILD_SHARED_LIBS", "ON"),
    ("GGML_NATIVE", "OFF"),
    # The build's own launcher is set per language; ggml's hook would wrap every rule, linking included.
    ("GGML_CCACHE", "OFF"),
    ("GGML_METAL", "OFF"),
    ("GGML_BLAS", "OFF"),
    ("LLAMA_BUILD_COMMON", "ON"),
    ("LLAMA_BUILD_TESTS", "ON"),
    ("LLAMA_BUILD_TOOLS", "ON"),
    ("LLAMA_BUILD_EXAMPLES", "ON"),
    ("LLAMA_BUILD_SERVER", "OFF"),
    ("LLAMA_BUILD_APP", "OFF"),
    ("LLAMA_BUILD_UI", "OFF"),
    ("LLAMA_USE_PREBUILT_UI", "OFF"),
    ("LLAMA_BUILD_WEBUI", "OFF"),
    ("LLAMA_CURL", "OFF"),
    ("LLAMA_OPENSSL", "OFF"),
)


PARSERS_TOGETHER = "PYGGML_PARSERS_TOGETHER"
"""The CMake entry for compiling the chat parsers of common as one file (hook.cmake)."""

_UNOPTIMIZED = "common;examples;pocs;tests;tools;vendor"
"""Directories whose code does not compute: half of the compiler's time went into optimising them."""


@dataclass(frozen=True)
class BuildOptions:
    """What the user asked for.

    Attributes:
        targets: CMake targets; empty means the default ones that the tree has.
        jobs: parallel compilers; None means as many as cores and memory allow.
        fatal_warnings: `-Werror`.
        sanitize: sanitizers by the compiler's names (`address`, `undefined`, `thread`).
        variant: the build's directory name; None means one made of the pin and the options.
        clean: drop what an earlier build left.
        cuda: build for CUDA as well.
    """

    targets: tuple[str, ...] = ()
    jobs: int | None = None
    fatal_warnings: bool = False
    sanitize: tuple[str, ...] = ()
    variant: str | None = None
    clean: bool = False
    cuda: CudaOptions | None = None


@dataclass(frozen=True)
class BuildPlan:
    """Everything that decides what comes out of a build.

    Attributes:
        source: the tree with the top `CMakeLists.txt`.
        directory: where the build lies.
        options: CMake cache entries in order, (name, value).
        targets: what to build; `optional_targets` says whether missing ones are left out or an error.
        features: processor features that the code will need.
        cuda: what the record says about CUDA, (name, value); empty without.
        command: what makes this build again.
    """

    variant: str
    pin: str
    source: Path
    directory: Path
    options: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]
    optional_targets: bool
    jobs: int
    arch: str
    features: tuple[str, ...]
    cuda: tuple[tuple[str, str], ...] = ()
    command: str = "pyggml build"

    def cmake_arguments(self, hook: Path | None = None) -> tuple[str, ...]:
        """The arguments after `cmake`; `hook` is a CMake file to include in every project()."""
        arguments = ["-S", str(self.source), "-B", str(self.directory), "-G", "Ninja"]
        arguments += [f"-D{name}={value}" for name, value in self.options]
        if hook is not None:
            arguments.append(f"-DCMAKE_PROJECT_INCLUDE:FILEPATH={hook}")
        return tuple(arguments)

    def fingerprint(self, tools: Toolchain) -> str:
        """Changes with the options, the paths and the compilers; then CMake has to configure again."""
        versions = [tools.cmake_version, tools.cc_version, tools.cxx_version]
        cuda = [value for name, value in self.cuda if name in ("cuda_version", "cuda_wheels")]
        key = [str(self.source), str(self.directory), self.options, versions, *([cuda] if cuda else [])]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()


def declared_options(source: Path) -> frozenset[str]:
    """The names of the cache options in the tree's two main CMake files.

    Upstream renames options (`LLAMA_CURL` became `LLAMA_OPENSSL`); passing one that is not declared is
    at best a warning, so only declared ones are passed.
    """
    names: set[str] = set()
    for file in (source / "CMakeLists.txt", source / "ggml" / "CMakeLists.txt"):
        try:
            text = file.read_text("utf-8", "replace")
        except OSError:
            continue
        names.update(re.findall(r"^\s*option\s*\(\s*(\w+)", text, re.MULTILINE))
        names.update(re.findall(r"^\s*set\s*\(\s*(\w+)[^)]*?\bCACHE\b", text, re.MULTILINE))
    return frozenset(names)


def parse_sanitize(text: str | None) -> tuple[str, ...]:
    """`address,undefined` as names in a fixed order.

    Raises:
        UsageError: an unknown name, or the thread sanitizer with another one.
    """
    asked = [part.strip() for part in (text or "").split(",") if part.strip()]
    for name in asked:
        if name not in SANITIZERS:
            raise UsageError(
                f"unknown sanitizer {name!r}", f"Known: {', '.join(SANITIZERS)} (several joined by commas)."
            )
    if "thread" in asked and "address" in asked:
        raise UsageError("the thread and address sanitizers exclude each other", "Make two builds.")
    return tuple(name for name in SANITIZERS if name in asked)


def variant_name(pin: str, options: BuildOptions) -> str:
    """`<pin>-cpu` or `-cuda` and a suffix for each option that changes the objects, or the name asked for.

    Raises:
        UsageError: the name asked for is no plain directory name.
    """
    if options.variant is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", options.variant):
            raise UsageError(
                f"{options.variant!r} cannot name a build",
                "Use letters, digits, dots, dashes and underscores, e.g. --variant fast-math.",
            )
        return options.variant
    parts = [re.sub(r"[^A-Za-z0-9._+-]", "_", pin), "cpu" if options.cuda is None else "cuda"]
    if options.cuda is not None:
        parts += ["+".join(map(str, options.cuda.archs))] if options.cuda.archs else []
        parts += [name for name in ("nccl", "minimal") if getattr(options.cuda, name)]
    parts += [SANITIZERS[name] for name in options.sanitize]
    if options.fatal_warnings:
        parts.append("werror")
    return "-".join(parts)


def command_line(options: BuildOptions) -> str:
    """The command with these options, to be shown and repeated: `pyggml build --cuda --arch 90`."""
    words = ["pyggml", "build"]
    for target in options.targets:
        words += ["--target", target]
    words += ["--fatal-warnings"] if options.fatal_warnings else []
    words += ["--sanitize", ",".join(options.sanitize)] if options.sanitize else []
    words += ["--variant", options.variant] if options.variant is not None else []
    if options.cuda is not None:
        words += ["--cuda"]
        words += ["--arch", ",".join(map(str, options.cuda.archs))] if options.cuda.archs else []
        words += ["--toolkit", str(options.cuda.toolkit)] if options.cuda.toolkit is not None else []
        words += [f"--{name}" for name in ("nccl", "minimal") if getattr(options.cuda, name)]
    return shlex.join(words)


def make_plan(
    source: Path,
    build_dir: Path,
    pin: str,
    options: BuildOptions,
    machine: Machine,
    tools: Toolchain,
    cuda: CudaSetup | None = None,
) -> BuildPlan:
    """Decide everything about one build.

    Args:
        source: the work tree.
        build_dir: the directory that holds the builds, one directory each.
        pin: the pin that the tree is at; goes into the binaries as their commit, so that switching
            patches recompiles only what they touch.
        cuda: toolkit and architectures, for a build with CUDA.

    Raises:
        PyggmlError: `source` has no CMakeLists.txt.
        UsageError: an option is wrong, or two exclude each other.
    """
    if not (source / "CMakeLists.txt").is_file():
        raise PyggmlError(
            f"nothing to build: {source} has no CMakeLists.txt", "Get it with: pyggml patch apply"
        )
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs} is not a number of jobs", "Use 1 or more.")
    if options.cuda is not None and options.sanitize:
        raise UsageError(
            "--sanitize and --cuda exclude each other: nvcc takes no sanitizer", "Make two builds."
        )
    declared = declared_options(source)
    entries: list[tuple[str, str]] = [("CMAKE_BUILD_TYPE", "Release")]
    entries += [(name, value) for name, value in _FIXED if name in declared]
    # GCC 12 warns inside its own AVX-512 headers (GCC bug 105593), which -Werror would make fatal.
    isa = choose(machine.arch, machine.features, declared, tools.flags, avx512=not options.fatal_warnings)
    entries += isa.options
    switches = [f"SANITIZE_{name.upper()}" for name in options.sanitize]
    if options.fatal_warnings:
        switches.append("FATAL_WARNINGS")
    for switch in switches:
        wanted = [name for name in (f"LLAMA_{switch}", f"GGML_{switch}") if name in declared]
        if not wanted:
            raise UsageError(f"this upstream has no option LLAMA_{switch}", "Build it without.")
        entries += [(name, "ON") for name in wanted]
    if "thread" in options.sanitize and "GGML_OPENMP" in declared:
        # GCC's OpenMP runtime is not instrumented: each of its barriers would look like a race.
        entries.append(("GGML_OPENMP", "OFF"))
    entries += [
        # Upstream asks git for these at configure time, and each new commit would recompile their readers.
        ("LLAMA_BUILD_COMMIT", pin),
        ("LLAMA_BUILD_NUMBER", "0"),
        ("GIT_EXE:STRING", "OFF"),
        # A run path that is to change when installing ends with a separator (cmComputeLinkInformation.cxx,
        # GetRPathString), and the dynamic linker takes the nothing behind it for the current directory.
        ("CMAKE_BUILD_WITH_INSTALL_RPATH", "ON"),
        ("CMAKE_INSTALL_RPATH", run_path_here(machine.system)),
        ("CMAKE_MAKE_PROGRAM", str(tools.ninja)),
        ("CMAKE_C_COMPILER", str(tools.cc)),
        ("CMAKE_CXX_COMPILER", str(tools.cxx)),
    ]
    if tools.cc_flags:
        entries.append(("CMAKE_C_FLAGS", tools.cc_flags))
    if tools.cxx_flags:
        entries.append(("CMAKE_CXX_FLAGS", tools.cxx_flags))
    if tools.link_flags:
        entries += [(f"CMAKE_{kind}_LINKER_FLAGS", tools.link_flags) for kind in ("EXE", "SHARED", "MODULE")]
    variant = variant_name(pin, options)
    directory = build_dir / variant
    launcher = directory / LAUNCHER
    entries += [(f"CMAKE_{language}_COMPILER_LAUNCHER", str(launcher)) for language in ("C", "CXX")]
    # Which warnings there are depends on what the optimiser sees.
    if not options.fatal_warnings:
        entries += [("PYGGML_UNOPTIMIZED", _UNOPTIMIZED), (PARSERS_TOGETHER, "ON")]
    default_targets, bytes_per_job = list(DEFAULT_TARGETS), BYTES_PER_JOB
    if cuda is not None:
        entries += cuda.entries(directory, declared, launcher, fatal_warnings=options.fatal_warnings)
        default_targets.append(cuda.target)
        bytes_per_job = cuda.bytes_per_job
    return BuildPlan(
        variant=variant,
        pin=pin,
        source=source,
        directory=directory,
        options=tuple(entries),
        targets=options.targets or tuple(default_targets),
        optional_targets=not options.targets,
        jobs=options.jobs or default_jobs(machine, bytes_per_job),
        arch=machine.arch,
        features=isa.features,
        cuda=() if cuda is None else cuda.record(directory),
        command=command_line(options),
    )
