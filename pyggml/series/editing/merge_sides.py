"""The versions of a patch file on both sides of a merge in the project's repository.

A change of one patch gives later ones other line numbers and blob ids. Two branches may therefore conflict in the
text of a patch that only one of them, or neither, has changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.git.runner import run_outside
from pyggml.series.editing.match import plain_diff
from pyggml.series.patchfile.mail import PatchMail, read_patch

_OTHERS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REBASE_HEAD")


def is_same_patch(one: PatchMail, other: PatchMail) -> bool:
    """Whether author, message and change are the same, wherever in the file the change stands."""
    people = (one.author, one.message) == (other.author, other.message)
    return people and plain_diff(one.diff) == plain_diff(other.diff)


class MergeSides:
    """The merge, cherry-pick or rebase that waits in the repository around `directory`, if there is one.

    Args:
        directory: that of the series.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = cache(self._read_blob)

    def settle(self, name: str, contents: Sequence[bytes]) -> bytes | None:
        """Which version of the patch `name` is right: what one side has made of it, if the other left it alone.

        Args:
            contents: of the files with that name that are there now.

        Returns:
            None if both sides have changed it, or a file is of neither side, without conflict marks.
        """
        mails = [_mail(content) for content in contents]
        first = mails[0]
        if first and all(mail and is_same_patch(first, mail) for mail in mails):
            return contents[0]
        base, ours, theirs = (self._version(side, name) for side in range(3))
        right = theirs if _same(base, ours) else ours if _same(base, theirs) or _same(ours, theirs) else None
        known = [version for version in (base, ours, theirs) if version is not None]
        if any(
            mail is not None and not any(_same(one, c) for one in known)
            for mail, c in zip(mails, contents, strict=True)
        ):
            return None
        return right

    def both_added(self, name: str) -> tuple[bytes, ...]:
        """The two versions of a patch that is new on both sides; empty if there are not two."""
        base, ours, theirs = (self._version(side, name) for side in range(3))
        if base is not None or ours is None or theirs is None:
            return ()
        return ours, theirs

    def removed(self, name: str, content: bytes) -> bool:
        """Whether one side has removed the patch `name`, and `content` is what it was before."""
        base, ours, theirs = (self._version(side, name) for side in range(3))
        return base is not None and None in (ours, theirs) and _same(base, content)

    @cached_property
    def _sides(self) -> tuple[Mapping[str, str], ...]:
        """Name of the patch to blob: of the common ancestor, of ours and of theirs."""
        for other in _OTHERS:
            try:
                theirs = self._git("rev-parse", "--verify", "--quiet", other)
                ancestor = (
                    ("merge-base", "HEAD", theirs) if other == _OTHERS[0] else ("rev-parse", f"{theirs}^")
                )
                commits = (self._git(*ancestor).split()[0], "HEAD", theirs)
                return tuple(self._files(commit) for commit in commits)
            except GitError:
                continue
        return ({}, {}, {})

    def _files(self, commit: str) -> dict[str, str]:
        rows = [row.split("\t", 1) for row in self._git("ls-tree", "-z", commit).split("\0") if row]
        files = [(re.fullmatch(r"\d+-(.+)\.patch", name), meta.split(" ")[2]) for meta, name in rows]
        return {match[1]: blob for match, blob in files if match}

    def _version(self, side: int, name: str) -> bytes | None:
        blob = self._sides[side].get(name)
        return None if blob is None else self._read(blob)

    def _read_blob(self, blob: str) -> bytes:
        return run_outside("cat-file", "blob", blob, cwd=self._directory)

    def _git(self, *args: str) -> str:
        return run_outside(*args, cwd=self._directory).decode("utf-8", "surrogateescape").strip("\n")


def _mail(content: bytes) -> PatchMail | None:
    """None if it cannot be read, as with conflict marks."""
    if re.search(rb"(?m)^(<<<<<<<|>>>>>>>) ", content):
        return None
    try:
        return read_patch(content, "patch")
    except PyggmlError:
        return None


def _same(one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None:
        return False
    mails = _mail(one), _mail(other)
    return mails[0] is not None and mails[1] is not None and is_same_patch(mails[0], mails[1])
