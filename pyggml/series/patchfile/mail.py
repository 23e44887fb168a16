"""A patch file: author, date, message and diff, read by `git mailinfo` just as `git am` reads them."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import GitError
from pyggml.git.runner import run_outside
from pyggml.series.patchfile.plain_mail import read_plain

UNKNOWN_AUTHOR = ("unknown", "unknown@localhost")
UNKNOWN_DATE = "1577836800 +0000"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# As git writes it; -0000 would say that the zone is not known.
_DATE = re.compile(
    r"[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) ([12]\d{3}) (\d\d):(\d\d):(\d\d) (?!-0000)([+-]\d\d)([0-5]\d)",
    re.ASCII,
)
_RAW_DATE = re.compile(r"\d{1,11} [+-](?:[01]\d|2[0-3])[0-5]\d")
_CRLF_HEADERS = re.compile(
    rb"^(?:diff --git [^\n]*\r$|--- [^\n]*\r\n\+\+\+ [^\n]*\r\n@@ -[\d,]+ \+[\d,]+ @@[^\n]*\r$)", re.MULTILINE
)


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
            "GIT_COMMITTER_NAME": COMMITTER.name,
            "GIT_COMMITTER_EMAIL": COMMITTER.email,
            "GIT_COMMITTER_DATE": f"@{self.date}",
        }


COMMITTER = Identity("pyggml", "pyggml@users.noreply.github.com", "0 +0000")
"""Who commits, whoever the author is; the date is the author's."""


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
        strip: leading path components to drop; None to find that out from the patch and the tree.
        usual_strip: what to take if neither says; None to refuse the patch then.
        directory: what to put in front of every path; empty for the source's own root.
        tree: the tree that it must give; empty if none is recorded.
    """

    label: str
    mail: PatchMail
    title: str = ""
    strip: int | None = 1
    usual_strip: int | None = None
    tree: str = ""
    directory: str = ""


def read_patch(data: bytes, name: str) -> PatchMail:
    """Read a patch file of a series.

    Args:
        data: the file's content.
        name: what to call it in messages.

    Raises:
        PyggmlError: it is empty, converted to CRLF, or holds no diff.
    """
    if not data.strip():
        raise PyggmlError(f"{name}: the patch file is empty", "Restore it (git checkout -- patches).")
    refuse_crlf(data, name)
    mail = read_mail(data, name)
    if not mail.diff.strip():
        raise PyggmlError(
            f"{name}: there is no diff in it: the file is truncated or empty",
            "Restore it (git checkout -- patches).",
        )
    return mail


def read_mail(data: bytes, name: str, *, scissors: bool = False) -> PatchMail:
    """Read one mail; its diff may be empty.

    The lines of a diff in base64 or quoted-printable end as the mail standard wants it, in CRLF. If even the diff's
    own lines do, these line ends are the mail's and not the patch's.

    Args:
        scissors: leave out what stands above a scissors line (`-- >8 --`), as `git am --scissors`.

    Raises:
        PyggmlError: git cannot read it, or it has no subject.
    """
    if not data.startswith(b"From "):
        # mailinfo skips to the first header. Without the envelope line it would take a leading blank line
        # for the end of the headers.
        data = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n" + data
    if not scissors and (plain := read_plain(data)) is not None:
        message = clean_message(f"{plain.subject}\n\n{plain.body}")
        return PatchMail(Identity(plain.name, plain.email, raw_date(plain.date)), message, plain.diff)
    data = _in_utf8(data)
    cut = "--scissors" if scissors else "--no-scissors"
    info, body, diff = _mailinfo(data, name, cut)
    if has_crlf_headers(diff):
        info, body, diff = _mailinfo(data, name, cut, "--quoted-cr=strip")
    fields = dict(line.split(": ", 1) for line in info.decode("utf-8", "replace").split("\n") if ": " in line)
    message = clean_message(fields.get("Subject", "") + "\n\n" + body.decode("utf-8", "replace"))
    if not message:
        raise PyggmlError(f"{name}: there is no subject in it", "Add a line `Subject: [PATCH] …`.")
    author = fields.get("Author") or fields.get("Email") or UNKNOWN_AUTHOR[0]
    date = raw_date(fields.get("Date", ""))
    return PatchMail(Identity(author, fields.get("Email") or UNKNOWN_AUTHOR[1], date), message, diff)


def _mailinfo(data: bytes, name: str, *options: str) -> tuple[bytes, bytes, bytes]:
    """What `git mailinfo` prints, the message and the diff."""
    with tempfile.TemporaryDirectory(prefix="pyggml-") as scratch:
        # Not with --encoding: git then converts nothing. It takes the pinned i18n.commitEncoding.
        command = ("mailinfo", "-b", *options, "msg", "diff")
        try:
            info = run_outside(*command, stdin=data, cwd=Path(scratch))
        except GitError as error:
            raise PyggmlError(
                f"{name}: git cannot read it as a patch: {error.message}", error.hint
            ) from error
        return info, (Path(scratch) / "msg").read_bytes(), (Path(scratch) / "diff").read_bytes()


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


def has_crlf_headers(data: bytes) -> bool:
    """Whether the lines of the diff itself end in CRLF. In a patch of a file with CRLF only the content's lines do."""
    return _CRLF_HEADERS.search(data) is not None


