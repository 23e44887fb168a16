"""Trees of a ladder: fetched when they are asked for, kept by hash in a repository of their own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.git.runner import Git, GitError, require_git, run_outside
from pyggml.project import Project
from pyggml.upstream.cache import cached_path
from pyggml.upstream.fast_import import quoted
from pyggml.upstream.import_source import import_source
from pyggml.upstream.ladder import Rung, best_folder, keyed
from pyggml.upstream.package_files import find_sdist, get_sdist
from pyggml.upstream.pins import Pin, Pins, SdistSource
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.store import base_commit, commit_and_tree, repository


class UnusableTreeError(PyggmlError):
    """A rung that has no tree of the upstream: its archive is damaged, refused or without the folder."""


@dataclass(frozen=True)
class LadderTree:
    """The tree of a rung, imported."""

    commit: str
    tree: str


def trees_dir(project: Project) -> Path:
    """Where the trees lie."""
    return project.state_dir / "trees"


class TreeStore:
    """A bare repository beside the vendored one, whose objects it borrows: what a rung shares is not stored again.

    Attributes:
        git: the repository; merges of rungs and patches are written here too.
    """

    def __init__(
        self, project: Project, pins: Pins, known: frozenset[str], report: Progress = silent
    ) -> None:
        """Open the store, or make it.

        Args:
            known: paths at the root of the upstream, to find its folder by.

        Raises:
            PyggmlError: it cannot be written.
        """
        self.project = project
        self.pins = pins
        self.known = known
        self.report = report
        self.git = _open(project, pins)

    def fetch(self, rung: Rung) -> LadderTree:
        """The tree of `rung`, imported if it is not there.

        Raises:
            UnusableTreeError: it has no tree of the upstream.
            PyggmlError: it cannot be obtained now, e.g. because there is no network.
        """
        pin = rung.pin
        if pin.tree:
            commit = base_commit(self.project, self.pins, pin)
            return LadderTree(commit, pin.tree)
        source = pin.source
        fetched_already = False
        if isinstance(source, SdistSource) and not source.sha256:
            fetched_already = True
            sha256 = find_sdist(source.project, source.version, self.report).sha256
            source = replace(source, sha256=sha256)
            pin = keyed(replace(pin, source=source))
        if tree := self._kept(pin.ref):
            return tree
        if isinstance(source, SdistSource):
            archive = cached_path(source.sha256, source.file)
            was_there = archive.is_file() and not fetched_already
            get_sdist(source, self.report)
            subdir = self._find_folder(archive) if rung.find_folder else source.subdir
            self._import(rung, replace(pin, source=replace(source, subdir=subdir)))
            # The tree is kept; an archive that only the ladder needed is not.
            if not was_there:
                shutil.rmtree(archive.parent, ignore_errors=True)
        else:
            self._import(rung, pin)
        tree = self._kept(pin.ref)
        assert tree is not None  # noqa: S101
        return tree

    def _kept(self, ref: str) -> LadderTree | None:
        try:
            kept = commit_and_tree(self.git, ref)
        except GitError:
            # A damaged store: the source is imported again.
            return None
        return LadderTree(*kept) if kept else None

    def _import(self, rung: Rung, pin: Pin) -> None:
        try:
            import_source(self.project, self.pins, pin, self.git, self.report)
        except GitError:
            raise
        except PyggmlError as error:
            raise UnusableTreeError(f"{rung.name}: {error.message}", error.hint) from error

    def _find_folder(self, archive: Path) -> str:
        """The folder of the upstream in an sdist, by the paths that it must have."""
        from pyggml.upstream.archive_entries import archive_entries

        try:
            paths = [
                os.fsdecode(entry.path).partition("/")[2]
                for entry in archive_entries(archive, self.report)
                if entry.mode is not None
            ]
            folder = best_folder(paths, self.known)
        except PyggmlError as error:
            raise UnusableTreeError(error.message, error.hint) from error
        if folder is None:
            raise UnusableTreeError(
                f"{archive.name} has no folder that looks like {self.pins.upstream}",
                "Name the folder with --subdir, if there is one.",
            )
        return folder


def _open(project: Project, pins: Pins) -> Git:
    require_git()
    place = trees_dir(project)
    project.make_state_dir()
    vendored = repository(project, pins)
    git = Git(place)
    if not (place / "HEAD").is_file():
        shutil.rmtree(place, ignore_errors=True)
        beside = place.with_name(f".{place.name}.new")
        shutil.rmtree(beside, ignore_errors=True)
        options = ("--quiet", "--bare", "--template=", "--initial-branch=none", "--object-format=sha1")
        run_outside("init", *options, str(beside))
        Git(beside).run("config", "--local", "gc.auto", "0")
        beside.rename(place)
    # What a killed process left.
    shutil.rmtree(place / "incoming.git", ignore_errors=True)
    for directory in place.glob("pyggml-index-*"):
        shutil.rmtree(directory, ignore_errors=True)
    for unfinished in (place / "objects" / "pack").glob("tmp_*"):
        remove_file(unfinished)
    attributes = vendored.git_dir / "info" / "attributes"
    if attributes.is_file():
        write_atomic(place / "info" / "attributes", attributes.read_bytes())
    objects = bytes((vendored.git_dir / "objects").absolute())
    write_atomic(place / "objects" / "info" / "alternates", quoted(objects) + b"\n")
    return git
