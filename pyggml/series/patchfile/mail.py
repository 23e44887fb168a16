"""A patch file: author, date, message and diff, read by `git mailinfo` just as `git am` reads them."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.git.runner import run_outside

UNKNOWN_AUTHOR = ("unknown", "unknown@localhost")
UNKNOWN_DATE = "1577836800 +0000"


@dataclass(frozen=True)
class Identity:
    """Who wrote a commit, and when.

    Attributes:
        date: git's raw form, seconds since the epoch and offset: `1764374400 +0100`.
    """

    name: str
    email: str
    date: str

    def environment(self) -> dict[str, str]:
        """For `git commit-tree`: this author, and a fixed committer, so that commit ids are reproducible."""
        # Without the @, git does not take a small number for seconds.
        return {
            "GIT_AUTHOR_NAME": self.name,
            "GIT_AUTHOR_EMAIL": self.email,
            "GIT_AUTHOR_DATE": f"@{self.date}",
            "GIT_COMMITTER_NAME": "pyggml",
            "GIT_COMMITTER_EMAIL": "pyggml@users.noreply.github.com",
            "GIT_COMMITTER_DATE": f"@{self.date}",
        }


@dataclass(frozen=True)
class PatchMail:
    """The content of a patch file.

    Attributes:
        message: subject, blank line, body; UTF-8, cleaned up as `git commit` does.
        diff: the diff, byte for byte.
    """

    author: Identity
    message: str
    diff: bytes

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]


@dataclass(frozen=True)
class NamedPatch:
    """A patch to apply, and what to call it.

    Attributes:
        label: for messages, e.g. its path.
        title: what its name in a series is made of.
        strip: leading path components to drop.
        tree: the tree that it must give; empty if none is recorded.
    """

    label: str
    mail: PatchMail
    title: str = ""
    strip: int = 1
    tree: str = ""


def read_patch(data: bytes, name: str) -> PatchMail:
    """Read a patch file in git format.

    Args:
        data: the file's content.
        name: what to call it in messages.

    Raises:
        PyggmlError: it is empty, converted to CRLF, or holds no diff.
    """
    if not data.strip():
        raise PyggmlError(f"{name}: the patch file is empty", "Restore it (git checkout -- patches).")
    refuse_crlf(data, name)
    if not data.startswith(b"From "):
        # mailinfo skips to the first header. Without the envelope line it would take a leading blank line
        # for the end of the headers.
        data = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n" + data
    data = _in_utf8(data)
    with tempfile.TemporaryDirectory(prefix="pyggml-") as scratch:
        try:
            info = run_outside(
                "mailinfo",
                "-b",
                "--encoding=UTF-8",
                "--no-scissors",
                "msg",
                "diff",
                stdin=data,
                cwd=Path(scratch),
            )
        except GitError as error:
            raise PyggmlError(
                f"{name}: git cannot read it as a patch: {error.message}", error.hint
            ) from error
        body = (Path(scratch) / "msg").read_bytes()
        diff = (Path(scratch) / "diff").read_bytes()
    fields = dict(
        line.split(": ", 1) for line in info.decode("utf-8", "replace").splitlines() if ": " in line
    )
    subject = fields.get("Subject", "")
    if not diff.strip():
        raise PyggmlError(
            f"{name}: there is no diff in it: the file is truncated or empty",
            "Restore it (git checkout -- patches).",
        )
    message = clean_message(subject + "\n\n" + body.decode("utf-8", "replace"))
    if not message:
        raise PyggmlError(f"{name}: there is no subject in it", "Add a line `Subject: [PATCH] …`.")
    author = fields.get("Author") or fields.get("Email") or UNKNOWN_AUTHOR[0]
    date = raw_date(fields.get("Date", ""))
    return PatchMail(Identity(author, fields.get("Email") or UNKNOWN_AUTHOR[1], date), message, diff)


def _in_utf8(data: bytes) -> bytes:
    """The file with its message in UTF-8; a message that is not UTF-8 and declares no encoding is read as Latin-1."""
    match = re.search(rb"^(---$|diff )", data, re.MULTILINE)
    head, rest = (data[: match.start()], data[match.start() :]) if match else (data, b"")
    try:
        head.decode("utf-8")
    except UnicodeDecodeError:
        if not re.search(rb"^Content-Type:.*charset=", head, re.MULTILINE | re.IGNORECASE):
            return head.decode("latin-1").encode("utf-8") + rest
    return data


def refuse_crlf(data: bytes, name: str) -> None:
    """Raise if the file's own lines (not the patched content) end in CRLF."""
    if re.search(rb"^(diff --git |--- |\+\+\+ |@@ -)[^\n]*\r$", data, re.MULTILINE) and re.search(
        rb"^(From |From:|Subject:|---|diff --git )[^\n]*\r$", data, re.MULTILINE
    ):
        raise PyggmlError(
            f"{name}: its lines end in CRLF: the file was converted by an editor or by core.autocrlf",
            "Restore it with `git -c core.autocrlf=false checkout -- patches`, or run dos2unix on it.",
        )


def clean_message(text: str) -> str:
    """As `git stripspace`: no trailing blanks, no blank lines at either end, never two blank lines in a row."""
    lines = [line.rstrip() for line in text.split("\n")]
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    return "\n".join(kept) + "\n" if kept else ""


def raw_date(text: str) -> str:
    """git's raw date of an RFC 2822 date; a fixed date if `text` is not one."""
    try:
        when = parsedate_to_datetime(text)
        seconds = int(when.timestamp())
    except (ValueError, TypeError, OverflowError):
        return UNKNOWN_DATE
    if seconds < 0:
        return UNKNOWN_DATE
    offset = when.strftime("%z") or "+0000"
    return f"{seconds} {offset[:5]}"


def mail_date(raw: str) -> str:
    """The RFC 2822 date of git's raw date."""
    from datetime import UTC, datetime, timedelta, timezone

    seconds, offset = raw.split()
    minutes = int(offset[1:3]) * 60 + int(offset[3:5])
    zone = timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes))
    return format_datetime(datetime.fromtimestamp(int(seconds), UTC).astimezone(zone))


def split_mailbox(data: bytes) -> list[bytes]:
    """The messages of a file that may be an mbox of several patches (`git format-patch --stdout`)."""
    starts = [
        match.start()
        for match in re.finditer(rb"^From [0-9a-f]{40} Mon Sep 17 00:00:00 2001$", data, re.MULTILINE)
    ]
    if len(starts) < 2:
        return [data]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
