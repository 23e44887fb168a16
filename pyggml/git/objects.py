"""GitPython for the vendored repository, to walk commits as objects instead of parsing text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyggml.git.runner import Git

if TYPE_CHECKING:
    from git import Repo


def open_repo(git: Git) -> Repo:
    """The repository as a GitPython `Repo`; the caller closes it (`with`).

    GitPython passes its whole environment on to git and can only add to it. So every variable with which a git
    hook could redirect it (`git rev-parse --local-env-vars`) gets a value here.
    """
    from git import Repo

    repo = Repo(git.git_dir)
    directory = git.git_dir.absolute()
    repo.git.update_environment(
        GIT_DIR=str(directory),
        GIT_COMMON_DIR=str(directory),
        GIT_WORK_TREE=str((git.work_tree or directory).absolute()),
        GIT_OBJECT_DIRECTORY=str(directory / "objects"),
        GIT_ALTERNATE_OBJECT_DIRECTORIES="",
        GIT_INDEX_FILE=str(directory / "index"),
        GIT_GRAFT_FILE=os.devnull,
        GIT_SHALLOW_FILE=str(directory / "shallow"),
        GIT_PREFIX="",
        GIT_CONFIG_PARAMETERS="",
        GIT_CONFIG_COUNT="0",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_SYSTEM=os.devnull,
    )
    return repo
