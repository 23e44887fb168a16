"""Imports a pin's source, of whatever kind, as a commit."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git.runner import Git
from pyggml.project import Project
from pyggml.upstream.fast_import import import_snapshot
from pyggml.upstream.pins import ArchiveSource, DirectorySource, GitSource, Pin, Pins, SdistSource
from pyggml.upstream.progress import Progress
from pyggml.upstream.snapshot import NotSingleTopError, Snapshot


def import_source(project: Project, pins: Pins, pin: Pin, git: Git, report: Progress) -> None:
    """Import the source of `pin` into `git` as one commit, and point the pin's tag at it.

    Raises:
        PyggmlError: the source cannot be obtained, has another checksum, or contains something refused.
    """
    source = pin.source
    message = f"{pins.upstream} {pin.name}\n\n{source_line(pin)}\n"
    if isinstance(source, DirectorySource):
        from pyggml.upstream.directory_entries import directory_entries

        directory = resolve_path(project, source.path)
        snapshot = Snapshot(str(directory), exclude=pin.exclude)
        import_snapshot(git, directory_entries(directory, pin.exclude, report), snapshot, message, pin.ref)
    elif isinstance(source, GitSource):
        from pyggml.upstream.git_entries import git_entries

        assert pin.commit is not None  # noqa: S101
        snapshot = Snapshot(source.url, subdir=source.subdir, exclude=pin.exclude)
        scratch = git.git_dir / "incoming.git"
        try:
            entries = git_entries(source.url, pin.commit, scratch, report)
            import_snapshot(git, entries, snapshot, message, pin.ref)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    else:
        _import_archive(archive_of(project, source, report), source.subdir, pin, git, message, report)


def source_line(pin: Pin) -> str:
    """The line of an imported commit's message that says where it comes from; the same on every machine."""
    source = pin.source
    match source:
        case SdistSource():
            words = [source.describe(), f"sha256 {source.sha256}"]
        case ArchiveSource():
            words = ["archive", f"sha256 {source.sha256}"]
        case GitSource():
            words = ["git"]
        case DirectorySource():
            words = ["directory"]
    if pin.commit:
        words.append(f"upstream commit {pin.commit}")
    return f"Source: {', '.join(words)}"


def resolve_path(project: Project, path: str) -> Path:
    """A path from pins.toml; a relative one is relative to the project's root."""
    return project.root / Path(path).expanduser()


def archive_of(project: Project, source: SdistSource | ArchiveSource, report: Progress) -> Path:
    """The archive of a source, with the recorded checksum.

    Raises:
        PyggmlError: it cannot be obtained, or has another checksum.
    """
    if isinstance(source, ArchiveSource):
        from pyggml.upstream.cache import check_sha256

        path = resolve_path(project, source.path)
        check_sha256(path, source.sha256, report)
        return path
    from pyggml.upstream.package_files import get_sdist

    return get_sdist(source, report)


def _import_archive(path: Path, subdir: str, pin: Pin, git: Git, message: str, report: Progress) -> None:
    from pyggml.upstream.archive_entries import archive_entries

    def attempt(strip_top: bool) -> None:
        snapshot = Snapshot(path.name, subdir, pin.exclude, strip_top)
        import_snapshot(git, archive_entries(path, report), snapshot, message, pin.ref)

    try:
        attempt(True)
    except NotSingleTopError as error:
        if isinstance(pin.source, SdistSource):
            raise PyggmlError(
                f"{path.name} does not keep everything in one top directory, as an sdist must",
                "Nothing was imported.",
            ) from error
        attempt(False)
