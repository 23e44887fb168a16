"""Everything a command needs to know of a project: pin, repository, series."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.stack.commits import Commit, build_stack
from pyggml.series.stack.series_file import SERIES_FILE, Series, read_series
from pyggml.series.worktree.state_file import FileChange
from pyggml.upstream.pins import Pin, Pins, read_pins
from pyggml.upstream.store import base_commit, repository


@dataclass(frozen=True)
class Workspace:
    """A project on one pin, read once.

    Attributes:
        base: commit id of the pin's snapshot.
        directory: where the patch files lie.
    """

    project: Project
    pins: Pins
    pin: Pin
    git: Git
    base: str
    directory: Path
    series: Series

    @property
    def head(self) -> str:
        """The commit that the work tree is on."""
        return self.git.text("rev-parse", "--verify", "HEAD")

    @property
    def head_tree(self) -> str:
        return self.git.text("rev-parse", "--verify", "HEAD^{tree}")

    def patch_file(self, number: int) -> bytes:
        """The content of the file of patch `number` (from 1)."""
        return (self.directory / self.series.patches[number - 1].file(number)).read_bytes()

    def digest(self) -> str:
        """Of all files of the series: another digest means that one of them has changed."""
        paths = [*self.directory.glob("*.patch"), self.directory / SERIES_FILE]
        return files_digest({path.name: path.read_bytes() for path in paths if path.is_file()})

    def stack(self, upto: int | None = None) -> list[Commit]:
        """The commits that the patch files make: of the first `upto` patches, by default of all.

        Raises:
            PyggmlError: a file does not apply, or its result is not the tree that the series records.
        """
        return build_stack(self.git, self.directory, self.series, self.base, upto)

    def series_changes(self, new: Mapping[str, bytes]) -> tuple[FileChange, ...]:
        """The changes that make `new` (file name to content) the whole series on disk.

        Only patch files and `series.toml` count; files that stay the same are left alone.
        """
        relative = self.directory.relative_to(self.project.root).as_posix()
        paths = [*self.directory.glob("*.patch"), *self.directory.glob(SERIES_FILE)]
        old = {path.name: path.read_bytes() for path in paths}
        names = sorted(old.keys() | new.keys(), key=lambda name: (name == SERIES_FILE, name))
        return tuple(
            FileChange(f"{relative}/{name}", old.get(name), new.get(name))
            for name in names
            if old.get(name) != new.get(name)
        )


def files_digest(files: Mapping[str, bytes]) -> str:
    """As `Workspace.digest`, of the files of a series that need not be on disk."""
    content = [(name, files[name]) for name in sorted(files, key=lambda name: (name == SERIES_FILE, name))]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def open_workspace(
    project: Project, pin_name: str | None = None, patches_dir: Path | None = None
) -> Workspace:
    """Read pins and series and find the vendored repository.

    Args:
        patches_dir: where the series of all pins lie; the project's own directory by default.

    Raises:
        PyggmlError: the pin is unknown or not fetched, or the series is inconsistent.
    """
    return _open(project, pin_name, patches_dir, True)


def open_bare(project: Project, pin_name: str | None) -> Workspace:
    """A workspace with an empty series, whatever lies in the series' directory.

    Raises:
        PyggmlError: the pin is unknown or not fetched.
    """
    return _open(project, pin_name, None, False)


def _open(project: Project, pin_name: str | None, patches_dir: Path | None, reading: bool) -> Workspace:
    pins = read_pins(project)
    pin = pins.get(pin_name)
    git = repository(project, pins)
    base = base_commit(project, pins, pin)
    directory = (patches_dir or project.patches_dir) / pin.name
    series = read_series(directory, pin.name, pin.tree) if reading else Series(pin.name, pin.tree, ())
    return Workspace(project, pins, pin, git, base, directory, series)
