"""Names that a patch uses, and that only a patch which is left out would have added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyggml.series.patchfile.diff import FileDiff
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.patchfile.placement import ReadFile

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")


@dataclass(frozen=True)
class MissingName:
    """A name in the added lines of a patch.

    Attributes:
        path: the file that uses it and has it nowhere else.
        patch: the patch that would have added it, and is left out.
    """

    name: str
    path: str
    patch: str


def names_added(diffs: Sequence[FileDiff], read: ReadFile) -> frozenset[bytes]:
    """The names that a patch brings into the files that it changes; `read` gives them as they were before it."""
    names: set[bytes] = set()
    for run in changed_runs(diffs):
        names |= _names(run.added) - _names([read(run.path) or b""])
    return frozenset(names)


def missing_names(
    after: Sequence[FileDiff], read: ReadFile, left_out: Mapping[str, frozenset[bytes]]
) -> tuple[MissingName, ...]:
    """The names that the new patch uses, that a patch left out added, and that the file lacks without the new one.

    Text alone cannot tell a use from a definition, so this is a place to look at, not an error.

    Args:
        after: the new patch.
        read: the tree that it is made on.
        left_out: patches of the old series before it that are left out, with the names they added.
    """
    missing = []
    for run in changed_runs(after):
        known = _names([read(run.path) or b""])
        for patch, names in left_out.items():
            for name in sorted((_names(run.added) & names) - known):
                missing.append(MissingName(name.decode("ascii"), run.path, patch))
    return tuple(dict.fromkeys(missing))


def _names(texts: Iterable[bytes]) -> set[bytes]:
    return {name for text in texts for name in _NAME.findall(text)}
