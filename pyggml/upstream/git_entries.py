"""Reads a commit of another git repository as a source, object by object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pyggml.errors import PyggmlError
from pyggml.git.pipe import piped
from pyggml.git.runner import Git, GitError, run_outside
from pyggml.upstream.progress import Progress
from pyggml.upstream.snapshot import EXECUTABLE, FILE, SYMLINK, SourceEntry

_REPORT_EVERY = 256
_LINK_MODE = b"120000"
_MODES = {b"100644": FILE, b"100664": FILE, b"100755": EXECUTABLE}


def git_entries(url: str, commit: str, scratch: Path, report: Progress) -> Iterator[SourceEntry]:
    """The files of `commit` in the repository at `url`, exactly as they are stored there.

    Submodules are left out. Nothing is converted, unlike with `git archive`, which would apply the tree's own
    `export-ignore` and `export-subst`.

    Args:
        scratch: where to create a bare repository for the transfer; the caller removes it.

    Raises:
        PyggmlError: the repository cannot be reached or has no such commit.
    """
    git = fetch_commit(url, commit, scratch, report)
    listing = git.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
    with piped(git, "cat-file", "--batch") as (requests, replies):
        for number, line in enumerate(listing):
            fields, _, path = line.partition(b"\t")
            mode, kind, object_id = fields.split(b" ")
            if kind != b"blob":
                continue
            requests.write(object_id + b"\n")
            requests.flush()
            size = int(replies.readline().split(b" ")[2])
            if mode == _LINK_MODE:
                yield SourceEntry(path, SYMLINK, target=replies.read(size))
            else:
                content = _LimitedReader(replies, size)
                yield SourceEntry(path, _MODES.get(mode, FILE), size, content=content)
                content.skip()
            replies.read(1)
            if number % _REPORT_EVERY == 0:
                report(f"importing commit {commit[:12]} ({number} of {len(listing)} files)", 0, None)


def fetch_commit(url: str, commit: str, scratch: Path, report: Progress) -> Git:
    """A repository in `scratch` with `commit` from `url`: only that commit, if the server allows it.

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
    # The user's own configuration applies, for the sake of the transfer; switch off its side effects.
    for key, value in (("core.hooksPath", "/dev/null"), ("gc.auto", "0"), ("maintenance.auto", "false")):
        git.run("config", "--local", key, value)
    report(f"fetching {commit[:12]}", 0, None)
    git_dir = f"--git-dir={scratch.absolute()}"
    options = (
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
    )
    try:
        run_outside(git_dir, "fetch", *options, "--depth=1", "--", url, commit, user_config=True)
    except GitError:
        # Not every server allows fetching a commit by its id; then fetch all refs, and the commit with them.
        try:
            run_outside(git_dir, "fetch", *options, "--", url, "+refs/*:refs/all/*", user_config=True)
        except GitError as error:
            reason = error.stderr.splitlines()[-1:] or ["git fetch failed"]
            raise PyggmlError(
                f"cannot fetch from the git repository of the pin: {reason[0]}",
                f"Check the URL and the network; `git ls-remote {url}` must work.",
            ) from error
    if git.resolve(f"{commit}^{{commit}}") != commit:
        raise PyggmlError(
            f"the git repository {url} has no commit {commit}",
            "Check the commit id; it must be on a branch or tag.",
        )
    return git


class _LimitedReader:
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
