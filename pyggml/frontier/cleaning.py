"""What frontiers leave in a project, and removing it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.frontier.answers import answers_dir
from pyggml.project import Project
from pyggml.upstream.tree_store import trees_dir


@dataclass(frozen=True)
class KeptFolder:
    """A folder that can be removed; `size` is in bytes."""

    path: Path
    what: str
    size: int


def kept_folders(project: Project) -> tuple[KeptFolder, ...]:
    """The folders that there are: trees, answers, and the private tree with its build."""
    folders = {
        trees_dir(project): "trees of ladders",
        answers_dir(project): "answers",
        project.state_dir / "prove" / "frontier": "private tree and builds",
    }
    return tuple(KeptFolder(path, what, _size(path)) for path, what in folders.items() if path.is_dir())


def remove_folders(folders: Sequence[KeptFolder]) -> None:
    """Remove the folders.

    Raises:
        PyggmlError: one of them cannot be removed.
    """
    for folder in folders:
        try:
            shutil.rmtree(folder.path)
        except OSError as error:
            raise PyggmlError(
                f"cannot remove {folder.path}: {error.strerror or error}",
                "Remove the cause and run the command again; what is left is harmless.",
            ) from error


def _size(directory: Path) -> int:
    return sum(
        path.lstat().st_size for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()
    )
