"""Which source a build is made of: pin, commit, tree and whether files were changed since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.project import Project


@dataclass(frozen=True)
class Source:
    """The work tree as it is now.

    Attributes:
        path: its directory.
        pin: the pin whose base commit HEAD descends from.
        head: HEAD's commit id.
        tree: HEAD's tree id.
        dirty: files differ from HEAD, so `tree` does not say what is compiled.
    """

    path: Path
    pin: str
    head: str
    tree: str
    dirty: bool


def has_source(project: Project) -> bool:
    """Whether anything is fetched and checked out.

    Raises:
        PyggmlError: the project's pins cannot be read.
    """
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import repository

    git = repository(project, read_pins(project))
    return git.work_tree is not None and git.git_dir.is_dir() and git.resolve("HEAD^{commit}") is not None


def read_source(project: Project) -> Source:
    """Look at the project's work tree.

    Raises:
        PyggmlError: nothing is fetched or checked out yet, or HEAD belongs to none of the pins.
    """
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import repository

    pins = read_pins(project)
    git = repository(project, pins)
    get = "Get it with: pyggml up (or pyggml vendor fetch, then pyggml patch apply)"
    if git.work_tree is None or not git.git_dir.is_dir():
        raise PyggmlError(f"there is no source to build in vendor/{pins.upstream} yet", get)
    head, tree = git.resolve("HEAD^{commit}"), git.resolve("HEAD^{tree}")
    if head is None or tree is None:
        raise PyggmlError(f"vendor/{pins.upstream} has nothing checked out", get)
    by_default_first = sorted(pins.pins, key=lambda pin: pin.name != pins.default)
    for pin in by_default_first:
        base = git.resolve(f"refs/tags/pin/{pin.name}^{{commit}}")
        if base is not None and git.status("merge-base", "--is-ancestor", base, head)[0] == 0:
            changed = git.run("status", "--porcelain", "-z", "--untracked-files=normal")
            return Source(git.work_tree, pin.name, head, tree, bool(changed))
    raise PyggmlError(
        f"vendor/{pins.upstream} is at {head[:12]}, which descends from none of this project's pins",
        "See where it stands: pyggml patch status",
    )
