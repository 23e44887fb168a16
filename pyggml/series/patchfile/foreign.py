"""Patches from other tools: `git format-patch` files and mailboxes, quilt series, directories of patches."""

from __future__ import annotations

import re
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.mail import (
    UNKNOWN_AUTHOR,
    UNKNOWN_DATE,
    Identity,
    NamedPatch,
    PatchMail,
    clean_message,
    raw_date,
    read_patch,
    refuse_crlf,
    split_mailbox,
)

_DIFF_START = re.compile(rb"^(diff --git |diff -|Index: |--- [^\n]*\n\+\+\+ |\*\*\* )", re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):[ \t]?(.*)")
_ADDRESS = re.compile(r"\s*\"?([^<\"]*?)\"?\s*<([^>]+)>")


def read_foreign(paths: tuple[Path, ...]) -> list[NamedPatch]:
    """Every patch in `paths`, in the order of application.

    Raises:
        PyggmlError: a directory without patches, a patch that a series file names but that is missing or
            outside its directory, or a file that is no patch.
    """
    return [patch for path in paths for patch in _read_path(path)]


def _read_path(path: Path) -> list[NamedPatch]:
    listing = path / "series" if path.is_dir() else path
    if listing.name == "series" and listing.is_file():
        return _read_quilt(listing)
    return _read_directory(path) if path.is_dir() else _read_file(path)


def _read_directory(directory: Path) -> list[NamedPatch]:
    names = sorted(p for p in directory.iterdir() if p.suffix in (".patch", ".diff") and p.is_file())
    names = [p for p in names if not re.match(r"0+-cover-letter", p.name)]
    if not names:
        raise PyggmlError(
            f"{directory}: no patches and no `series` file in it", "Name the patch files themselves."
        )
    return [patch for path in names for patch in _read_file(path)]


def _read_quilt(listing: Path) -> list[NamedPatch]:
    """quilt's series file: one name per line, optional `-pN`, comments from `#` (quilt(1), "series")."""
    patches: list[NamedPatch] = []
    root = listing.parent.resolve()
    for line in listing.read_text("utf-8", "surrogateescape").splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        strip = 1
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
        patches += _read_file(path, strip)
    if not patches:
        raise PyggmlError(f"{listing}: no patches are listed", "Name the patch files themselves.")
    return patches


def _read_file(path: Path, strip: int = 1) -> list[NamedPatch]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PyggmlError(f"{path}: cannot be read: {error.strerror}") from error
    if not data.strip():
        raise PyggmlError(f"{path}: the patch file is empty", "Leave it out.")
    mails = split_mailbox(data)
    patches = []
    for mail in mails:
        read = _read_one(mail, path)
        title = path.name if len(mails) == 1 else read.subject
        patches.append(NamedPatch(str(path), read, title, strip))
    return patches


def _read_one(data: bytes, path: Path) -> PatchMail:
    if re.match(rb"From [0-9a-f]{40} |From:|Subject:", data) and re.search(rb"^Subject:", data, re.MULTILINE):
        mail = read_patch(data, str(path))
        return PatchMail(mail.author, _protected(mail.message), mail.diff)
    return _read_dep3(data, path)


def _read_dep3(data: bytes, path: Path) -> PatchMail:
    """A quilt patch: free text, often with the fields of DEP-3, then a diff.

    Source: Debian Enhancement Proposal 3, "Patch Tagging Guidelines".
    """
    refuse_crlf(data, str(path))
    match = _DIFF_START.search(data)
    if not match:
        raise PyggmlError(
            f"{path}: there is no diff in it", "It is not a patch, or it is truncated: leave it out."
        )
    head, diff = data[: match.start()], data[match.start() :]
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
    """The message, with every line indented that `git am` would take for the start of the diff.

    Source: git's mailinfo.c, `patchbreak`.
    """
    lines = message.split("\n")
    for index, line in enumerate(lines):
        if index and re.match(r"---(\s|$)|diff -|Index: ", line):
            lines[index] = f" {line}"
    return clean_message("\n".join(lines))
