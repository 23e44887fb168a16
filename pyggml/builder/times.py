"""Times of source files that follow their contents, so that only what really differs is compiled again.

Ninja compares times. A patch that is taken off and put on again leaves the same bytes with a new time, and
everything that includes them would be compiled again. So each build directory remembers, when a build
begins, the content (git blob id) and time of every tracked file. When the next one begins, a file with the
remembered content gets the remembered time back, and one with another content is made newer than all that
was compiled. Both are sound because the remembered pair is what Ninja saw when it last looked.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from pyggml.files import write_atomic
from pyggml.git import Git

FILE = "pyggml-sources.json"
_LOG = ".ninja_log"


def follow_contents(git: Git, directory: Path) -> int:
    """Set the times of the tracked files for the build in `directory`, and remember them there.

    The caller sees to it that nothing else changes the tree or builds in `directory` meanwhile.

    Returns: how many files got their old time back.
    """
    assert git.work_tree is not None  # noqa: S101
    before = _read(directory)
    log = directory / _LOG
    compiled = log.stat().st_mtime_ns if log.is_file() else 0
    now: dict[str, list[str | int]] = {}
    restored = 0
    for path, blob in _contents(git).items():
        target = git.work_tree / path
        if target.is_symlink() or not target.is_file():
            continue
        modified = target.stat().st_mtime_ns
        old = before.get(path)
        wanted = modified
        if old is not None and old[0] == blob:
            wanted = int(old[1])
            restored += wanted != modified
        elif old is not None and modified <= compiled:
            wanted = time.time_ns()
        if wanted != modified:
            os.utime(target, ns=(wanted, wanted))
        now[path] = [blob, wanted]
    if now != before:
        write_atomic(directory / FILE, json.dumps(now, separators=(",", ":")).encode())
    if restored:
        git.status("update-index", "-q", "--refresh")
    return restored


def changed_since(git: Git, directory: Path) -> int:
    """How many tracked files differ from what the last build in `directory` saw; new ones and lost ones count."""
    assert git.work_tree is not None  # noqa: S101
    before, now = _read(directory), _contents(git)
    differing = (path for path, blob in now.items() if before.get(path, ("",))[0] != blob)
    # Times of symbolic links are not followed.
    return sum(not (git.work_tree / path).is_symlink() for path in differing) + len(
        before.keys() - now.keys()
    )


def _read(directory: Path) -> dict[str, list[str | int]]:
    try:
        found = json.loads((directory / FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _contents(git: Git) -> dict[str, str]:
    """The blob id of every tracked file as it lies in the work tree."""
    found: dict[str, str] = {}
    for row in git.run("ls-files", "--stage", "-z").decode("utf-8", "surrogateescape").split("\0"):
        if row:
            meta, path = row.split("\t", 1)
            found[path] = meta.split(" ")[1]
    git.status("update-index", "-q", "--refresh")
    edited = git.run("diff-files", "--name-only", "-z").decode("utf-8", "surrogateescape").split("\0")
    for path in edited:
        if path and git.work_tree is not None and (git.work_tree / path).is_file():
            found[path] = git.text("hash-object", "--no-filters", "--", path)
    return found
