"""A patch that does not apply as it stands, merged: its index lines name the files that it was made on."""

from __future__ import annotations

import re
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.git.index import write_entries
from pyggml.git.object_store import open_objects
from pyggml.series.patchfile.diff import FileDiff
from pyggml.series.patchfile.mail import NamedPatch
from pyggml.series.patchfile.prefixes import patch_diffs, patch_strip
from pyggml.series.stack.commits import apply_patches, scratch_index
from pyggml.series.stack.picks import TreeDelta
from pyggml.series.stack.trees import path_kinds

_FILES = (b"100644", b"100755", b"120000")
_INDEX = re.compile(rb"index ([0-9a-f]{4,64})\.\.[0-9a-f]{4,64}(?: [0-7]{6})?\s*")


def recorded_change(git: Git, parent: str, tree: str, patch: NamedPatch) -> TreeDelta:
    """The change that `patch` makes to the files that it was made on, and to no others.

    As in `git am -3`, the tree before it holds only those files, so that a merge can find where they have moved.
    Source: git's apply.c, `build_fake_ancestor`.

    Args:
        parent, tree: a commit and its tree: what the patch is for now. A file whose content the patch leaves alone
            need not be named in it; it is taken from here.

    Raises:
        PyggmlError: the repository lacks a file, or the patch does not apply to them.
    """
    try:
        kinds = path_kinds(git, tree)
        # The files that it was made on are fewer, so its prefix is found out here.
        patch = replace(patch, strip=patch_strip(patch, kinds))
        diffs = patch_diffs(patch, kinds)
    except PyggmlError as error:
        raise PyggmlError(f"{patch.label}: {error.message}", error.hint) from error
    entries: dict[str, tuple[str, str] | None] = {}
    for diff in diffs:
        if diff.old is not None:
            entries[diff.old_path] = _entry(git, tree, patch, diff)
    with scratch_index(git) as index:
        write_entries(index, entries)
        base = index.text("write-tree")
    try:
        (commit,) = apply_patches(git, parent, base, [patch])
    except PyggmlError as error:
        raise PyggmlError(
            f"{patch.label}: it does not apply to the files that its index lines name",
            "It was edited by hand or damaged on the way, or -p is wrong: make it again with git format-patch.",
        ) from error
    return TreeDelta(base, commit.tree)


def _entry(git: Git, tree: str, patch: NamedPatch, diff: FileDiff) -> tuple[str, str]:
    """Mode and blob of a file before the patch."""
    named = next((match[1].decode() for line in diff.header if (match := _INDEX.fullmatch(line))), None)
    if named is None and not diff.hunks and not diff.tail:
        with open_objects(git) as store:
            now = store.entry(tree, diff.old_path.encode("utf-8", "surrogateescape"))
        if now is not None and now.mode in _FILES:
            return now.mode.decode(), now.id
    elif named is not None:
        blobs = _blobs(git, named)
        if len(blobs) == 1:
            return (diff.modes[0].decode() if diff.modes else "100644"), blobs[0]
        if blobs:
            raise PyggmlError(
                f"{patch.label}: cannot merge {diff.old_path}: its index line could name {len(blobs)} files ({named})",
                "Make the patch again with: git format-patch --full-index",
            )
    what = f"what its index line names ({named})" if named else "it, and no index line names it"
    raise PyggmlError(
        f"{patch.label}: cannot merge {diff.old_path}: the repository lacks {what}",
        f"Fetch the version that the patch was made on into {git.work_tree}, or bring the patch to this one.",
    )


def _blobs(git: Git, prefix: str) -> list[str]:
    """The blobs whose names begin with `prefix`; a branch or tag of that name does not count."""
    names = git.text("rev-parse", f"--disambiguate={prefix}").split()
    if not names:
        return []
    rows = git.text("cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in names).encode())
    return [row.split()[0] for row in rows.splitlines() if row.split()[1] == "blob"]
