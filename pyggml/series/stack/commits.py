"""Commits made from patches: objects only, no reference and no file of the user is touched here."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git, GitError
from pyggml.git.index import write_entries
from pyggml.git.object_store import ObjectStore, open_objects
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.mail import COMMITTER, Identity, NamedPatch, PatchMail
from pyggml.series.patchfile.placement import place_all
from pyggml.series.patchfile.prefixes import patch_diffs
from pyggml.series.stack.in_memory import apply_in_memory
from pyggml.series.stack.links import check_links
from pyggml.series.stack.series_file import Series, series_patches
from pyggml.series.stack.trees import path_kinds, tree_reader

_INDEX_LINE = re.compile(rb"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})\b", re.MULTILINE)
# Git drops punctuation at both ends of a name, and some signs within.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 @_+.-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Commit:
    """A commit of the stack, as far as the series needs it."""

    id: str
    tree: str
    parent: str
    author: Identity
    message: str

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]

    def is_made_of(self, mail: PatchMail) -> bool:
        """Whether author and message are those of `mail`."""
        return (self.author, self.message) == (mail.author, mail.message)


@contextmanager
def scratch_index(git: Git, tree: str | None = None) -> Iterator[Git]:
    """The repository with an index of its own, deleted afterwards; it holds `tree` or is empty."""
    with tempfile.TemporaryDirectory(prefix="pyggml-index-", dir=git.git_dir) as directory:
        index = git.with_index(Path(directory) / "index")
        if tree is not None:
            index.run("read-tree", tree)
        yield index


def tree_with(git: Git, tree: str, entries: Mapping[str, tuple[str, str] | None]) -> str:
    """The tree `tree` with other entries: path to mode and blob, or None for a path that is gone."""
    if not entries:
        return tree
    with scratch_index(git, tree) as index:
        write_entries(index, entries)
        return index.text("write-tree")


def commit_tree(git: Git, tree: str, parent: str, author: Identity, message: str) -> Commit:
    """Write a commit; the same arguments give the same id on every machine."""
    out = git.text("commit-tree", tree, "-p", parent, stdin=message.encode("utf-8"), env=author.environment())
    return Commit(out, tree, parent, author, message)


def write_commit(
    store: ObjectStore, tree: str, parents: Sequence[str], author: Identity, message: str
) -> str:
    """Make a commit with these very bytes; returns its id."""
    head = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    head.append(f"author {author.name} <{author.email}> {author.date}")
    head.append(f"committer {COMMITTER.name} <{COMMITTER.email}> {author.date}")
    return store.write("commit", ("\n".join(head) + f"\n\n{message}").encode())


def stored_commit(store: ObjectStore, tree: str, parent: str, author: Identity, message: str) -> Commit:
    """As `commit_tree`, without a process if git leaves author and message as they are."""
    if "\0" not in message and all(map(_PLAIN_NAME.fullmatch, (author.name, author.email))):
        made = write_commit(store, tree, (parent,), author, message)
        return Commit(made, tree, parent, author, message)
    store.flush()
    return commit_tree(store.git, tree, parent, author, message)


def apply_patches(git: Git, parent: str, tree: str, patches: Iterable[NamedPatch]) -> Iterator[Commit]:
    """Commit one patch after the other on the commit `parent` with tree `tree`.

    Every hunk is placed first: one that fits in several places is refused, never guessed. A patch that records
    its tree is tried at its stated lines before, which is quicker, and must give that tree.

    Raises:
        PyggmlError: a patch does not apply, is ambiguous, changes nothing, leaves the tree, makes a link that
            does, or gives another tree than it records.
    """
    with open_objects(git) as store:
        read, error = _read_all(patches)
        store.read_ahead(_blobs_below(read))
        for patch in read:
            made = apply_in_memory(store, tree, patch)
            if made is None:
                store.flush()
                with scratch_index(git, tree) as index:
                    apply = _apply_recorded if patch.tree else _apply_placed
                    made = apply(index, tree, patch)
            commit = stored_commit(store, made, parent, patch.mail.author, patch.mail.message)
            yield commit
            parent, tree = commit.id, made
        if error is not None:
            raise error


def _read_all(patches: Iterable[NamedPatch]) -> tuple[list[NamedPatch], Exception | None]:
    """The patches up to the first that cannot be read, and why; a fault of a patch below it is told first."""
    read = []
    try:
        for patch in patches:
            read.append(patch)
    except (PyggmlError, OSError) as error:
        return read, error
    return read, None


def _blobs_below(patches: Iterable[NamedPatch]) -> Iterator[str]:
    """The files that patches by git say they change, but for those that a patch before has made."""
    made: set[bytes] = set()
    for patch in patches:
        for old, new in _INDEX_LINE.findall(patch.mail.diff):
            if old not in made:
                yield old.decode("ascii")
            made.add(new)


def _check_links(git: Git, old: str, new: str, patch: NamedPatch) -> None:
    # Most patches need no look at their trees. A renamed link has no mode in the diff.
    if any(word in patch.mail.diff for word in (b"120000", b"rename from ", b"copy from ")):
        check_links(git, old, new, patch.label)


def _apply_recorded(index: Git, tree: str, patch: NamedPatch) -> str:
    try:
        # Paths are checked before git sees them. Placement matters only if another tree comes out.
        parse_diff(patch.mail.diff)
        index.run("apply", "--cached", "-", stdin=patch.mail.diff)
        made = index.text("write-tree")
    except PyggmlError:
        index.run("read-tree", tree)
        made = _apply_placed(index, tree, patch)
    if made != patch.tree:
        index.run("read-tree", tree)
        _apply_placed(index, tree, patch)
        raise PyggmlError(
            f"{patch.label}: it gives tree {made[:12]}, recorded is {patch.tree[:12]}: it was changed by hand",
            "Restore it (git checkout -- patches), or accept the change with: pyggml patch refresh --from-files",
        )
    _check_links(index, tree, made, patch)
    return made


def _apply_placed(index: Git, tree: str, patch: NamedPatch) -> str:
    """The tree that `patch` makes of `tree`, which is in the index; afterwards the new tree is."""
    try:
        diffs = patch_diffs(patch, path_kinds(index, tree))
        if not diffs:
            raise PyggmlError("there is no diff in it", "The file is truncated or empty: restore it.")
        exact, _ = place_all(diffs, tree_reader(index, tree))
        # Every hunk is at its place; without --unidiff-zero git would not take one that has no context.
        index.run("apply", "--cached", "--unidiff-zero", "-", stdin=exact)
    except GitError as error:
        raise PyggmlError(
            f"{patch.label}: git refuses it: {_reason(error)}",
            "The patch is for another version, or malformed.",
        ) from error
    except PyggmlError as error:
        raise PyggmlError(f"{patch.label}: {error.message}", error.hint) from error
    made = index.text("write-tree")
    if made == tree:
        # Only a patch of a series has no title.
        way_out = "Leave it out." if patch.title else "Remove it from the series: pyggml patch drop NAME"
        raise PyggmlError(f"{patch.label}: it changes nothing", way_out)
    _check_links(index, tree, made, patch)
    return made


def _reason(error: GitError) -> str:
    lines = error.stderr.splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return next(iter([*errors, *lines[-1:]]), "no reason given")


def build_stack(
    git: Git, directory: Path, series: Series, base: str, upto: int | None = None
) -> list[Commit]:
    """The commits of the first `upto` patches (all by default) on the commit `base`.

    Raises:
        PyggmlError: a file does not apply, or its result is not the tree that the series records.
    """
    if not series.patches[:upto]:
        return []
    return list(apply_patches(git, base, series.base, series_patches(directory, series, upto)))
