"""Where in a package upstream's tree is, and of which version it is."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import UsageError
from pyggml.upstream.archive_entries import archive_entries
from pyggml.upstream.pins import is_commit_id
from pyggml.upstream.progress import Progress, silent

_MOST_BYTES = 1 << 16
_COMMIT_DIGITS = 9
_LAST_YEAR = 2100


@dataclass(frozen=True)
class CarriedTree:
    """Upstream's tree in a package.

    Attributes:
        subdir: its directory inside the package's top directory; empty for the whole package.
        has_tests: whether it has a directory `tests` with files.
        commit: upstream's commit id, if the package contains the git directory of the submodule that the tree is.
        build: upstream's build (`b11549`), if the package's version contains its number.
    """

    subdir: str
    has_tests: bool
    commit: str | None = None
    build: str | None = None

    @property
    def version(self) -> str | None:
        """What a pin of this tree is called."""
        return self.commit[:_COMMIT_DIGITS] if self.commit else self.build


def carried_tree(archive: Path, upstream: str, subdir: str = "", report: Progress = silent) -> CarriedTree:
    """Find upstream's tree in a package.

    Args:
        archive: the package, a tar or zip archive.
        upstream: upstream's name: the tree is in the directory of this name that has a `CMakeLists.txt`, and is
            the whole package if there is none.
        subdir: the tree's directory, if it is known.

    Raises:
        UsageError: several directories could be it.
        PyggmlError: the archive cannot be read.
    """
    files, texts = _read(archive, report)
    tops = {path.partition("/")[0] for path in files}
    strip = f"{tops.pop()}/" if len(tops) == 1 and all("/" in path for path in files) else ""
    paths = {path.removeprefix(strip) for path in files}
    texts = {path.removeprefix(strip): text for path, text in texts.items()}
    subdir = subdir or _find(paths, upstream, archive.name)
    inside = f"{subdir}/" if subdir else ""
    return CarriedTree(
        subdir,
        any(path.startswith(f"{inside}tests/") for path in paths),
        _commit(texts, inside),
        _build(texts.get("PKG-INFO", "")),
    )


def checked_name(tree: CarriedTree, name: str | None, commit: str | None, package: str) -> str:
    """The name of a new pin of `tree`: the one given, or the version that the package carries.

    Raises:
        UsageError: the package carries another version than the one given, or does not say which.
    """
    if commit is not None and tree.commit is not None and commit != tree.commit:
        raise UsageError(f"{package} carries commit {tree.commit}, not {commit}", "Leave out --commit.")
    if name is None and tree.version is None:
        raise UsageError(
            f"{package} does not say which version of upstream it carries",
            "Name the pin: pyggml vendor add NAME ...",
        )
    if name is not None and tree.build and re.fullmatch(r"b\d+", name) and name != tree.build:
        raise UsageError(f"{package} carries {tree.build}, not {name}", f"Name the pin {tree.build}.")
    return name or tree.version or ""


def _read(archive: Path, report: Progress) -> tuple[set[str], dict[str, str]]:
    """The paths of all files, and the contents of those that say what is carried."""
    files: set[str] = set()
    texts: dict[str, str] = {}
    for entry in archive_entries(archive, report):
        path = posixpath.normpath(entry.path.decode("utf-8", "replace"))
        if entry.mode is None:
            continue
        files.add(path)
        *above, name = path.split("/")
        tells = name in (".git", "PKG-INFO") or (name == "HEAD" and ".git" in above)
        if tells and entry.content is not None and entry.size <= _MOST_BYTES:
            texts[path] = entry.content.read().decode("utf-8", "replace")
    return files, texts


def _find(paths: set[str], upstream: str, package: str) -> str:
    places = sorted(
        (
            posixpath.dirname(path)
            for path in paths
            if posixpath.basename(path) == "CMakeLists.txt"
            and posixpath.basename(posixpath.dirname(path)) == upstream
        ),
        key=lambda place: (place.count("/"), place),
    )
    outer = [one for one in places if not any(one.startswith(f"{other}/") for other in places)]
    if len(outer) > 1:
        raise UsageError(
            f"{package} has several directories {upstream}: {', '.join(outer)}",
            f"Choose one, for example: --subdir {outer[0]}",
        )
    return outer[0] if outer else ""


def _commit(texts: Mapping[str, str], inside: str) -> str | None:
    """The commit in HEAD of the submodule's git directory, which the file `.git` in the tree names."""
    link = re.fullmatch(r"gitdir: (.+)\n?", texts.get(f"{inside}.git", ""))
    if link is None:
        return None
    directory = posixpath.normpath(posixpath.join(inside, link[1]))
    head = texts.get(f"{directory}/HEAD", "").strip()
    return head if is_commit_id(head) else None


def _build(pkg_info: str) -> str | None:
    """The component of the package's version that is a build number: of four digits or more, and not a year."""
    version = re.search(r"^Version: *(\S+)", pkg_info, re.MULTILINE)
    numbers = re.findall(r"\d{4,}", version[1]) if version else []
    builds = [number for number in numbers if int(number) > _LAST_YEAR]
    return f"b{builds[0]}" if len(builds) == 1 else None
