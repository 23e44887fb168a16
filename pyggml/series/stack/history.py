"""The commits of the vendored branch, read through GitPython."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.series.patchfile.mail import Identity, clean_message
from pyggml.series.stack.commits import Commit

MOST_COMMITS = 10_000


def read_chain(git: Git, base: str, head: str) -> tuple[Commit, ...]:
    """The commits from `base` (exclusive) to `head`, oldest first.

    Raises:
        PyggmlError: there is a merge among them, or `head` does not descend from `base`.
    """
    from pyggml.git.objects import open_repo

    commits: list[Commit] = []
    with open_repo(git) as repo:
        at = head
        while at != base:
            raw = repo.commit(at)
            if len(raw.parents) > 1:
                raise PyggmlError(
                    f"{git.work_tree}: commit {at[:12]} is a merge; a series is a straight line",
                    "Rebase without merges (git rebase), then run the command again.",
                )
            if not raw.parents or len(commits) > MOST_COMMITS:
                raise PyggmlError(
                    f"{git.work_tree}: HEAD does not descend from the pin's commit {base[:12]}",
                    f"Go back with: git -C {git.work_tree} reset --keep {base[:12]}  (the reflog keeps your commits)",
                )
            message = raw.message
            if isinstance(message, bytes):
                message = message.decode("utf-8", "replace")
            author = Identity(
                str(raw.author.name or "unknown"),
                str(raw.author.email or "unknown@localhost"),
                f"{raw.authored_date} {_offset(int(raw.author_tz_offset))}",
            )
            parent = raw.parents[0].hexsha
            commits.append(Commit(at, raw.tree.hexsha, parent, author, clean_message(message)))
            at = parent
    return tuple(reversed(commits))


def read_commit(git: Git, commit: str) -> Commit:
    """One commit that has one parent."""
    return read_chain(git, git.text("rev-parse", f"{commit}^"), commit)[0]


def _offset(seconds_west: int) -> str:
    """git's `+0100` of GitPython's offset, which counts seconds west of UTC."""
    minutes = -seconds_west // 60
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
