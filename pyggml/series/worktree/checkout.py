"""A private checkout: a repository of its own with its own files, borrowing the objects of the vendored one."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import write_atomic
from pyggml.git import Git
from pyggml.git.index import NO_ENTRY, write_rows
from pyggml.git.runner import run_outside
from pyggml.series.stack.merge import IndexStage
from pyggml.series.worktree.files import BRANCH
from pyggml.upstream.fast_import import quoted


def make_checkout(
    vendored: Git, place: Path, head: str, tree: str, stages: tuple[IndexStage, ...] = ()
) -> Git:
    """Create `place` with the files of `tree`, its branch `series` at the commit `head`.

    It is made beside `place` and renamed into place; what was there is replaced.

    Args:
        stages: conflicting paths, which `git status` there shows as unmerged.

    Raises:
        PyggmlError: it cannot be written.
    """
    beside = place.with_name(f".{place.name}.new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.parent.mkdir(parents=True, exist_ok=True)
        options = ("--quiet", "--template=", "--initial-branch=series", "--object-format=sha1")
        run_outside("init", *options, str(beside))
        git = Git(beside / ".git", beside)
        attributes = vendored.git_dir / "info" / "attributes"
        if attributes.is_file():
            write_atomic(git.git_dir / "info" / "attributes", attributes.read_bytes())
        objects = bytes((vendored.git_dir / "objects").absolute())
        write_atomic(git.git_dir / "objects" / "info" / "alternates", quoted(objects) + b"\n")
        git.run("config", "--local", "gc.auto", "0")
        git.run("update-ref", BRANCH, head)
        git.run("read-tree", "--reset", "-u", tree)
        if stages:
            show_unmerged(git, stages)
        if place.exists():
            shutil.rmtree(place)
        beside.rename(place)
    except OSError as error:
        raise PyggmlError(f"cannot write {place}: {error.strerror or error}") from error
    return Git(place / ".git", place)


def show_unmerged(git: Git, stages: tuple[IndexStage, ...]) -> None:
    """Put the versions of conflicting paths into the index, so that git shows the paths as unmerged."""
    rows = [f"{NO_ENTRY}\t{path}" for path in dict.fromkeys(stage.path for stage in stages)]
    write_rows(git, rows + [f"{one.mode} {one.blob} {one.stage}\t{one.path}" for one in stages])


def read_unmerged(git: Git) -> tuple[IndexStage, ...]:
    """The index entries of the paths that git shows as unmerged."""
    rows = git.run("ls-files", "--unmerged", "-z").decode("utf-8", "surrogateescape").split("\0")
    entries = ((*row.split("\t", 1)[0].split(" "), row.split("\t", 1)[1]) for row in rows if row)
    return tuple(IndexStage(mode, blob, int(stage), path) for mode, blob, stage, path in entries)


def move_checkout(git: Git, head: str, tree: str) -> None:
    """Bring a private checkout to another commit; files that do not differ keep their times."""
    git.run("update-ref", BRANCH, head)
    git.run("read-tree", "--reset", "-u", tree)
    git.run("clean", "-ffdq")