def refuse_crlf(data: bytes, name: str) -> None:
    """Raise if the file's own lines (not the patched content) end in CRLF."""
    if has_crlf_headers(data):
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
    """git's raw date of an RFC 2822 date, or of any other that git reads; a fixed date if `text` is none."""
    try:
        when = _parse_date(text)
        seconds = int(when.timestamp())
    except (ValueError, TypeError, OverflowError):
        return _date_by_git(text) or UNKNOWN_DATE
    if seconds < 0:
        return UNKNOWN_DATE
    offset = when.strftime("%z") or "+0000"
    return f"{seconds} {offset[:5]}"


def _parse_date(text: str) -> datetime:
    match = _DATE.fullmatch(text)
    if match is None or match[2] not in _MONTHS:
        # Importing it takes longer than reading the dates of a series.
        from email.utils import parsedate_to_datetime

        return parsedate_to_datetime(text)
    day, year, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 6))
    zone = timezone(timedelta(hours=int(match[7]), minutes=int(match[7][0] + match[8])))
    return datetime(year, _MONTHS.index(match[2]) + 1, day, hour, minute, second, tzinfo=zone)


def _date_by_git(text: str) -> str | None:
    """What `git am` makes of a date such as `2026-11-02 10:01:00 +0100` or `@1793610060 +0100`; None of any other."""
    if not re.match(r"@?\d{4}", text):
        return None
    who = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@y.z", "GIT_AUTHOR_DATE": text, "TZ": "UTC"}
    try:
        identity = run_outside("var", "GIT_AUTHOR_IDENT", env=who).decode()
    except GitError:
        return None
    raw = " ".join(identity.split()[-2:])
    return raw if _RAW_DATE.fullmatch(raw) else None


def mail_date(raw: str) -> str:
    """The RFC 2822 date of git's raw date."""
    seconds, offset = raw.split()
    minutes = int(offset[1:3]) * 60 + int(offset[3:5])
    zone = timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes))
    when = datetime.fromtimestamp(int(seconds), UTC).astimezone(zone)
    return f"{_DAYS[when.weekday()]}, {when.day:02d} {_MONTHS[when.month - 1]} {when:%Y %H:%M:%S %z}"


def split_mailbox(data: bytes, name: str, *, mboxrd: bool = False) -> list[bytes]:
    """The mails of a mailbox, as `git mailsplit` finds them; a file that is no mailbox is one mail.

    Args:
        mboxrd: lines that begin with `>From ` lose one `>`, as with `git am --patch-format=mboxrd`.

    Raises:
        PyggmlError: git cannot split it.
    """
    with tempfile.TemporaryDirectory(prefix="pyggml-") as scratch:
        place = Path(scratch)
        (place / "box").write_bytes(data)
        (place / "mails").mkdir()
        quoting = ("--mboxrd",) if mboxrd else ()
        try:
            run_outside("mailsplit", "-b", "--keep-cr", "-d8", *quoting, "-omails", "box", cwd=place)
        except GitError as error:
            raise PyggmlError(
                f"{name}: git cannot read it as a mailbox: {error.message}", error.hint
            ) from error
        return [path.read_bytes() for path in sorted((place / "mails").iterdir())]
