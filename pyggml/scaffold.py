"""New projects: the bundled one for `pyggml up` anywhere, an empty one for somebody's own fork."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pyggml.errors import PyggmlError
from pyggml.files import write_atomic
from pyggml.project import Project, is_project

_IGNORED = ("/vendor/*", "!/vendor/pins.toml", "/.pyggml/")
_IGNORE_COMMENT = "# pyggml: fetched sources, builds and local state"
_PINS = PurePosixPath("vendor/pins.toml")
_KEEP = PurePosixPath("patches/.gitkeep")

TEMPLATE = b"""\
# Which upstream snapshots this project's patches are carried on; see `pyggml vendor --help`.
# `pyggml vendor add` writes a pin for you. By hand, a pin looks like this:
#
# default = "mine"                  # the pin that commands use without --pin
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
    """The pins, and with `patches` also the series, that this pyggml comes with.

    They lie in the installed package (`pyggml/_project`), or in the repository of an editable checkout.

    Raises:
        PyggmlError: neither has them: the installation is broken.
    """
    package = Path(__file__).parent
    for root in (package / "_project", package.parent):
        pins = root / "vendor" / "pins.toml"
        if pins.is_file():
            break
    else:
        raise PyggmlError("this installation of pyggml comes without its project", "Install pyggml again.")
    files = {_PINS: pins.read_bytes()}
    if patches:
        below = sorted(path for path in (root / "patches").rglob("*") if path.is_file())
        files |= {PurePosixPath(path.relative_to(root).as_posix()): path.read_bytes() for path in below}
    return files


def new_project(directory: Path, files: Mapping[PurePosixPath, bytes]) -> Project:
    """Write a project; `vendor/pins.toml`, which makes it one, comes last.

    Files that are there with the same content are fine, so a run that was killed can be repeated. An
    existing `.gitignore` keeps its lines.

    Args:
        files: paths relative to `directory`, and contents; the pins among them.

    Raises:
        PyggmlError: it is a project already, or a file in the way says something else. Nothing is written.
    """
    if directory.exists() and not directory.is_dir():
        raise PyggmlError(f"{directory} is not a directory; nothing was changed", "Choose another place.")
    if is_project(directory):
        raise PyggmlError(
            f"{directory} is a pyggml project already; nothing was changed",
            "Use it as it is (pyggml up), or name another directory: pyggml init DIR",
        )
    found = _conflicts(directory, files)
    if found:
        raise PyggmlError(
            f"{directory / found[0]} is in the way; nothing was changed",
            "Name another directory, or move it out of the way.",
        )
    write_atomic(directory / _KEEP, b"")
    _ignore(directory / ".gitignore")
    for path in sorted(files, key=lambda path: path == _PINS):
        if not (directory / path).is_file():
            write_atomic(directory / path, files[path])
    return Project(directory.resolve())


def place_for_bundled(start: Path) -> Path:
    """Where `pyggml up` puts the bundled project: `start` itself when it is as good as empty, else
    `pyggml-project` in it."""
    files = bundled_files(patches=True)
    own = {".git", ".gitignore", "vendor", "patches"}
    if all(entry.name in own for entry in start.iterdir()) and not _conflicts(start, files):
        return start
    return start / "pyggml-project"


def _conflicts(directory: Path, files: Mapping[PurePosixPath, bytes]) -> list[str]:
    expected = {**files, _KEEP: b""}
    found = []
    for top in ("vendor", "patches"):
        place = directory / top
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            found.append(top)
            continue
        for path in sorted(place.rglob("*")):
            name = PurePosixPath(path.relative_to(directory).as_posix())
            inside = path.is_dir() and not path.is_symlink() and any(name in one.parents for one in expected)
            same = path.is_file() and name in expected and path.read_bytes() == expected[name]
            if not inside and not same:
                found.append(str(name))
                break
    return found


def _ignore(file: Path) -> None:
    before = file.read_bytes() if file.is_file() else b""
    lines = before.decode("utf-8", "surrogateescape").splitlines()
    missing = [line for line in _IGNORED if line not in lines]
    if not missing:
        return
    gap = b"" if not before or before.endswith(b"\n") else b"\n"
    added = "\n".join([_IGNORE_COMMENT, *missing]) + "\n"
    write_atomic(file, before + gap + added.encode())
