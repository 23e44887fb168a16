"""Commits made of patches: objects only, no reference and no file of the user is touched here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git, GitError
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.mail import Identity, PatchMail, read_patch
from pyggml.series.patchfile.placement import Placed, place_all
from pyggml.series.stack.series_file import Patch, Series


@dataclass(frozen=True)
class Commit:
    """A commit of the stack, as far as the engine needs it."""

    id: str
    tree: str
    parent: str
    author: Identity
    message: str

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]


@dataclass(frozen=True)
class Applied:
    """The outcome of applying one patch file.

    Attributes:
        moved: hunks that did not stand at their stated line.
    """

    commit: Commit
    moved: tuple[Placed, ...] = field(default=())


@contextmanager
def scratch_index(git: Git) -> Iterator[Git]:
    """The repository with an empty index of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pyggml-index-", dir=git.git_dir) as directory:
        yield git.with_index(Path(directory) / "index")


def commit_tree(git: Git, tree: str, parent: str, author: Identity, message: str) -> Commit:
    """Write a commit; the same arguments give the same id on every machine."""
    out = git.text("commit-tree", tree, "-p", parent, stdin=message.encode("utf-8"), env=author.environment())
    return Commit(out, tree, parent, author, message)


def apply_mail(
    git: Git, index: Git, parent: str, tree: str, mail: PatchMail, name: str, strip: int = 1
) -> Applied:
    """Apply a patch of unknown fit on top of `parent` and commit it.

    Every hunk is placed first: one that fits in several places is refused, never guessed.

    Args:
        index: the repository with a scratch index that holds `tree`; it holds the new tree afterwards.
        tree: the tree of `parent`.
        name: what to call the patch in messages.

    Raises:
        PyggmlError: it does not apply, is ambiguous, changes nothing, or leaves the tree.
    """
    try:
        diffs = parse_diff(mail.diff, strip)
        if not diffs:
            raise PyggmlError("there is no diff in it", "The file is cut off or empty: restore it.")

        def read(path: bytes) -> bytes | None:
            status, out = git.status(
                "cat-file", "blob", f"{tree}:{path.decode('utf-8', 'surrogateescape')}", ok=(0, 1, 128)
            )
            return out if status == 0 else None

        exact, places = place_all(diffs, read)
        index.run("apply", "--cached", f"-p{strip}", "-", stdin=exact)
    except GitError as error:
        raise PyggmlError(
            f"{name}: git refuses it: {_told(error)}", "The patch is for another version, or malformed."
        ) from error
    except PyggmlError as error:
        raise PyggmlError(f"{name}: {error.message}", error.hint) from error
    made = index.text("write-tree")
    if made == tree:
        raise PyggmlError(f"{name}: it changes nothing", "Remove it from the series: pyggml patch drop NAME")
    commit = commit_tree(git, made, parent, mail.author, mail.message)
    return Applied(commit, tuple(p for p in places if p.offset))


def _told(error: GitError) -> str:
    lines = [line.removeprefix("error: ") for line in error.stderr.splitlines() if line.startswith("error: ")]
    return lines[0] if lines else error.stderr.splitlines()[-1] if error.stderr else "no reason given"


def build_stack(
    git: Git, directory: Path, series: Series, base: str, upto: int | None = None
) -> list[Commit]:
    """The commits of the first `upto` patches (all by default) on the commit `base`.

    Raises:
        PyggmlError: a file does not apply, or its result is not the tree that the series records.
    """
    wanted = series.patches if upto is None else series.patches[:upto]
    commits: list[Commit] = []
    if not wanted:
        return commits
    with scratch_index(git) as index:
        index.run("read-tree", series.base)
        parent, tree = base, series.base
        for number, patch in enumerate(wanted, 1):
            commit = _apply_recorded(git, index, directory, number, patch, parent, tree)
            commits.append(commit)
            parent, tree = commit.id, commit.tree
    return commits


def _apply_recorded(
    git: Git, index: Git, directory: Path, number: int, patch: Patch, parent: str, tree: str
) -> Commit:
    file = patch.file(number)
    mail = read_patch((directory / file).read_bytes(), file)
    try:
        # The paths are checked before git sees them; the placement only matters if the tree is another one.
        parse_diff(mail.diff)
        index.run("apply", "--cached", "-", stdin=mail.diff)
        made = index.text("write-tree")
    except PyggmlError:
        index.run("read-tree", tree)
        made = apply_mail(git, index, parent, tree, mail, file).commit.tree
    if made != patch.tree:
        index.run("read-tree", tree)
        apply_mail(git, index, parent, tree, mail, file)
        raise PyggmlError(
            f"{file}: it gives tree {made[:12]}, but {patch.tree[:12]} is recorded: the file was changed by hand",
            "Restore it (git checkout -- patches), or accept the change with: pyggml patch refresh --from-files",
        )
    return commit_tree(git, made, parent, mail.author, mail.message)


def merge_environment() -> dict[str, str]:
    """For the commits that a merge of trees is given: the same ids everywhere."""
    return Identity("pyggml", "pyggml@users.noreply.github.com", "0 +0000").environment()


def commit_tree_of(git: Git, tree: str, environment: Mapping[str, str], *parents: str) -> str:
    """A commit that only stands for its tree in a merge."""
    args = [arg for parent in parents for arg in ("-p", parent)]
    return git.text("commit-tree", tree, *args, stdin=b"merge\n", env=environment)


def merge_trees(git: Git, base: str, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """Three-way merge of trees, as a cherry-pick would do it.

    Returns:
        the merged tree (with conflict markers where it conflicts) and the conflicting paths.
    """
    if ours == base:
        return theirs, ()
    if theirs in (base, ours):
        return ours, ()
    environment = merge_environment()
    root = commit_tree_of(git, base, environment)
    status, out = git.status(
        "merge-tree",
        "--write-tree",
        "-z",
        "--name-only",
        "--no-messages",
        commit_tree_of(git, ours, environment, root),
        commit_tree_of(git, theirs, environment, root),
    )
    parts = out.decode("utf-8", "surrogateescape").split("\0")
    return parts[0], tuple(dict.fromkeys(p for p in parts[1:] if p)) if status else ()


def blob_lines(git: Git, ids: Sequence[str]) -> list[bytes]:
    """The contents of blobs, in order, in one process."""
    if not ids:
        return []
    out = git.run("cat-file", "--batch", stdin="".join(f"{i}\n" for i in ids).encode())
    contents: list[bytes] = []
    at = 0
    for _ in ids:
        end = out.index(b"\n", at)
        size = int(out[at:end].rsplit(b" ", 1)[1])
        contents.append(out[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
    return contents
