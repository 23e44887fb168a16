"""A plain text patch applied without git: most patches are of that kind, and a process for each of them takes long.

What is not plain (binary files, modes, links, renames, a file over another) is left to `git apply`, and so is whatever
does not apply, so that there is one place that says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyggml.errors import PyggmlError
from pyggml.git.object_store import Entry, ObjectStore
from pyggml.series.patchfile.diff import FileDiff
from pyggml.series.patchfile.mail import NamedPatch
from pyggml.series.patchfile.placement import place_files
from pyggml.series.patchfile.prefixes import patch_diffs
from pyggml.series.stack.trees import stored_kinds, stored_reader

_REGULAR = (b"100644", b"100755")
_PLAIN_HEADER = (b"diff --git ", b"index ", b"new file mode ", b"deleted file mode ", b"--- ", b"+++ ")


def apply_in_memory(store: ObjectStore, tree: str, patch: NamedPatch) -> str | None:
    """The tree that `patch` makes of `tree`.

    Returns:
        None if the patch is not plain, does not apply, or gives another tree than it records.
    """
    try:
        diffs = patch_diffs(patch, stored_kinds(store, tree))
        if not diffs or not _plain(store, tree, diffs):
            return None
        _, _, files = place_files(diffs, stored_reader(store, tree))
    except PyggmlError:
        return None
    entries: dict[bytes, Entry | None] = {}
    for diff in diffs:
        path, content = diff.path, files[diff.path]
        if diff.new is None:
            entries[path] = None
            continue
        assert content is not None  # noqa: S101 -- only a diff without `new` removes a file
        old = store.entry(tree, path)
        mode = diff.modes[0] if old is None else old.mode
        entries[path] = Entry(mode, store.write("blob", content))
    made = store.with_files(tree, entries)
    return made if made != tree and patch.tree in ("", made) else None


def _plain(store: ObjectStore, tree: str, diffs: Sequence[FileDiff]) -> bool:
    paths = [diff.path for diff in diffs]
    return len(set(paths)) == len(paths) and all(_plain_file(store, tree, diff) for diff in diffs)


def _plain_file(store: ObjectStore, tree: str, diff: FileDiff) -> bool:
    if not (diff.git and diff.hunks and all(line.startswith(_PLAIN_HEADER) for line in diff.header)):
        return False
    if any(mode not in _REGULAR for mode in diff.modes) or any(b"GIT binary" in line for line in diff.tail):
        return False
    old = store.entry(tree, diff.path)
    if diff.old is None:
        return len(diff.modes) == 1 and diff.new is not None and store.is_free(tree, diff.new)
    if old is None or old.mode not in _REGULAR or diff.new not in (None, diff.old):
        return False
    # A file that is removed must have nothing but the lines that are.
    return diff.new is not None or _holds_all(store, old, diff)


def _holds_all(store: ObjectStore, old: Entry, diff: FileDiff) -> bool:
    """Whether the one hunk of a removed file has all of its lines."""
    return len(diff.hunks) == 1 and b"".join(diff.hunks[0].old_lines()) == store.content(old.id)
