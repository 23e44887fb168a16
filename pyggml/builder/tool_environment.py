"""The environment in which CMake, Ninja and compilers run."""

from __future__ import annotations

import os
from collections.abc import Mapping


def tool_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for CMake, Ninja and compilers: messages in English, and no variables of git hooks.

    CMake reads CFLAGS, CMAKE_GENERATOR and others from the environment at the first configuration only, so the
    plan has what matters of them, and they are removed here.
    """
    dropped = (
        *("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CC", "CXX", "SOURCE_DATE_EPOCH", "NINJA_STATUS"),
        *("CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX"),
    )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "CMAKE_")) and name not in dropped
    }
    env.update(LC_ALL="C.UTF-8", LANGUAGE="C", **(extra or {}))
    return env
