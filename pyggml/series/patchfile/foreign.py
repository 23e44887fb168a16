"""Patches from other tools: `git format-patch` files and mailboxes, quilt series, directories of patches."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import text_between, unread_diff
from pyggml.series.patchfile.mail import (
    UNKNOWN_AUTHOR,
    UNKNOWN_DATE,
    Identity,
    NamedPatch,
    PatchMail,
    clean_message,
    has_crlf_headers,
    raw_date,
    read_mail,
    split_mailbox,
)

_DIFF_START = re.compile(rb"^(diff --git |diff -|Index: |--- [^\n]*\n\+\+\+ |\*\*\* )", re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):[ \t]?(.*)")
_ADDRESS = re.compile(r"\s*\"?([^<\"]*?)\"?\s*<([^>]+)>")
_MAIL_HEADER = re.compile(
    rb"(?:From|Subject|Date|Message-ID|To|Cc|Received|Return-Path|Delivered-To|MIME-Version|Content-Type|X-[\w-]+|"
    rb"Content-Transfer-Encoding|Reply-To|Sender|List-Id|DKIM-Signature|ARC-Seal):",
    re.IGNORECASE,
)
_ENVELOPE = re.compile(r"From .*\d.\d\d:\d\d\s*(\d{2,9})[^:]*", re.DOTALL)
_HG = b"# HG changeset patch"
# `stg export`: the subject, a blank line, the fields. Source: git's builtin/am.c, `detect_patch_format`.
_STGIT = re.compile(rb"(?P<subject>\S[^\n]*)\n\n(?P<fields>(?:(?:From|Author|Date): [^\n]*\n)+)")
_COVER = re.compile(rb"^Subject:[^\n]*\[[^\]\n]*\b0+/\d+[^\]\n]*\]", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """How patches of other tools are to be read, as far as the user says so; the names are those of `git am`.

    Attributes:
        strip: leading path components to drop (`-p`); None to find out.
        scissors: leave out what stands above a scissors line in a message.
        directory: what to put in front of every path (`--directory`), relative to the source.
        mboxrd: take one `>` off the lines of a mailbox that begin with `>From `.
    """

    strip: int | None = None
    scissors: bool = False
    mboxrd: bool = False
    directory: str = ""


def read_foreign(paths: tuple[Path, ...], reading: Reading | None = None) -> list[NamedPatch]:
    """Every patch in `paths`, in the order of application.

    Raises:
        PyggmlError: a directory without patches, a patch that a series file names but that is missing or
            outside its directory, a file that is no patch, or a mail of which it is not certain what is its
            message and what is its diff.
    """
    return [patch for path in paths for patch in _read_path(path, reading or Reading())]


def _read_path(path: Path, reading: Reading) -> list[NamedPatch]:
    listing = path / "series" if path.is_dir() else path
    if listing.name == "series" and listing.is_file():
        return _read_quilt(listing, reading)
    return _read_directory(path, reading) if path.is_dir() else _read_file(path, reading)


def _read_directory(directory: Path, reading: Reading) -> list[NamedPatch]:
    names = sorted(p for p in directory.iterdir() if p.suffix in (".patch", ".diff") and p.is_file())
    names = [p for p in names if not re.match(r"0+-cover-letter", p.name)]
    if not names:
        raise PyggmlError(
            f"{directory}: no patches and no `series` file in it", "Name the patch files themselves."
        )
    return [patch for path in names for patch in _read_file(path, reading)]


def _read_quilt(listing: Path, reading: Reading) -> list[NamedPatch]:
    """quilt's series file: one name per line, optional `-pN`, comments from `#` (quilt(1), "series")."""
    patches: list[NamedPatch] = []
    root = listing.parent.resolve()
    try:
        text = listing.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise PyggmlError(f"{listing}: cannot be read: {error.strerror}") from error
    for line in text.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        strip = reading.strip
        for option in words[1:]:
            match = re.fullmatch(r"-p(\d+|ab)", option)
            if not match:
                raise PyggmlError(
                    f"{listing}: {words[0]}: option {option} is not supported",
                    "Only -p0, -p1, -p2 … and -pab are supported.",
                )
            strip = 1 if match[1] == "ab" else int(match[1])
        path = listing.parent / words[0]
        if not path.resolve().is_relative_to(root):
            raise PyggmlError(
                f"{listing}: {words[0]} is outside its directory", "Do not import it: the series is hostile."
            )
        if not path.is_file():
            raise PyggmlError(
                f"{listing}: {words[0]} is listed but missing", "Restore it, or remove its line."
            )
        patches += _read_file(path, replace(reading, strip=strip), quilt=True)
    if not patches:
        raise PyggmlError(f"{listing}: no patches are listed", "Name the patch files themselves.")
    return patches


