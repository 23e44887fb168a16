"""Mails and mailboxes of other tools: the patches, authors and messages that git reads, or a refusal."""

from __future__ import annotations

import base64
import quopri
import subprocess
from pathlib import Path

import pytest
from series_helpers import Sandbox

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.foreign import Reading, read_foreign
from pyggml.series.patchfile.mail import UNKNOWN_DATE, NamedPatch

FORMAT_PATCH = "From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001"
DIFFS = {
    "src/scale.c": "@@ -2,3 +2,3 @@\n line 2\n-line 3\n+line three\n line 4\n",
    "README.md": "@@ -1 +1 @@\n-upstream\n+downstream\n",
    "run.sh": "@@ -1,2 +1,2 @@\n #!/bin/sh\n-exit 0\n+exit 1\n",
}


def diff_of(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n{DIFFS[path]}"


def mail_of(path: str, number: int = 1, body: str = "One of three.\n", extra: str = "") -> str:
    return (
        f"From: Grace <grace@example.com>\nTo: list@example.com\nMessage-ID: <{number}@example.com>\n"
        f"Date: Mon, 2 Nov 2026 10:0{number}:00 +0000\nSubject: [PATCH {number}/3] change {path}\n{extra}\n"
        f"{body}---\n {path} | 2 +-\n\n{diff_of(path)}-- \n2.39.5\n\n"
    )


def mailbox(first_line: str) -> str:
    return "".join(f"{first_line}\n{mail_of(path, n)}" for n, path in enumerate(DIFFS, 1))


def read(tmp_path: Path, text: str | bytes, **options: object) -> list[NamedPatch]:
    file = tmp_path / "mail.mbox"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_foreign((file,), Reading(**options))


FIRST_LINES = {
    "git format-patch": FORMAT_PATCH,
    "an address": "From a@example.com Mon Nov  2 10:00:00 2026",
    "a zone": "From a@example.com Mon Nov  2 10:00:00 2026 +0100",
    "Thunderbird": "From - Mon Nov 02 10:00:00 2026",
    "mailman": "From a at example.com  Mon Nov  2 10:00:00 2026",
    "lore": "From mboxrd@z Thu Jan  1 00:00:00 1970",
    "git@z": "From git@z Thu Jan  1 00:00:00 1970",
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("kind", FIRST_LINES)
def test_mailboxes_of_every_kind(tmp_path: Path, kind: str, ends: str) -> None:
    patches = read(tmp_path, mailbox(FIRST_LINES[kind]).replace("\n", ends))
    assert [patch.mail.message for patch in patches] == [f"change {p}\n\nOne of three.\n" for p in DIFFS]
    assert {patch.mail.author.name for patch in patches} == {"Grace"}
    for patch, path in zip(patches, DIFFS, strict=True):
        assert diff_of(path).encode() in patch.mail.diff and b"\r" not in patch.mail.diff


def test_a_mailbox_comes_in_as_git_am_takes_it(box: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "three.mbox"
    file.write_text(mailbox(FIRST_LINES["git@z"]))
    fresh = tmp_path / "fresh"
    subprocess.run(["git", "clone", "-q", str(box.tree), str(fresh)], check=True)
    subprocess.run(["git", "am", "-q", str(file)], cwd=fresh, check=True)
    box.ok("patch", "import", str(file))
    log = ["log", "-3", "--format=%an <%ae> %at %T%n%B"]
    theirs = subprocess.run(["git", *log], cwd=fresh, check=True, capture_output=True, text=True).stdout
    assert box.git(*log) == theirs.removesuffix("\n")
    assert [row["name"] for row in box.status()["patches"]] == [
        "change-src-scale-c",
        "change-readme-md",
        "change-run-sh",
    ]


def test_a_boundary_that_git_does_not_read_is_refused(tmp_path: Path) -> None:
    """The second patch and its author would be lost in the first."""
    text = mailbox("From a@example.com Mon Nov  2 10:00:00 CET 2026")
    with pytest.raises(PyggmlError, match="text between its diffs"):
        read(tmp_path, text)


def test_a_cover_letter_in_a_mailbox_is_left_out_and_other_words_are_not(tmp_path: Path) -> None:
    cover = f"{FORMAT_PATCH}\nFrom: Grace <g@example.com>\nSubject: [PATCH v2 0/3] three\n\nWhat for.\n\n"
    assert len(read(tmp_path, cover + mailbox(FORMAT_PATCH))) == 3
    with pytest.raises(PyggmlError, match=r"mail 1: there is no diff in it \(three\)"):
        read(tmp_path, cover.replace("[PATCH v2 0/3] ", "Re: ") + mailbox(FORMAT_PATCH))


def encoded(kind: str, text: str) -> str:
    if kind == "base64":
        return base64.encodebytes(text.encode()).decode()
    return quopri.encodestring(text.encode()).decode()


@pytest.mark.parametrize("inner", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("kind", ["base64", "quoted-printable"])
def test_encoded_bodies(tmp_path: Path, kind: str, inner: str) -> None:
    head, body = mail_of("README.md", body="Größe.\n").split("\n\n", 1)
    head += f"\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: {kind}\n\n"
    (patch,) = read(
        tmp_path, f"{FIRST_LINES['git@z']}\n{head}{encoded(kind, body.replace(chr(10), inner))}\n"
    )
    assert patch.mail.message == "change README.md\n\nGröße.\n"
    assert diff_of("README.md").encode() in patch.mail.diff


CHARSETS = {
    "utf-8": "Größe 中", "iso-8859-1": "Größe", "iso-8859-15": "Größe €", "windows-1252": "Größe €",
    "koi8-r": "Привет", "gb2312": "中文", "big5": "中文", "shift_jis": "日本", "iso-2022-jp": "日本", "euc-kr": "한글",
}  # fmt: skip


@pytest.mark.parametrize("charset", CHARSETS)
def test_charsets(tmp_path: Path, charset: str) -> None:
    """In the subject and the author as RFC 2047 has them, and in the body in each encoding."""
    text = CHARSETS[charset]
    word = f"=?{charset}?B?{base64.b64encode(text.encode(charset)).decode()}?="
    letters = "".join(f"={byte:02X}" for byte in text.encode(charset))
    head, body = mail_of("README.md", body=f"{text}.\n").split("\n\n", 1)
    head = head.replace("From: Grace", f"From: {word}").replace(
        "change README.md", f"=?{charset}?q?{letters}?="
    )
    for kind in ("base64", "quoted-printable", "8bit"):
        data = body.encode(charset)
        if kind != "8bit":
            data = base64.encodebytes(data) if kind == "base64" else quopri.encodestring(data)
        fields = f"\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: {kind}\n\n"
        (patch,) = read(tmp_path, f"{FORMAT_PATCH}\n{head}{fields}".encode() + data + b"\n")
        assert patch.mail.message == f"{text}\n\n{text}.\n"
        assert patch.mail.author.name == text
        assert diff_of("README.md").encode() in patch.mail.diff


def test_a_subject_with_a_line_end_of_unicode_is_kept_whole(tmp_path: Path) -> None:
    text = mail_of("README.md").replace("change README.md", "=?utf-8?q?a=C2=85b=E2=80=A8c?= d")
    assert read(tmp_path, f"{FORMAT_PATCH}\n{text}")[0].mail.subject == "a\u0085b\u2028c d"


def test_an_unknown_charset_is_refused(tmp_path: Path) -> None:
    """`git am` refuses it, too: the words would be lost."""
    text = mail_of("README.md").replace("change README.md", "=?x-nope?q?abc?=")
    with pytest.raises(PyggmlError, match="x-nope"):
        read(tmp_path, f"{FORMAT_PATCH}\n{text}")


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2026-11-02 10:01:00 +0100", "1793610060 +0100"),
        ("2026-11-02T10:01:00Z", "1793613660 +0000"),
        ("1793610060 +0100", "1793610060 +0100"),
        ("@1793610060 -0330", "1793610060 -0330"),
        ("@1793610060 +9900", UNKNOWN_DATE),
        ("@99999999999999 +0000", UNKNOWN_DATE),
        ("yesterday", UNKNOWN_DATE),
        ("1 of those days", UNKNOWN_DATE),
    ],
)
def test_dates_that_only_git_reads(tmp_path: Path, text: str, date: str) -> None:
    mail = mail_of("README.md").replace("Mon, 2 Nov 2026 10:01:00 +0000", text)
    assert read(tmp_path, f"{FORMAT_PATCH}\n{mail}")[0].mail.author.date == date


def test_a_mail_of_several_parts(tmp_path: Path) -> None:
    parts = (
        "Content-Type: text/plain; charset=UTF-8\n\nWhy.\n",
        "Content-Type: text/x-patch; name=a.patch\nContent-Disposition: attachment\n"
        f"Content-Transfer-Encoding: base64\n\n{encoded('base64', diff_of('README.md'))}",
    )
    head = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=xyz\n"
    text = mail_of("README.md", extra=head).split("\n\n", 1)[0]
    (patch,) = read(tmp_path, text + "\n\n" + "".join(f"--xyz\n{part}\n" for part in parts) + "--xyz--\n")
    assert patch.mail.message == "change README.md\n\nWhy.\n"
    assert diff_of("README.md").encode() in patch.mail.diff


def test_a_byte_order_mark_and_blank_lines_before_a_mail(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf\r\n" + mailbox(FIRST_LINES["git@z"]).replace("\n", "\r\n").encode()
    assert len(read(tmp_path, text)) == 3


def test_headers_in_any_order(tmp_path: Path) -> None:
    (patch,) = read(tmp_path, "Return-Path: <x@example.com>\nX-Foo: 1\n" + mail_of("README.md"))
    assert (patch.mail.subject, patch.mail.author.email) == ("change README.md", "grace@example.com")


def test_a_patch_of_a_crlf_file_keeps_its_line_ends(tmp_path: Path) -> None:
    """A removed SQL comment looks like a line of the diff itself."""
    diff = diff_of("README.md").replace("-upstream\n+downstream\n", "--- a comment\r\n+++ another\r\n")
    (patch,) = read(tmp_path, mail_of("README.md").replace(diff_of("README.md"), diff))
    assert diff.encode() in patch.mail.diff


HG = (
    "# HG changeset patch\n# User Bob <bob@example.org>\n# Date 1500000000 {}\n#      Fri Jul 14 04:40:00 2017\n"
    "# Node ID 1111111111111111111111111111111111111111\n# Parent  2222222222222222222222222222222222222222\n"
)
STGIT = "the subject\n\n{}From: Bob <bob@example.org>\n"
OTHERS = {
    "hg export": HG.format(-7200) + "the subject\n\nThe body.\n\n",
    "hg export, west": HG.format(12600) + "the subject\n\nThe body.\n",
    "hg export, no body": HG.format(0) + "[tag] the subject\n\n",
    "stg export": STGIT.format("Date: Tue, 3 Nov 2026 10:00:00 +0000\n") + "\nThe body.\n---\n",
    "stg export, author": STGIT.format("Date: 3 Nov 2026 10:00:00 +0530\n").replace("From", "Author")
    + "\nx\n---\n",
}


@pytest.mark.parametrize("case", OTHERS)
def test_patches_of_mercurial_and_stgit_come_in_as_git_am_takes_them(
    box: Sandbox, tmp_path: Path, case: str
) -> None:
    file = tmp_path / "x.patch"
    file.write_text(OTHERS[case] + diff_of("README.md"))
    fresh, log = tmp_path / "fresh", ["log", "-1", "--format=%an <%ae> %ad %T%n%B", "--date=raw"]
    subprocess.run(["git", "clone", "-q", str(box.tree), str(fresh)], check=True)
    subprocess.run(["git", "am", "-q", str(file)], cwd=fresh, check=True)
    theirs = subprocess.run(["git", *log], cwd=fresh, check=True, capture_output=True, text=True).stdout
    box.ok("patch", "import", str(file))
    assert box.git(*log) == theirs.removesuffix("\n")


def test_several_changesets_of_mercurial_in_one_file(tmp_path: Path) -> None:
    """`hg export -r A:B`; git makes one commit of them."""
    patches = read(tmp_path, "".join(f"{HG.format(0)}change {path}\n\n{diff_of(path)}\n" for path in DIFFS))
    assert [patch.mail.message for patch in patches] == [f"change {path}\n" for path in DIFFS]
    for patch, path in zip(patches, DIFFS, strict=True):
        assert patch.mail.diff.strip() == diff_of(path).strip().encode()
        assert patch.mail.author.email == "bob@example.org"


def test_a_changeset_of_somebody_without_an_address(tmp_path: Path) -> None:
    text = HG.format(99999).replace("Bob <bob@example.org>", "bob") + "x\n\n" + diff_of("README.md")
    author = read(tmp_path, text)[0].mail.author
    assert (author.name, author.email, author.date) == ("bob", "unknown@localhost", UNKNOWN_DATE)


def test_quoting_of_mboxrd(tmp_path: Path) -> None:
    text = f"{FORMAT_PATCH}\n" + mail_of("README.md", body=">From the top.\n>>From below.\n")
    assert ">From the top.\n>>From below." in read(tmp_path, text)[0].mail.message
    assert "\nFrom the top.\n>From below." in read(tmp_path, text, mboxrd=True)[0].mail.message


SCISSORS = ["-- >8 --", "  - - 8< - -", "--->8---", "-----8<-------- cut here"]


@pytest.mark.parametrize("line", SCISSORS)
def test_scissors_are_asked_about(tmp_path: Path, line: str) -> None:
    text = mail_of("README.md", body=f"Hello,\n\n{line}\nSubject: the real one\n\nWhy.\n")
    with pytest.raises(PyggmlError, match="scissors line"):
        read(tmp_path, text)
    (patch,) = read(tmp_path, text, scissors=True)
    assert patch.mail.message == "the real one\n\nWhy.\n"


def test_what_only_looks_like_scissors_is_text(tmp_path: Path) -> None:
    (patch,) = read(tmp_path, mail_of("README.md", body="x >8 or y <8 bits.\n"))
    assert "x >8 or y <8 bits." in patch.mail.message


QUOTED = diff_of("README.md")
IN_MESSAGE = {
    "before the rule": f"So would be wrong:\n\n{QUOTED}\nso scale.c is changed.\n",
    "as the last thing before the rule": f"So would be wrong:\n\n{QUOTED}",
    "without `diff --git`": "So would be wrong:\n\n" + QUOTED.split("\n", 1)[1] + "\nso not.\n",
}


@pytest.mark.parametrize("case", IN_MESSAGE)
def test_a_diff_in_the_message_is_never_applied(box: Sandbox, tmp_path: Path, case: str) -> None:
    file = tmp_path / "quoting.patch"
    file.write_text(f"{FORMAT_PATCH}\n" + mail_of("src/scale.c", body=IN_MESSAGE[case]))
    before = box.state()
    told = box.refused("patch", "import", str(file))
    assert "text between its diffs" in told and "Indent" in told
    assert box.state() == before


AFTER_RULE = {
    "after the rule": f"---\nNot like this:\n{QUOTED}\nbut like that:\n",
    "after the rule, and a second rule": f"---\nNot like this:\n{QUOTED}---\n",
}


@pytest.mark.parametrize("case", AFTER_RULE)
def test_a_diff_among_the_notes_is_refused(tmp_path: Path, case: str) -> None:
    text = mail_of("src/scale.c").replace("---\n src", f"{AFTER_RULE[case]} src", 1)
    with pytest.raises(PyggmlError, match="text between its diffs"):
        read(tmp_path, text)


@pytest.mark.parametrize("mark", ["    ", "> ", "\t", " ", "| "])
@pytest.mark.parametrize("place", ["message", "notes"])
def test_an_indented_or_quoted_diff_is_text(box: Sandbox, tmp_path: Path, mark: str, place: str) -> None:
    quoted = "".join(f"{mark}{line}\n" for line in QUOTED.splitlines())
    body = quoted if place == "message" else f"Why.\n---\n{quoted}"
    (patch,) = read(tmp_path, mail_of("src/scale.c", body=body))
    assert (f"{mark}diff --git" in patch.mail.message) == (place == "message")
    if mark in ("    ", "> "):
        box.ok("patch", "import", str(tmp_path / "mail.mbox"))
        assert box.git("diff", "--name-only", "HEAD~", "HEAD") == "src/scale.c"
        assert box.ok("patch", "verify").code == 0


def test_a_diff_in_the_description_of_a_quilt_patch(tmp_path: Path) -> None:
    quilt = tmp_path / "quilt"
    quilt.mkdir()
    (quilt / "series").write_text("a.patch\n")
    (quilt / "a.patch").write_text(f"Why:\n{QUOTED}so not.\n---\n{diff_of('src/scale.c')}")
    with pytest.raises(PyggmlError, match="text between its diffs"):
        read_foreign((quilt,))
    # Other tools write their own lines there, and people write theirs.
    (quilt / "a.patch").write_text(
        f"Why.\n---\n{QUOTED}Index: src/scale.c\n====\n{diff_of('src/scale.c')}\nBye.\n"
    )
    assert len(read_foreign((quilt,))) == 1


BOUNDARIES = ["From git@z Thu Jan  1 00:00:00 1970", FORMAT_PATCH, "From a@b Mon Nov  2 10:00:00 2026 +0100"]


@pytest.mark.parametrize(
    "line", [*BOUNDARIES, "-- >8 --", "8< - - - cut", "diff --git a/x b/x", "Index: x", "--- a/x"]
)
def test_a_message_that_git_would_cut_is_not_written(box: Sandbox, line: str) -> None:
    box.replace("README.md", "upstream\n", "x\n")
    before = box.state()
    told = box.refused("patch", "new", "p", "-m", f"p : subject\n\nbefore\n{line}\nafter")
    assert "would not survive `git am`" in told and line.strip()[:20] in told
    assert box.state() == before


SURVIVES = [
    "From the top, at 10:00.", ">From git@z Thu Jan  1 00:00:00 1970", " From git@z Thu Jan  1 00:00:00 1970",
    "Subject: another", "Date: never", "From: x <x@y.z>", "[PATCH 2/3] x", "diff of it", "-- ", "Content-Type: x",
    "> diff --git a/x b/x", "if (a <8 && b >8) as in C", "Signed-off-by: Ada <ada@example.org>", "--boundary",
]  # fmt: skip


def test_other_messages_survive_export_and_import(box: Sandbox, tmp_path: Path) -> None:
    texts = [f"p{n} : subject\n\n{line}\n\nbefore\n{line}\nafter" for n, line in enumerate(SURVIVES)]
    for n, text in enumerate(texts):
        box.write("README.md", f"{n}\n")
        box.ok("patch", "new", f"p{n}", "-m", text)
    head = box.git("rev-parse", "HEAD")
    box.ok("patch", "export", str(tmp_path / "out"))
    both = b"".join(p.read_bytes() for p in sorted((tmp_path / "out").iterdir()))
    (tmp_path / "all.mbox").write_bytes(both)
    patches = read_foreign((tmp_path / "all.mbox",))
    logged = [box.git("log", "-1", "--format=%B", f"{head}~{n}") for n in range(len(texts))]
    assert [p.mail.message for p in patches] == logged[::-1]


def test_a_boundary_in_an_imported_message_is_indented(box: Sandbox, tmp_path: Path) -> None:
    """A quilt patch may quote the first line of a mail; written as it is, it could not be imported again."""
    file = tmp_path / "a.diff"
    file.write_text(f"Taken from:\n{BOUNDARIES[0]}\n\n{diff_of('README.md')}")
    box.ok("patch", "import", str(file))
    assert f"\n {BOUNDARIES[0]}" in box.git("log", "-1", "--format=%B")
    box.ok("patch", "export", str(tmp_path / "out"))
    assert len(read_foreign((tmp_path / "out",))) == 1
