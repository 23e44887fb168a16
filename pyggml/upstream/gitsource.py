"""A git repository somewhere else as a source: one commit's tree, read object by object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pyggml.errors import PyggmlError
from pyggml.git.pipe import piped
from pyggml.git.runner import Git, GitError, run_outside
from pyggml.upstream.progress import Progress
from pyggml.upstream.snapshot import EXECUTABLE, FILE, SYMLINK, Entry

_REPORT_EVERY = 256
_LINK_MODE = b"120000"
_MODES = {b"100644": FILE, b"100664": FILE, b"100755": EXECUTABLE}


def git_entries(url: str, commit: str, scratch: Path, report: Progress) -> Iterator[Entry]:
    """The files of `commit` in the repository at `url`, exactly as they are stored there.

    Submodules are left out. Nothing is converted: `git archive` would apply `export-ignore` and
    `export-subst` of the tree itself.

    Args:
        scratch: where a bare repository can be made for the transfer; whoever calls removes it.

    Raises:
        PyggmlError: the repository or the commit cannot be had.
    """
    git = fetch_commit(url, commit, scratch, report)
    listing = git.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
    with piped(git, "cat-file", "--batch") as (ask, answer):
        for number, line in enumerate(listing):
            fields, _, path = line.partition(b"\t")
            mode, kind, object_id = fields.split(b" ")
            if kind != b"blob":
                continue
            ask.write(object_id + b"\n")
            ask.flush()
            size = int(answer.readline().split(b" ")[2])
            if mode == _LINK_MODE:
                yield Entry(path, SYMLINK, target=answer.read(size))
            else:
                content = _Limited(answer, size)
                yield Entry(path, _MODES.get(mode, FILE), size, content=content)
                content.skip()
            answer.read(1)
            if number % _REPORT_EVERY == 0:
                report(f"importing commit {commit[:12]} ({number} of {len(listing)} files)", 0, None)


def fetch_commit(url: str, commit: str, scratch: Path, report: Progress) -> Git:
    """A repository in `scratch` that has `commit` from `url`: that commit alone, if the server allows it.

    Raises:
        PyggmlError: the repository cannot be reached or has no such commit.
    """
    run_outside(
        "init",
        "--quiet",
        "--bare",
        "--template=",
        "--initial-branch=main",
        "--object-format=sha1",
        str(scratch),
    )
    git = Git(scratch)
    # The user's own configuration is in force for the transfer alone; what it could do besides is off.
    for key, value in (("core.hooksPath", "/dev/null"), ("gc.auto", "0"), ("maintenance.auto", "false")):
        git.run("config", "--local", key, value)
    report(f"fetching {commit[:12]}", 0, None)
    into = f"--git-dir={scratch.absolute()}"
    options = (
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
    )
    try:
        run_outside(into, "fetch", *options, "--depth=1", "--", url, commit, user_config=True)
    except GitError:
        # Not every server hands out a commit by its id: then everything it shows, and the commit among it.
        try:
            run_outside(into, "fetch", *options, "--", url, "+refs/*:refs/all/*", user_config=True)
        except GitError as error:
            last = error.stderr.splitlines()[-1:] or ["git fetch failed"]
            raise PyggmlError(
                f"cannot fetch from the git repository of the pin: {last[0]}",
                f"Check the URL and the network; `git ls-remote {url}` must work.",
            ) from error
    if git.resolve(f"{commit}^{{commit}}") != commit:
        raise PyggmlError(
            f"the git repository {url} has no commit {commit}",
            "Check the commit id; it must be on a branch or tag.",
        )
    return git


class _Limited:
    """The next `size` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(wanted)
        self._left -= len(data)
        return data

    def skip(self) -> None:
        while self._left and self.read(1 << 20):
            pass