def _read_file(path: Path, reading: Reading, *, quilt: bool = False) -> list[NamedPatch]:
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    except OSError as error:
        raise PyggmlError(f"{path}: cannot be read: {error.strerror}") from error
    if not data.strip():
        raise PyggmlError(f"{path}: the patch file is empty", "Leave it out.")
    if data.split(b"\n", 1)[0].endswith(b"\r") or has_crlf_headers(data):
        # The whole file was converted; `git am` takes these line ends off, too.
        data = data.replace(b"\r\n", b"\n")
    converted = [] if quilt and not data.startswith(_HG) else _converted(data)
    is_box = data.startswith(b"From ")
    mails = converted or (split_mailbox(data, str(path), mboxrd=reading.mboxrd) if is_box else [data])
    patches = []
    for number, mail in enumerate(mails, 1):
        label = str(path) if len(mails) == 1 else f"{path}, mail {number}"
        is_mail = bool(converted) or len(mails) > 1 or _is_mail(mail)
        read = _read_mail(mail, label, reading) if is_mail else _read_dep3(mail, path)
        if not read.diff.strip():
            if len(mails) > 1 and _COVER.search(mail.split(b"\n\n", 1)[0]):
                continue
            raise PyggmlError(
                f"{label}: there is no diff in it ({read.subject})",
                "It is not a patch, or it is truncated: leave it out.",
            )
        _refuse_doubtful_diff(read, label, strict=is_mail and not quilt)
        title = path.name if len(mails) == 1 else read.subject
        patches.append(
            NamedPatch(label, read, title, reading.strip, 1 if quilt else None, directory=reading.directory)
        )
    return patches


