"""A new pin: its source is looked at, imported and written down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError, UsageError
from pyggml.project import Project
from pyggml.upstream.cache import file_sha256
from pyggml.upstream.pins import (
    ArchiveSource,
    DirectorySource,
    GitSource,
    Pin,
    SdistSource,
    Source,
    add_pin,
    is_commit_id,
    is_inner_path,
    read_pins,
    valid_pin_name,
)
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.store import FetchResult, import_pin


@dataclass(frozen=True)
class NewPin:
    """What is to be pinned.

    Attributes:
        name: of the pin.
        source: where it comes from.
        commit: upstream's commit id; a git source needs it.
        exclude: paths to leave out.
        make_default: whether it becomes the default pin.
    """

    name: str
    source: Source
    commit: str | None = None
    exclude: tuple[str, ...] = ()
    make_default: bool = False


def check_new(project: Project, name: str, commit: str | None, exclude: tuple[str, ...], subdir: str) -> None:
    """Refuse what cannot become a pin before anything is downloaded for it.

    Raises:
        PyggmlError: the name is taken, or cannot be a name; a path or the commit id is not one.
    """
    if not valid_pin_name(name):
        raise UsageError(f"{name!r} cannot be a pin's name", "Use letters, digits, '.', '_' and '-'.")
    if any(pin.name == name for pin in read_pins(project).pins):
        raise PyggmlError(
            f"there is already a pin {name} in {project.pins_file}",
            "Choose another name; nothing was changed.",
        )
    for path in (*exclude, *([subdir] if subdir else [])):
        if not is_inner_path(path):
            raise UsageError(
                f"{path!r} is not a relative path without '..'", "Paths start at the source's root."
            )
    if commit is not None and not is_commit_id(commit):
        raise UsageError(f"{commit!r} is not a full commit id", "Give all 40 lowercase hex digits.")


def sdist_source(requirement: str, subdir: str = "", report: Progress = silent) -> SdistSource:
    """Find `PROJECT==VERSION` in the machine's package sources, fetch it and take its checksum.

    Raises:
        UsageError: `requirement` is not of that form.
        PyggmlError: it is not to be had.
    """
    from pyggml.upstream.sdist import find_sdist

    project, found, version = requirement.partition("==")
    if not found or not valid_pin_name(project.strip()) or not version.strip():
        raise UsageError(f"{requirement!r} does not name one sdist", "Write it as llama-cpp-python==0.3.36")
    return replace(find_sdist(project.strip(), version.strip(), report), subdir=subdir)


def archive_source(
    project: Project, path: Path, subdir: str = "", report: Progress = silent
) -> ArchiveSource:
    """Describe an archive on this machine.

    Raises:
        PyggmlError: it cannot be read.
    """
    return ArchiveSource(_recorded(project, path), file_sha256(path, report), subdir)


def directory_source(project: Project, path: Path) -> DirectorySource:
    """Describe a directory on this machine."""
    return DirectorySource(_recorded(project, path))


def git_source(url: str, subdir: str = "") -> GitSource:
    """Describe a git repository; a path on this machine is made absolute.

    Raises:
        UsageError: `url` is none.
    """
    if not url or url.startswith("-"):
        raise UsageError(f"{url!r} is not the URL of a git repository")
    return GitSource(str(Path(url).absolute()) if Path(url).exists() else url, subdir)


def add(project: Project, new: NewPin, report: Progress = silent) -> tuple[Pin, FetchResult]:
    """Import `new` and append it to `vendor/pins.toml`; the caller holds the project's lock.

    The pin is written last: killed before, the same command does it again from the start.

    Raises:
        PyggmlError: as `check_new`, as `pyggml.upstream.store.fetch`, or pins.toml cannot be written.
    """
    subdir = "" if isinstance(new.source, DirectorySource) else new.source.subdir
    check_new(project, new.name, new.commit, new.exclude, subdir)
    if isinstance(new.source, GitSource) and new.commit is None:
        raise UsageError("a git source needs its commit", "Name it with --commit SHA.")
    pin = Pin(new.name, new.commit, "", new.exclude, new.source)
    result = import_pin(project, read_pins(project), pin, report, check=False)
    pin = replace(pin, tree=result.tree)
    add_pin(project, pin, make_default=new.make_default)
    return pin, result


def _recorded(project: Project, path: Path) -> str:
    absolute = path.expanduser().absolute()
    root = project.root.absolute()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(absolute)
