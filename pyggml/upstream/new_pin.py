"""Adds a new pin: imports its source and writes it to pins.toml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import UsageError
from pyggml.project import Project
from pyggml.upstream.cache import file_sha256
from pyggml.upstream.carried_tree import carried_tree, checked_name
from pyggml.upstream.import_source import archive_of
from pyggml.upstream.pins import (
    ArchiveSource,
    DirectorySource,
    GitSource,
    Pin,
    SdistSource,
    Source,
    check_name_is_free,
    is_commit_id,
    is_relative_inside,
    read_pins,
    valid_pin_name,
    write_pin,
)
from pyggml.upstream.progress import Progress, silent
from pyggml.upstream.store import FetchResult, import_pin


@dataclass(frozen=True)
class NewPin:
    """A pin to be added.

    Attributes:
        name: the pin's name.
        source: where it comes from.
        commit: upstream's commit id; required for a git source.
        exclude: paths to leave out.
        make_default: whether it becomes the default pin.
    """

    name: str
    source: Source
    commit: str | None = None
    exclude: tuple[str, ...] = ()
    make_default: bool = False


def check_new_pin(
    project: Project, name: str | None, commit: str | None, exclude: tuple[str, ...], subdir: str
) -> None:
    """Check the parts of a new pin before anything is downloaded for it.

    Args:
        name: None if it is not known yet.

    Raises:
        PyggmlError: the name is taken or invalid; a path or the commit id is invalid.
    """
    if name is not None:
        if not valid_pin_name(name):
            raise UsageError(f"{name!r} is not a valid pin name", "Use letters, digits, '.', '_' and '-'.")
        check_name_is_free(project, read_pins(project), name)
    for path in (*exclude, *([subdir] if subdir else [])):
        if not is_relative_inside(path):
            raise UsageError(
                f"{path!r} is not a relative path without '..'", "Paths are relative to the source's root."
            )
    if commit is not None and not is_commit_id(commit):
        raise UsageError(f"{commit!r} is not a full commit id", "Give all 40 hex digits, in lowercase.")


def sdist_source(requirement: str, subdir: str = "", report: Progress = silent) -> SdistSource:
    """Find `PROJECT==VERSION` in the machine's package sources, fetch it and compute its checksum.

    Raises:
        UsageError: `requirement` does not have that form.
        PyggmlError: it cannot be found or downloaded.
    """
    from pyggml.upstream.package_files import find_sdist

    project, separator, version = requirement.partition("==")
    if not separator or not valid_pin_name(project.strip()) or not version.strip():
        raise UsageError(f"{requirement!r} does not name one sdist", "Write it like llama-cpp-python==0.3.36")
    return replace(find_sdist(project.strip(), version.strip(), report), subdir=subdir)


def archive_source(
    project: Project, path: Path, subdir: str = "", report: Progress = silent
) -> ArchiveSource:
    """The source for an archive on this machine.

    Raises:
        PyggmlError: it cannot be read.
    """
    return ArchiveSource(_path_to_record(project, path), file_sha256(path, report), subdir)


def directory_source(project: Project, path: Path) -> DirectorySource:
    """The source for a directory on this machine."""
    return DirectorySource(_path_to_record(project, path))


def git_source(url: str, subdir: str = "") -> GitSource:
    """The source for a git repository; a path on this machine is made absolute.

    Raises:
        UsageError: `url` is not a URL.
    """
    if not url or url.startswith("-"):
        raise UsageError(f"{url!r} is not the URL of a git repository")
    return GitSource(str(Path(url).absolute()) if Path(url).exists() else url, subdir)


def carried_pin(
    project: Project,
    source: SdistSource | ArchiveSource,
    name: str | None,
    commit: str | None,
    exclude: tuple[str, ...] = (),
    report: Progress = silent,
) -> tuple[NewPin, tuple[str, ...]]:
    """The new pin of a package: its directory, name and commit as the package says, unless they are given.

    Returns:
        The pin, and what to tell the user about the tree.

    Raises:
        UsageError: see `carried_tree` and `checked_name`.
        PyggmlError: the package cannot be read.
    """
    upstream = read_pins(project).upstream
    path = archive_of(project, source, report)
    tree = carried_tree(path, upstream, source.subdir, report)
    name = checked_name(tree, name, commit, path.name)
    notes = []
    if tree.subdir != source.subdir:
        notes.append(f"{path.name}: {upstream} is in {tree.subdir}")
    elif not tree.subdir:
        notes.append(f"{path.name} has no directory {upstream} with a CMakeLists.txt: all of it is taken")
    if not tree.has_tests:
        notes.append("the tree has no tests/: upstream's own tests cannot be built")
    new = NewPin(name, replace(source, subdir=tree.subdir), commit or tree.commit, exclude)
    return new, tuple(notes)


def add_pin(project: Project, new: NewPin, report: Progress = silent) -> tuple[Pin, FetchResult]:
    """Import `new` and append it to `vendor/pins.toml`; the caller holds the project's lock.

    The pin is written last, so after a kill the same command starts again from the beginning.

    Raises:
        PyggmlError: see `check_new_pin` and `pyggml.upstream.store.fetch`; or pins.toml cannot be written.
    """
    subdir = "" if isinstance(new.source, DirectorySource) else new.source.subdir
    check_new_pin(project, new.name, new.commit, new.exclude, subdir)
    if isinstance(new.source, GitSource) and new.commit is None:
        raise UsageError("a git source needs a commit", "Give it with --commit SHA.")
    pin = Pin(new.name, new.commit, "", new.exclude, new.source)
    result = import_pin(project, read_pins(project), pin, report, check=False)
    pin = replace(pin, tree=result.tree)
    write_pin(project, pin, make_default=new.make_default)
    return pin, result


def _path_to_record(project: Project, path: Path) -> str:
    absolute = path.expanduser().absolute()
    root = project.root.absolute()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(absolute)
