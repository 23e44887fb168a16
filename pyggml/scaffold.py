"""Creates projects: the bundled one for `pyggml up`, or an empty one for a fork."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pyggml.errors import PyggmlError
from pyggml.files import with_lines, write_atomic
from pyggml.project import Project, is_project
from pyggml.series.exchange.merge_driver import ATTRIBUTES_FILE, with_attributes

_IGNORED = ("/vendor/*", "!/vendor/pins.toml", "/.pyggml/")
_IGNORE_COMMENT = "# pyggml: fetched sources, builds and local state"
_PINS = PurePosixPath("vendor/pins.toml")
_KEEP = PurePosixPath("patches/.gitkeep")

TEMPLATE = b"""\
# The upstream snapshots that this project's patches are based on; see `pyggml vendor --help`.
# `pyggml vendor add` writes a pin for you. Written by hand, a pin looks like this:
#
# default = "mine"                  # the pin that is used without --pin
#
# [pin.mine]
# commit = "<commit id, 40 digits>" # required for git, optional otherwise
# tree = "<git tree id of the imported snapshot>"
# exclude = ["docs", "media", "models"]
#
# [pin.mine.source]
# kind = "git"                      # git, sdist, archive or directory
# url = "https://github.com/ggml-org/llama.cpp"

upstream = "llama.cpp"              # the work tree becomes vendor/<upstream>
"""


def bundled_files(*, patches: bool) -> dict[PurePosixPath, bytes]:
    """The pins, and with `patches` also the series, that come with this pyggml.

    They are in the installed package (`pyggml/_project`), or in the repository of an editable installation.

    Raises:
        PyggmlError: they are in neither: the installation is broken.
    """
    package = Path(__file__).parent
    for root in (package / "_project", package.parent):
        pins = root / "vendor" / "pins.toml"
        if pins.is_file():
            break
    else:
        raise PyggmlError("this installation of pyggml lacks the bundled project", "Install pyggml again.")
    files = {_PINS: pins.read_bytes()}
    if patches:
        below = sorted(path for path in (root / "patches").rglob("*") if path.is_file())
        files |= {PurePosixPath(path.relative_to(root).as_posix()): path.read_bytes() for path in below}
    return files


def new_project(directory: Path, files: Mapping[PurePosixPath, bytes]) -> Project:
    """Write a project; `vendor/pins.toml`, which makes it a project, comes last.

    Files may exist with the same content, so that a killed run can be repeated. An existing `.gitignore`
    or `.gitattributes` keeps its lines.

    Args:
        files: paths relative to `directory`, and contents; includes the pins.

    Raises:
        PyggmlError: it is a project already, or a file exists with another content. Nothing is written.
    """
    if directory.exists() and not directory.is_dir():
        raise PyggmlError(f"{directory} is not a directory; nothing was changed", "Choose another path.")
    if is_project(directory):
        raise PyggmlError(
            f"{directory} is already a pyggml project; nothing was changed",
            "Use it as it is (pyggml up), or choose another directory: pyggml init DIR",
        )
    conflicts = _conflicts(directory, files)
    if conflicts:
        raise PyggmlError(
            f"{directory / conflicts[0]} is in the way; nothing was changed",
            "Choose another directory, or move it out of the way.",
        )
    write_atomic(directory / _KEEP, b"")
    for name, extended in ((".gitignore", _with_ignored), (ATTRIBUTES_FILE, with_attributes)):
        file = directory / name
        before = file.read_bytes() if file.is_file() else b""
        if (after := extended(before)) != before:
            write_atomic(file, after)
    for path in sorted(files, key=lambda path: path == _PINS):
        if not (directory / path).is_file():
            write_atomic(directory / path, files[path])
    return Project(directory.resolve())


def place_for_bundled(start: Path) -> Path:
    """Where `pyggml up` puts the bundled project: `start` itself if it is practically empty, otherwise
    `pyggml-project` in it."""
    files = bundled_files(patches=True)
    own = {".git", ".gitignore", ".gitattributes", "vendor", "patches"}
    if all(entry.name in own for entry in start.iterdir()) and not _conflicts(start, files):
        return start
    return start / "pyggml-project"


def _conflicts(directory: Path, files: Mapping[PurePosixPath, bytes]) -> list[str]:
    """Files in `vendor` and `patches` that a new project would overwrite or sit beside."""
    expected = {**files, _KEEP: b""}
    conflicts = []
    for name in ("vendor", "patches"):
        top = directory / name
        if top.is_symlink() or (top.exists() and not top.is_dir()):
            conflicts.append(name)
            continue
        for path in sorted(top.rglob("*")):
            inner = PurePosixPath(path.relative_to(directory).as_posix())
            above = path.is_dir() and not path.is_symlink() and any(inner in one.parents for one in expected)
            same = path.is_file() and inner in expected and path.read_bytes() == expected[inner]
            if not above and not same:
                conflicts.append(str(inner))
                break
    return conflicts


def _with_ignored(before: bytes) -> bytes:
    return with_lines(before, _IGNORE_COMMENT, _IGNORED)
