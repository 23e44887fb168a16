"""Symbolic links of a tree: where they lead, through other links as well. None may lead out of the tree."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.git.object_store import ObjectStore
from pyggml.series.stack.trees import read_blobs

_LINK = "120000"
_MOST_HOPS = 40
"""As many links as Linux follows on the way to one file."""


def check_links(git: Git, old: str, new: str, label: str) -> None:
    """Refuse a tree with a link that leads out of it or into a `.git`, however the link came there.

    Only links that are the same in the tree `old` may; they are not the patch's doing.

    Args:
        label: of the patch that makes `new` of `old`, for the message.

    Raises:
        PyggmlError: there is one.
    """
    raw = git.run(
        "diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", "--diff-filter=AMT", old, new
    )
    # Without a new link or another target, nothing leads where it did not lead before.
    if not any(meta.startswith(b":") and meta.split(b" ")[1] == _LINK.encode() for meta in raw.split(b"\0")):
        return
    links = _links(git, new)
    before = _links(git, old)
    for path, target in links.items():
        if _leads_out(path, links) and not (before.get(path) == target and _leads_out(path, before)):
            raise PyggmlError(
                f"{label}: it makes {path!r} a link out of the tree, to {target!r}",
                "A link must lead to a place inside the source tree: leave it out, or give it another target.",
            )


def check_new_links(store: ObjectStore, old: str, new: str, label: str) -> None:
    """As `check_links`, without a process if `new` has no other link than `old`."""
    if any(entry and entry.mode == _LINK.encode() for entry in store.changes(old, new).values()):
        store.flush()
        check_links(store.git, old, new, label)


def _links(git: Git, tree: str) -> dict[str, str]:
    """Path and target of every link of a tree."""
    rows = git.run("ls-tree", "-r", "-z", tree).decode("utf-8", "surrogateescape").split("\0")
    found = [row.split("\t", 1) for row in rows if row.startswith(f"{_LINK} ")]
    targets = read_blobs(git, [meta.split(" ")[2] for meta, _ in found])
    return {
        path: target.decode("utf-8", "surrogateescape")
        for (_, path), target in zip(found, targets, strict=True)
    }


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Follow a link as the file system does, also one that does not tell upper from lower case."""
    folded = {name.casefold(): target for name, target in links.items()}
    at = posixpath.dirname(path).split("/") if "/" in path else []
    left = links[path].split("/")[::-1]
    if links[path].startswith("/"):
        return True
    hops = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(part)
        if part.casefold().rstrip(". ") in (".git", "git~1"):
            return True
        target = folded.get("/".join(at).casefold())
        if target is None:
            continue
        hops += 1
        if target.startswith("/"):
            return True
        if hops > _MOST_HOPS:
            return False  # a circle leads nowhere
        at.pop()
        left += target.split("/")[::-1]
    return False
