"""Which host compilers a toolkit's nvcc takes: its own header says so and would stop every single file."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from os import devnull
from pathlib import Path

from pyggml.builder.tool_environment import tool_environment
from pyggml.errors import PyggmlError


@dataclass(frozen=True)
class Limits:
    """The newest major versions, and the oldest clang; None where the header sets none."""

    gcc_newest: int | None = None
    clang_newest: int | None = None
    clang_oldest: int | None = None


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler by what it defines; `family` is `gcc` or `clang`, major 0 where not known."""

    path: Path
    family: str
    major: int


def read_limits(header: str) -> Limits:
    """The limits in the text of `crt/host_config.h`: `#if __GNUC__ > 15`, `(__clang_major__ >= 21)`."""
    gcc = re.search(r"^\s*#\s*if\s+__GNUC__\s*(>=?)\s*(\d+)", header, re.MULTILINE)
    general = re.sub(r"^.*__GRCO_CLANG_COMPILER__.*$", "", header, flags=re.MULTILINE)
    newest = re.search(r"__clang_major__\s*(>=?)\s*(\d+)", general)
    oldest = re.search(r"__clang_major__\s*<\s*(\d+)", general)
    return Limits(_last_allowed(gcc), _last_allowed(newest), int(oldest[1]) if oldest else None)


def identify(compiler: Path) -> HostCompiler:
    """Ask a compiler for its predefined macros."""
    try:
        done = subprocess.run(
            [compiler, "-dM", "-E", "-x", "c++", devnull],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            env=tool_environment(),
            check=False,
        )
        text = done.stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    macros = dict(re.findall(r"^#define (__GNUC__|__clang_major__) (\d+)$", text, re.MULTILINE))
    family = "clang" if "__clang_major__" in macros else "gcc"
    major = macros.get("__clang_major__") or macros.get("__GNUC__") or "0"
    return HostCompiler(compiler, family, int(major))


def accepted(compiler: HostCompiler, limits: Limits) -> bool:
    """Whether nvcc takes the compiler; one that does not say its version is given the benefit of the doubt."""
    if compiler.major == 0:
        return True
    if compiler.family == "clang":
        newest, oldest = limits.clang_newest, limits.clang_oldest
        return (newest is None or compiler.major <= newest) and (oldest is None or compiler.major >= oldest)
    return limits.gcc_newest is None or compiler.major <= limits.gcc_newest


def choose_host(asked: Path, limits: Limits, version: str, path: str) -> HostCompiler:
    """The compiler for host code: `asked`, or the newest g++ on PATH that nvcc takes.

    Args:
        asked: the build's C++ compiler.
        version: of the toolkit, for the message.
        path: the directories to look in, as PATH.

    Raises:
        PyggmlError: nvcc takes none of them.
    """
    first = identify(asked)
    if accepted(first, limits):
        return first
    newest = limits.gcc_newest or 0
    for major in range(newest, max(newest - 6, 4), -1):
        found = shutil.which(f"g++-{major}", path=path)
        if found is not None and accepted(other := identify(Path(found).absolute()), limits):
            return other
    range_text = f"gcc up to {newest}" if first.family == "gcc" else _clang_range(limits)
    raise PyggmlError(
        f"nvcc {version} refuses {asked.name} ({first.family} {first.major}) as host compiler: "
        f"it takes {range_text}",
        f"Install one (Debian: apt install g++-{newest}); it is found on PATH, or set CUDAHOSTCXX to it."
        if newest
        else "Set CUDAHOSTCXX to another compiler.",
    )


def _clang_range(limits: Limits) -> str:
    return f"clang {limits.clang_oldest or 1} to {limits.clang_newest}, or gcc up to {limits.gcc_newest}"


def _last_allowed(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    return int(found[2]) - (1 if found[1] == ">=" else 0)
