"""Ladders: many trees of one upstream in a row, oldest first, as a package, a git checkout or the pins have them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError, UsageError
from pyggml.git.runner import GitError, run_outside
from pyggml.upstream.pins import GitSource, Pin, Pins, SdistSource, is_relative_inside
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.releases import list_releases


@dataclass(frozen=True)
class Rung:
    """One tree of a ladder.

    Attributes:
        name: what the ladder calls it: a version, a pin, an abbreviated commit id.
        pin: where the tree comes from. Its name is a digest of that; `tree` is empty unless it is recorded.
            The checksum of an sdist is empty if the index does not say.
        find_folder: the folder of the upstream inside the source is to be found.
    """

    name: str
    pin: Pin
    find_folder: bool = False


@dataclass(frozen=True)
class Ladder:
    """Trees in a row.

    Attributes:
        rungs: oldest first.
        notes: what was left out, and why.
    """

    description: str
    rungs: tuple[Rung, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LadderRequest:
    """A ladder as a user asks for it.

    Attributes:
        what: a package, the path of a git checkout, or names of pins with commas between them.
        first, last: versions, for a package.
        commits: `A..B`, for a git checkout.
        folder: of the upstream inside every source; None to find it in sdists.
    """

    what: str
    first: str | None = None
    last: str | None = None
    commits: str | None = None
    folder: str | None = None


def find_ladder(
    pins: Pins, request: LadderRequest, exclude: tuple[str, ...], report: Progress = silent
) -> Ladder:
    """The ladder that `request` names; of the network, only a package's list of releases is asked for.

    Args:
        exclude: paths left out of every tree.

    Raises:
        UsageError: the request contradicts itself, or names nothing.
        PyggmlError: the package or the checkout cannot be read.
    """
    if request.folder is not None and not is_relative_inside(request.folder):
        raise UsageError(
            f"{request.folder!r} is not a relative path without '..'",
            "Give --subdir relative to the source's root.",
        )
    if request.commits is not None:
        _refuse_versions(request, "a range of commits")
        return _git_ladder(request, exclude)
    names = request.what.split(",")
    if {pin.name for pin in pins.pins}.issuperset(names):
        _refuse_versions(request, "pins")
        rungs = tuple(Rung(name, pins.get(name)) for name in dict.fromkeys(names))
        return Ladder(f"pins {', '.join(rung.name for rung in rungs)}", rungs)
    if "/" in request.what or "," in request.what or request.what in (".", ".."):
        kind = "a git checkout needs --range A..B" if "," not in request.what else "these are not all pins"
        raise UsageError(
            f"{request.what}: {kind}",
            "A ladder is a package's name, PATH with --range A..B, or pins of vendor/pins.toml.",
        )
    return _package_ladder(request, exclude, report)


def _refuse_versions(request: LadderRequest, kind: str) -> None:
    if request.first is not None or request.last is not None:
        raise UsageError(
            f"--from and --to are versions of a package, but the ladder is {kind}",
            "Leave them out, or give a package as --ladder.",
        )


def _package_ladder(request: LadderRequest, exclude: tuple[str, ...], report: Progress) -> Ladder:
    found = list_releases(request.what, request.first, request.last, report)
    rungs = []
    for release in found.releases:
        source = SdistSource(
            request.what, release.version, release.file, release.sha256, request.folder or ""
        )
        pin = keyed(Pin("", None, "", exclude, source))
        rungs.append(Rung(release.version, pin, request.folder is None))
    notes = [
        f"left out, {why}: {', '.join(versions)}"
        for why, versions in (("yanked", found.yanked), ("without an sdist", found.without_sdist))
        if versions
    ]
    return Ladder(f"{len(rungs)} releases of {request.what}", tuple(rungs), tuple(notes))


def _git_ladder(request: LadderRequest, exclude: tuple[str, ...]) -> Ladder:
    path = Path(request.what).expanduser().absolute()
    commits = request.commits or ""
    first, dots, last = commits.partition("..")
    if not first or not dots or not last or commits.startswith("-") or last.startswith((".", "-")):
        raise UsageError(f"--range {commits!r} is not a range of commits", "Write it as A..B.")
    where = ("-C", str(path))
    try:
        ends = [
            run_outside(*where, "rev-parse", "--verify", "--end-of-options", f"{end}^{{commit}}")
            for end in (first, last)
        ]
        begin, end = (out.decode().strip() for out in ends)
        out = run_outside(*where, "rev-list", "--first-parent", "--reverse", f"{begin}..{end}")
    except GitError as error:
        raise PyggmlError(
            f"cannot read {commits} in {path}: {error.message}",
            "Give --ladder the path of a git checkout, and --range two of its commits, A..B.",
        ) from error
    ids = [begin, *out.decode().split()]
    if len(ids) == 1:
        raise UsageError(f"no commit lies in {commits}", "Write the older commit first: OLD..NEW.")
    source = GitSource(str(path), request.folder or "")
    rungs = tuple(Rung(one[:12], keyed(Pin("", one, "", exclude, source))) for one in ids)
    return Ladder(f"{len(rungs)} commits of {path.name}", rungs)


def keyed(pin: Pin) -> Pin:
    """The pin with a digest of its source for a name, so that the same tree is kept once."""
    source = pin.source
    where = source.sha256 if isinstance(source, SdistSource) else pin.commit or ""
    content = repr((source.kind, where, getattr(source, "subdir", ""), pin.exclude))
    return replace(pin, name=hashlib.sha256(content.encode()).hexdigest()[:40])


def best_folder(files: Sequence[str], known: frozenset[str]) -> str | None:
    """The folder among `files` that holds most of the paths `known`; None if none holds a quarter of them.

    Args:
        files: paths in the source.
        known: paths that the upstream has at its root.

    Raises:
        PyggmlError: several folders hold the same number of them.
    """
    hits: dict[str, int] = {}
    for file in files:
        parts = file.split("/")
        for depth in range(len(parts)):
            if "/".join(parts[depth:]) in known:
                folder = "/".join(parts[:depth])
                hits[folder] = hits.get(folder, 0) + 1
    most = max(hits.values(), default=0)
    if most * 4 < len(known) or not most:
        return None
    best = sorted(folder for folder, count in hits.items() if count == most)
    if len(best) > 1:
        raise PyggmlError(
            f"several folders look like the upstream: {', '.join(best[:3])}", "Choose one with --subdir."
        )
    return best[0]
