"""The releases of a package that have an sdist, in the order of their versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyggml.errors import PyggmlError, UsageError
from pyggml.upstream.package_files import Candidate, PackageFinder
from pyggml.upstream.pip_config import PackageSources, package_sources
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    from packaging.version import Version


@dataclass(frozen=True)
class Release:
    """One release that has an sdist.

    Attributes:
        version: as its file names it.
        file: the sdist's name.
        sha256: its checksum; empty if the index does not say.
    """

    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Releases:
    """What a package index has of a project.

    Attributes:
        releases: oldest first.
        yanked, without_sdist: versions that are left out, oldest first.
    """

    releases: tuple[Release, ...]
    yanked: tuple[str, ...] = ()
    without_sdist: tuple[str, ...] = ()


def list_releases(
    project: str,
    first: str | None = None,
    last: str | None = None,
    report: Progress = silent,
    sources: PackageSources | None = None,
) -> Releases:
    """The releases of `project` from version `first` to `last`, both included.

    Files whose names hold no valid version are passed over, as pip does.

    Raises:
        UsageError: `first` or `last` is not a version, or no release lies between them.
        PyggmlError: no source has the project, or there is no network.
    """
    low, high = _version(first), _version(last)
    finder = PackageFinder(project, sources or package_sources(), report)
    sdists: dict[Version, Release] = {}
    others: dict[Version, str] = {}
    yanked: dict[Version, str] = {}
    known = False
    for version, text, kind, candidate in _files(finder, project):
        known = True
        if (low is not None and version < low) or (high is not None and version > high):
            continue
        if candidate.yanked:
            yanked.setdefault(version, text)
        elif kind == "sdist":
            sdists.setdefault(version, Release(text, candidate.file, candidate.sha256 or ""))
        else:
            others.setdefault(version, text)
    if not known:
        why = f": {'; '.join(finder.problems)}" if finder.problems else ""
        hint = "Check the name" if not finder.problems else "Check the network"
        raise PyggmlError(
            f"cannot list the releases of {project}{why}" if why else f"no package source has {project}",
            f"{hint} and pip's configuration (python -m pip config list), then run the command again.",
        )
    if not sdists:
        raise UsageError(
            f"{project} has no release with an sdist" + _between(first, last),
            "Choose other versions, or another package whose sdists carry the whole source.",
        )
    return Releases(
        tuple(sdists[version] for version in sorted(sdists)),
        tuple(yanked[version] for version in sorted(yanked.keys() - sdists.keys())),
        tuple(others[version] for version in sorted(others.keys() - sdists.keys() - yanked.keys())),
    )


def _files(finder: PackageFinder, project: str) -> Iterator[tuple[Version, str, str, Candidate]]:
    import packaging.utils
    import packaging.version
    import pypi_simple

    wanted = packaging.utils.canonicalize_name(project)
    for candidate in finder.find(lambda name: True):
        try:
            name, text, kind = pypi_simple.parse_filename(candidate.file, project)
            if name is None or text is None or packaging.utils.canonicalize_name(name) != wanted:
                continue
            yield packaging.version.Version(text), text, kind, candidate
        except (pypi_simple.UnparsableFilenameError, packaging.version.InvalidVersion):
            continue


def _version(text: str | None) -> Version | None:
    import packaging.version

    try:
        return None if text is None else packaging.version.Version(text)
    except packaging.version.InvalidVersion as error:
        raise UsageError(
            f"{text!r} is not a version of a Python package", "Write it as a release names it, e.g. 1.4.2."
        ) from error


def _between(first: str | None, last: str | None) -> str:
    return (f" from {first}" if first else "") + (f" to {last}" if last else "")
