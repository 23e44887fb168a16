"""Mails that need no reading between the lines: what `git format-patch` writes for plain text.

`git mailinfo` is a process for each mail, and a series of hundreds is read at every command. A mail is taken here only
if each rule by which mailinfo changes a text is seen not to apply; everything else is left to mailinfo. Source: git's
mailinfo.c (`read_one_header_line`, `handle_from`, `get_sane_name`, `cleanup_subject`, `check_inbody_header`,
`patchbreak`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(
    rb"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001\n"
    rb"From: (?P<name>[A-Za-z0-9][A-Za-z0-9 _-]{1,58}[A-Za-z0-9]) "
    rb"<(?P<email>[A-Za-z0-9][A-Za-z0-9.+_-]*@[A-Za-z0-9.-]*[A-Za-z0-9])>\n"
    rb"Date: (?P<date>[A-Za-z0-9,:+ -]+)\n"
    rb"Subject: \[PATCH(?: \d+/\d+)?\] (?P<subject>[A-Za-z0-9_][!-Z\\^-~ ]*(?:\n [!-Z\\^-~][!-Z\\^-~ ]*)*)\n"
    rb"\n"
)
_BREAK = re.compile(rb"^(?:diff -|Index: |---)[^\n]*\n", re.MULTILINE)
# A message that begins with `class::function()` has no header there: git knows three of them.
_LIKE_A_HEADER = re.compile(rb"\s*(?:[!-9;-~]+:(?!:)|(?i:From|Subject|Date):|>|\[|From )")


@dataclass(frozen=True)
class PlainMail:
    """The parts of a mail, as `git mailinfo -b` gives them."""

    name: str
    email: str
    date: str
    subject: str
    body: str
    diff: bytes


def read_plain(data: bytes) -> PlainMail | None:
    """The parts of a mail; None if it is not plain.

    >>> read_plain(b"From: somebody") is None
    True
    """
    head = _HEAD.match(data)
    if head is None or b"\r" in data or b"\0" in data:
        return None
    subject, name, date = head["subject"].replace(b"\n", b""), head["name"], head["date"]
    if any(b"  " in field or field.endswith(b" ") for field in (subject, name, date)) or b"=?" in subject:
        return None
    if subject[:3].lower() == b"re:" or re.search(rb" \n", head["subject"]):
        return None
    end = _BREAK.search(data, head.end())
    if end is None or end[0] != b"---\n":
        return None
    body = data[head.end() : end.start()]
    if _LIKE_A_HEADER.match(body):
        return None
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    who, email, when, what = (field.decode("ascii") for field in (name, head["email"], date, subject))
    return PlainMail(who, email, when, what, text, data[end.start() :])