def _converted(data: bytes) -> list[bytes]:
    """What `hg export` or StGit wrote, as mails without an envelope; nothing for any other file.

    Mercurial's time zone is in seconds west of UTC. Source: git's builtin/am.c, `hg_patch_to_mail` and
    `stgit_patch_to_mail`.
    """
    if not data.startswith(_HG):
        match = _STGIT.match(data)
        if match is None:
            return []
        fields = match["fields"].replace(b"Author:", b"From:")
        return [b"%bSubject: %b\n%b" % (fields, match["subject"], data[match.end() :])]
    mails = []
    for part in re.split(rb"^(?=%b$)" % _HG, data, flags=re.MULTILINE)[1:]:
        lines = part.split(b"\n")
        end = next((n for n, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
        users = [line[7:] for line in lines[:end] if line.startswith(b"# User ")]
        unknown = b" <%b>" % UNKNOWN_AUTHOR[1].encode()
        headers = [b"From: " + user + (b"" if b"@" in user or b"<" in user else unknown) for user in users]
        for date in re.finditer(rb"^# Date (\d+) (-?)(\d+)$", b"\n".join(lines[:end]), re.MULTILINE):
            hours, minutes = divmod(int(date[3]) // 60, 60)
            headers.append(b"Date: @%b %b%02d%02d" % (date[1], b"+" if date[2] else b"-", hours, minutes))
        mails.append(b"\n".join([*headers, b"", *lines[end:]]))
    return mails


def _is_mail(data: bytes) -> bool:
    """Whether a file is a mail: headers of mail, among them the subject. DEP-3 has some of them, too."""
    first = data.split(b"\n", 1)[0]
    head = data.split(b"\n\n", 1)[0]
    starts = re.match(rb"From ", first) or _MAIL_HEADER.match(first)
    if re.match(rb"From [0-9a-f]{40} |From:|Subject:", data):
        return re.search(rb"^Subject:", data, re.MULTILINE) is not None
    return bool(starts and re.search(rb"^Subject:", head, re.MULTILINE | re.IGNORECASE))


def _read_mail(data: bytes, label: str, reading: Reading) -> PatchMail:
    mail = read_mail(data, label, scissors=reading.scissors)
    # git's marks of scissors (mailinfo.c, `is_scissors_line`); only with one of them there is a second reading.
    if not reading.scissors and re.search(r">8|8<|>%|%<", mail.message):
        cut = read_mail(data, label, scissors=True)
        if cut != mail:
            raise PyggmlError(
                f"{label}: its message has a scissors line, such as `-- >8 --`",
                "To leave out what stands above it, import with --scissors; to keep all, take that line out.",
            )
    return PatchMail(mail.author, _protected(mail.message), mail.diff)


def _refuse_doubtful_diff(mail: PatchMail, label: str, *, strict: bool) -> None:
    """Refuse a diff that stands in the words about the change: `git am` and `patch` apply it like the rest.

    A diff that only one of them reads is refused, too; the other leaves it out without a word.

    A rule `---` ends the message, so a diff before it is in the message.

    Args:
        strict: refuse any text between diffs, too. Files of quilt have all kinds of it, and there the user's own
            tool applied every diff.
    """
    try:
        unread, between = unread_diff(mail.diff), text_between(mail.diff)
    except PyggmlError as error:
        raise PyggmlError(f"{label}: {error.message}", error.hint) from error
    if unread:
        raise PyggmlError(
            f"{label}: it has {unread}, and only unified diffs are read",
            "Make it again with diff -u, git diff or git format-patch.",
        )
    rule = any(re.fullmatch(rb"---\s*", line) for line in between)
    if between and (strict or (rule and not re.match(rb"\s*---\s*\n", mail.diff))):
        line = between[0].decode("utf-8", "replace").strip()
        raise PyggmlError(
            f"{label}: there is text between its diffs ({line[:60]!r}), so one of them may only be quoted",
            "Indent the quoted diff. If all of them are meant, put each into a file of its own.",
        )


def _read_dep3(data: bytes, path: Path) -> PatchMail:
    """A quilt patch: free text, often with the fields of DEP-3, then a diff.

    Source: Debian Enhancement Proposal 3, "Patch Tagging Guidelines".
    """
    match = _DIFF_START.search(data)
    if not match:
        raise PyggmlError(
            f"{path}: there is no diff in it", "It is not a patch, or it is truncated: leave it out."
        )
    head, diff = data[: match.start()], data[match.start() :]
    if re.search(rb"^---\s*$", head, re.MULTILINE):
        # As in a mail, the rule that ends the message stays with the diff.
        diff = b"---\n" + diff
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        text = head.decode("latin-1")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if field := _FIELD.fullmatch(line):
            fields.setdefault(field[1].lower(), field[2].strip())
    subject = _without_tags(fields.get("description", "")) or _without_tags(fields.get("subject", ""))
    subject = subject or re.sub(r"\.(patch|diff)$", "", path.name)
    who = _ADDRESS.match(fields.get("author") or fields.get("from") or "")
    name, email = (who[1].strip(), who[2].strip()) if who else UNKNOWN_AUTHOR
    date = raw_date(fields.get("date", ""))
    if date == UNKNOWN_DATE and re.fullmatch(r"\d{4}-\d\d-\d\d", fields.get("last-update", "")):
        date = _midnight(fields["last-update"])
    body = text.strip().removesuffix("---").strip()
    message = clean_message(" ".join(subject.split()) + "\n\n" + body)
    return PatchMail(Identity(name or email, email, date), _protected(message), diff)


def _without_tags(subject: str) -> str:
    """The subject without the parts that `git am` removes, such as `Re: [PATCH 2/3]`.

    Source: git's mailinfo.c, `cleanup_subject` with `-b`.
    """
    head = re.match(r"(?:[\s:]|re:|\[[^\]]*\])*", subject, re.IGNORECASE)
    end = head.end() if head else 0
    kept = [tag for tag in re.findall(r"\[[^\]]*\]", subject[:end]) if "PATCH" not in tag]
    return " ".join([*kept, subject[end:]]).strip()


def _midnight(day: str) -> str:
    from datetime import UTC, datetime

    try:
        when = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return UNKNOWN_DATE
    return f"{int(when.timestamp())} +0000" if when.timestamp() >= 0 else UNKNOWN_DATE


def _protected(message: str) -> str:
    """The message, with every line indented that git would take for the start of the diff or of another mail.

    Source: git's mailinfo.c, `patchbreak`, and mailsplit.c, `is_from_line`.
    """
    lines = message.split("\n")
    for index, line in enumerate(lines):
        envelope = _ENVELOPE.fullmatch(line)
        if index and (re.match(r"---(\s|$)|diff -|Index: ", line) or (envelope and int(envelope[1]) > 90)):
            lines[index] = f" {line}"
    return clean_message("\n".join(lines))
