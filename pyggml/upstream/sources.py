"""From a pin's source to an imported commit."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git.runner import Git
from pyggml.project import Project
from pyggml.upstream.importer import import_snapshot
from pyggml.upstream.pins import ArchiveSource, DirectorySource, GitSource, Pin, Pins, SdistSource
from pyggml.upstream.progress import Progress
from pyggml.upstream.snapshot import NotSingleTopError, Snapshot


def import_source(project: Project, pins: Pins, pin: Pin, git: Git, report: Progress) -> None:
    """Import what `pin` names into `git` as one commit behind the pin's tag.

    Raises:
        PyggmlError: the source cannot be had, its checksum is another, or something in it is refused.
    """
    source = pin.source
    message = f"{pins.upstream} {pin.name}\n\n{source_line(pin)}\n"
    if isinstance(source, DirectorySource):
        from pyggml.upstream.folder import folder_entries

        folder = located(project, source.path)
        snapshot = Snapshot(str(folder), exclude=pin.exclude)
        import_snapshot(git, folder_entries(folder, pin.exclude, report), snapshot, message, pin.ref)
    elif isinstance(source, GitSource):
        from pyggml.upstream.gitsource import git_entries

        assert pin.commit is not None  # noqa: S101
        snapshot = Snapshot(source.url, subdir=source.subdir, exclude=pin.exclude)
        scratch = git.git_dir / "incoming.git"
        try:
            entries = git_entries(source.url, pin.commit, scratch, report)
            import_snapshot(git, entries, snapshot, message, pin.ref)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    else:
        _import_archive(_archive(project, source, report), source.subdir, pin, git, message, report)


def source_line(pin: Pin) -> str:
    """The line of an imported commit that says where it is from; the same on every machine."""
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


def located(project: Project, path: str) -> Path:
    """A path out of pins.toml: a relative one starts at the project's root."""
    return project.root / Path(path).expanduser()


def _archive(project: Project, source: SdistSource | ArchiveSource, report: Progress) -> Path:
    from pyggml.upstream.cache import checked

    if isinstance(source, ArchiveSource):
        return checked(located(project, source.path), source.sha256, report)
    from pyggml.upstream.sdist import get_sdist

    return get_sdist(source, report)


def _import_archive(path: Path, subdir: str, pin: Pin, git: Git, message: str, report: Progress) -> None:
    from pyggml.upstream.archives import archive_entries

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
