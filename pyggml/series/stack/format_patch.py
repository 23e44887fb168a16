"""A commit as a patch file, checked by reading it back."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.git.runner import DIFF_FORMAT
from pyggml.series.patchfile.mail import PatchMail, read_mail, read_patch, split_mailbox
from pyggml.series.stack.commits import Commit

_FORMAT = (
    "format-patch",
    "--zero-commit",
    "--no-signature",
    "--no-thread",
    "--no-attach",
    "--no-notes",
    "--no-cover-letter",
    "--no-base",
    "--no-add-header",
    "--no-to",
    "--no-cc",
    "--no-signoff",
    "--encode-email-headers",
    "--subject-prefix=PATCH",
    "--find-renames",
    "--stat=78,60",
    *DIFF_FORMAT,
)


def format_patch(git: Git, commit: Commit, *, number: int = 0, total: int = 0) -> bytes:
    """The patch file of one commit: the same bytes on every machine and with every configuration.

    Args:
        number: with `total`, the subject is numbered `[PATCH number/total]`; without, it is `[PATCH]`.

    Raises:
        PyggmlError: `git am` would not get the same message back, e.g. because of a line `---` in it.
    """
    # As `--numbered` has it.
    numbered = (f"--subject-prefix=PATCH {number:0{len(str(total))}}/{total}",) if total else ()
    for guard in ((), ("--from=pyggml <pyggml@users.noreply.github.com>",)):
        data = git.run(*_FORMAT, "--stdout", "--no-numbered", *numbered, *guard, "-1", commit.id)
        if not data:
            raise PyggmlError(
                f"{commit.subject!r}: the commit changes nothing", "Drop it, or give it a change."
            )
        if commit.is_made_of(read_patch(data, commit.subject)):
            _refuse_other_readings(data, commit)
            return data
    data = git.run(*_FORMAT, "--stdout", "--no-numbered", *numbered, "-1", commit.id)
    back = read_patch(data, commit.subject)
    raise PyggmlError(
        f"{commit.subject!r}: its message would not survive `git am`: {_difference(back, commit)}",
        "Reword that line (git commit --amend in the vendored tree) and run the command again.",
    )


def format_chain(git: Git, below: str, top: str, *, numbered: bool = False) -> list[bytes]:
    """What git writes for the commits above `below` up to `top`, unchecked; nothing for those that change nothing."""
    with tempfile.TemporaryDirectory(prefix="pyggml-") as scratch:
        number = "--numbered" if numbered else "--no-numbered"
        git.run(*_FORMAT, number, "-o", scratch, f"{below}..{top}")
        names = sorted(Path(scratch).iterdir(), key=lambda path: int(path.name.partition("-")[0]))
        return [path.read_bytes() for path in names]


def format_patches(
    git: Git,
    commits: Sequence[Commit],
    *,
    numbered: bool = False,
    chain: Sequence[bytes] | None = None,
) -> list[bytes]:
    """The patch files of a chain of commits, as `format_patch` gives them, by one process if all of them are plain.

    Args:
        numbered: the subjects are numbered `[PATCH k/n]`.
        chain: what `format_chain` gives for these very commits, if it is there already.

    Raises:
        PyggmlError: as `format_patch`.
    """
    total = len(commits) if numbered else 0
    made = list(chain or ())
    if chain is None and len(commits) > 1 and all(b.parent == a.id for a, b in pairwise(commits)):
        made = format_chain(git, commits[0].parent, commits[-1].id, numbered=numbered)
    # A commit that changes nothing has no file.
    if len(made) != len(commits):
        made = [b""] * len(commits)
    return [
        data
        if data and commit.is_made_of(read_patch(data, commit.subject)) and has_one_reading(commit)
        else format_patch(git, commit, number=place, total=total)
        for place, (commit, data) in enumerate(zip(commits, made, strict=True), 1)
    ]


def has_one_reading(commit: Commit | PatchMail) -> bool:
    """Whether no tool takes a line of the message for a boundary of mails or for scissors."""
    return "\nFrom " not in commit.message and not re.search(r">8|8<|>%|%<", commit.message)


def _refuse_other_readings(data: bytes, commit: Commit) -> None:
    """Refuse a message that would be another one for `git am` with a mailbox, or with `--scissors`."""
    cut_at = r"From .*"
    again = split_mailbox(data, commit.subject) if "\nFrom " in commit.message else [data]
    if len(again) == 1:
        if not re.search(r">8|8<|>%|%<", commit.message):
            return
        cut_at = r".*(>8|8<|>%|%<).*"
        if commit.is_made_of(read_mail(data, commit.subject, scissors=True)):
            return
    line = next((line for line in commit.message.splitlines() if re.fullmatch(cut_at, line)), "")
    raise PyggmlError(
        f"{commit.subject!r}: its message would not survive `git am`: it would be cut at the line {line!r}",
        "Reword that line (git commit --amend in the vendored tree) and run the command again.",
    )


def _difference(mail: PatchMail, commit: Commit) -> str:
    if mail.author != commit.author:
        return f"the author comes back as {mail.author.name} <{mail.author.email}> {mail.author.date}"
    ours, theirs = commit.message.splitlines(), mail.message.splitlines()
    for index, line in enumerate(ours):
        if index >= len(theirs) or theirs[index] != line:
            return f"line {index + 1}, {line!r}, is lost or changed"
    return "lines are added at its end"
