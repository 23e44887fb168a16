"""Export for upstream and import of foreign series."""

from __future__ import annotations

import email
import email.policy
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from series_helpers import Sandbox, make_sandbox

QUILT = {
    "series": "# what we carry\nfix-scale.patch   # the scale\n\nsub/readme.diff -p0\ndep3.patch -p1\n",
    "fix-scale.patch": """Just words about the fix.
--- up.orig/src/scale.c
+++ up/src/scale.c
@@ -9,3 +9,4 @@
 line 9
+line nine and a half
 line 10
 line 11
""",
    "sub/readme.diff": "Index: README.md\n===\n--- README.md\t2020-01-01 00:00:00\n+++ README.md\t2020-01-02 00:00:00\n"
    "@@ -1 +1,2 @@\n upstream\n+and Debian\n",
    "dep3.patch": """Description: Make the runner say hello
 over two lines.
 .
 With a paragraph.
Author: Jörg Example <joerg@example.org>
Forwarded: no
Last-Update: 2024-02-29
---
This patch header follows DEP-3.
--- a/run.sh
+++ b/run.sh
@@ -1,2 +1,3 @@
 #!/bin/sh
+echo hello
 exit 0
""",
}


def write_files(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return directory


def test_a_quilt_series_gives_what_patch_gives(box: Sandbox, tmp_path: Path) -> None:
    quilt = write_files(tmp_path / "quilt", QUILT)
    independent = tmp_path / "independent"
    shutil.copytree(box.tree, independent, ignore=shutil.ignore_patterns(".git"))
    for name, strip in (("fix-scale.patch", 1), ("sub/readme.diff", 0), ("dep3.patch", 1)):
        subprocess.run(
            ["git", "apply", f"-p{strip}", str(quilt / name)],
            cwd=independent,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
        )
    box.ok("patch", "import", str(quilt))
    assert [row["name"] for row in box.status()["patches"]] == ["fix-scale", "readme", "dep3"]
    for path in ("src/scale.c", "README.md", "run.sh"):
        assert (box.tree / path).read_bytes() == (independent / path).read_bytes()
    assert (box.tree / "run.sh").stat().st_mode & 0o111
    assert (
        box.git("log", "-1", "--format=%an <%ae> %as|%s")
        == "Jörg Example <joerg@example.org> 2024-02-29|Make the runner say hello"
    )
    assert "With a paragraph." in box.git("log", "-1", "--format=%b")
    assert box.ok("patch", "verify").code == 0


@pytest.mark.parametrize(
    "subject", ["[PATCH] add a line", "Re: [PATCH v2 1/3] add a line", "[security] [PATCH] x"]
)
def test_a_mail_with_text_before_it(box: Sandbox, tmp_path: Path, subject: str) -> None:
    """Debian's curl has such patches: git takes `[PATCH]` off a subject, so it cannot stay in the message's."""
    mail = f"""This is based on work of others.

From 08b8ef4e726ba10f45081ecda5b3cea788d3c839 Mon Sep 17 00:00:00 2001
From: Ada <ada@example.org>
Date: Mon, 25 Apr 2022 16:24:33 +0200
Subject: {subject}

Why.
---
 src/scale.c | 1 +
"""
    diff = QUILT["fix-scale.patch"].partition("\n")[2]
    quilt = write_files(tmp_path / "quilt", {"series": "a.patch\n", "a.patch": mail + diff})
    box.ok("patch", "import", str(quilt))
    assert box.git("log", "-1", "--format=%s") in ("add a line", "[security] x")
    assert box.git("log", "-1", "--format=%an <%ae>, %at") == "Ada <ada@example.org>, 1650896673"
    assert "This is based on work of others." in box.git("log", "-1", "--format=%b")
    assert box.ok("patch", "verify").code == 0


def test_import_is_all_or_nothing_and_names_the_patch(box: Sandbox, tmp_path: Path) -> None:
    files = dict(QUILT)
    files["dep3.patch"] = files["dep3.patch"].replace(" exit 0", " exit 1")
    quilt = write_files(tmp_path / "quilt", files)
    before = box.state()
    told = box.refused("patch", "import", str(quilt))
    assert "dep3.patch" in told and "run.sh" in told and "hunk 1" in told
    assert box.state() == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("../../etc/passwd", "outside its directory"),
        ("gone.patch", "listed but missing"),
        ("a.patch -R", "not supported"),
    ],
)
def test_a_hostile_or_broken_series_file(box: Sandbox, tmp_path: Path, line: str, expected: str) -> None:
    quilt = write_files(tmp_path / "quilt", {"series": line + "\n", "a.patch": QUILT["fix-scale.patch"]})
    assert expected in box.refused("patch", "import", str(quilt))


def test_format_patch_files_and_mailboxes_come_in(three: Sandbox, tmp_path: Path) -> None:
    other = make_sandbox(tmp_path / "other")
    mailbox = tmp_path / "three.mbox"
    mailbox.write_bytes(
        subprocess.run(
            ["git", "format-patch", "--stdout", "pin/one..series"],
            cwd=three.tree,
            check=True,
            capture_output=True,
        ).stdout
    )
    other.ok("patch", "import", str(mailbox))
    assert other.git("rev-parse", "HEAD") == three.git("rev-parse", "HEAD")
    third = make_sandbox(tmp_path / "third")
    subprocess.run(
        ["git", "format-patch", "-q", "-o", str(tmp_path / "out"), "pin/one..series"],
        cwd=three.tree,
        check=True,
    )
    third.ok("patch", "import", str(tmp_path / "out"))
    assert third.git("rev-parse", "HEAD") == three.git("rev-parse", "HEAD")


def test_import_needs_the_whole_series_applied(three: Sandbox, tmp_path: Path) -> None:
    three.ok("patch", "unapply", "--to", "1")
    quilt = write_files(tmp_path / "quilt", QUILT)
    assert "1 of 3 patches are applied" in three.refused("patch", "import", str(quilt))


def test_an_export_is_numbered_has_a_cover_letter_and_works_with_git_am(
    three: Sandbox, tmp_path: Path
) -> None:
    out = tmp_path / "für upstream"
    three.ok("patch", "export", str(out))
    names = sorted(p.name for p in out.iterdir())
    assert names == ["0000-cover-letter.patch", "0001-first.patch", "0002-second.patch", "0003-third.patch"]
    cover = email.message_from_bytes((out / names[0]).read_bytes(), policy=email.policy.default)
    assert cover["Subject"].startswith("[PATCH 0/3]")
    text = cover.get_content()
    assert "1/3  first : change src/scale.c" in text and "2 files changed" in text
    mail = email.message_from_bytes((out / names[2]).read_bytes(), policy=email.policy.default)
    assert mail["Subject"] == "[PATCH 2/3] second : change src/scale.c"
    fresh = tmp_path / "fresh"
    subprocess.run(["git", "clone", "-q", str(three.tree), str(fresh)], check=True)
    subprocess.run(["git", "checkout", "-q", three.git("rev-parse", "pin/one")], cwd=fresh, check=True)
    subprocess.run(["git", "am", "-q", *[str(out / n) for n in names[1:]]], cwd=fresh, check=True)
    tree = subprocess.run(
        ["git", "rev-parse", "HEAD^{tree}"], cwd=fresh, check=True, capture_output=True, text=True
    )
    assert tree.stdout.strip() == three.git("rev-parse", "HEAD^{tree}")


def test_an_export_is_the_same_bytes_each_time_and_overwrites_nothing(three: Sandbox, tmp_path: Path) -> None:
    three.ok("patch", "export", str(tmp_path / "a"))
    three.ok("patch", "export", str(tmp_path / "b"))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert "not empty" in three.refused("patch", "export", str(tmp_path / "a"))


def test_an_export_is_that_of_the_files_whatever_is_applied(three: Sandbox, tmp_path: Path) -> None:
    def export(name: str) -> dict[str, bytes]:
        three.ok("patch", "export", str(tmp_path / name))
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    wanted = export("applied")
    three.git("commit", "-q", "--amend", "-m", "third : with other words")
    assert export("amended") == wanted
    three.git("commit", "-q", "--allow-empty", "-m", "own : on top")
    assert export("more") == wanted
    three.git("reset", "-q", "--hard", "HEAD~3")
    assert export("less") == wanted
    three.git("checkout", "-q", "--orphan", "other")
    assert export("elsewhere") == wanted


def test_verify_names_the_bad_file_and_judges_the_others(three: Sandbox) -> None:
    path = three.patches / "0002-second.patch"
    path.write_bytes(path.read_bytes().replace(b"+line twenty", b"+line zwanzig"))
    done = three.pyggml("patch", "verify", "--json")
    assert done.code == 1
    assert [row["ok"] for row in done.json["patches"]] == [True, False, True]
    assert "recorded is" in done.json["patches"][1]["detail"]


def test_show_prints_the_file_as_it_is(three: Sandbox) -> None:
    assert three.ok("patch", "show", "second").out.encode() == three.files()["0002-second.patch"]
    assert "no patch 'nope'" in three.refused("patch", "show", "nope")


DEBIAN_SOURCES = ("cron", "procmail", "unzip", "netcat-openbsd", "mutt")


@pytest.mark.network
def test_a_real_quilt_series_of_debian(tmp_path: Path) -> None:
    """Debian's own source package: the tree after the import is the one that dpkg-source unpacks."""
    for tool in ("apt-get", "dpkg-source"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine: no Debian source package can be had")
    dsc = fetch_debian_source(tmp_path / "source")
    source = dsc.parent
    run = lambda *args: subprocess.run(args, cwd=source, check=True, capture_output=True)  # noqa: E731
    run("dpkg-source", "--no-check", "--skip-patches", "-x", dsc.name, "plain")
    run("dpkg-source", "--no-check", "-x", dsc.name, "patched")
    quilt = tmp_path / "debian-patches"
    shutil.copytree(source / "plain" / "debian" / "patches", quilt)
    patches = [x for x in (quilt / "series").read_text().splitlines() if x.strip() and not x.startswith("#")]
    assert len(patches) >= 20
    for name in ("plain", "patched"):
        shutil.rmtree(source / name / "debian")
        shutil.rmtree(source / name / ".pc", ignore_errors=True)
    root = tmp_path / "project"
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "vendor" / "pins.toml").write_text('upstream = "netcat"\n')
    from pyggml.project import Project

    box = Sandbox(Project(root))
    box.ok("vendor", "add", "one", "--directory", str(source / "plain"), "--default")
    box.ok("patch", "import", str(quilt))
    assert len(box.status()["patches"]) == len(patches)
    assert listing(box.tree) == listing(source / "patched")
    box.ok("patch", "unapply")
    assert listing(box.tree) == listing(source / "plain")
    box.ok("patch", "apply")
    box.ok("patch", "refresh")
    box.ok("patch", "export", str(tmp_path / "out"))
    assert len(list((tmp_path / "out").iterdir())) == len(patches) + 1
    assert listing(box.tree) == listing(source / "patched")
    assert box.ok("patch", "verify").code == 0


def fetch_debian_source(directory: Path) -> Path:
    """`apt-get source` with lists of its own, so that the machine's package configuration stays as it is."""
    lists = directory / "apt"
    for name in ("lists/partial", "cache/archives/partial", "sources.d"):
        (lists / name).mkdir(parents=True)
    lines = debian_source_lines()
    if not lines:
        pytest.skip("no Debian package source is configured on this machine")
    (lists / "sources.list").write_text("\n".join(lines) + "\n")
    options = [
        "-o", f"Dir::State::Lists={lists}/lists", "-o", f"Dir::Cache={lists}/cache",
        "-o", f"Dir::Etc::SourceList={lists}/sources.list", "-o", f"Dir::Etc::SourceParts={lists}/sources.d",
        "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1",
    ]  # fmt: skip

    def apt(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["apt-get", *options, *command], cwd=directory, capture_output=True, text=True)

    done = apt("update", "-qq")
    for name in DEBIAN_SOURCES if done.returncode == 0 else ():
        done = apt("source", "-qq", "--download-only", name)
        if done.returncode == 0:
            return next(directory.glob(f"{name}_*.dsc"))
    pytest.skip(f"no Debian source package can be had: {done.stderr.strip().splitlines()[-1:]}")


def debian_source_lines() -> list[str]:
    """`deb-src` lines for the binary package sources that the machine is configured with."""
    import re

    found = []
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list")]
    for path in files:
        if path.is_file():
            for line in path.read_text().splitlines():
                if match := re.match(r"deb(?:-src)?\s+(.*\bmain\b.*)", line.strip()):
                    found.append(f"deb-src {match[1]}")
    for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            if "Debian" in stanza or "debian" in fields.get("URIs", ""):
                signed = (
                    f"[signed-by={fields['Signed-By']}] "
                    if fields.get("Signed-By", "").startswith("/")
                    else ""
                )
                for uri in fields.get("URIs", "").split():
                    found += [
                        f"deb-src {signed}{uri} {suite} main" for suite in fields.get("Suites", "").split()
                    ]
    return list(dict.fromkeys(found))


def listing(directory: Path) -> dict[str, tuple[bool, bytes]]:
    """Every file with its executable bit and content."""
    return {
        p.relative_to(directory).as_posix(): (bool(p.stat().st_mode & 0o100), p.read_bytes())
        for p in sorted(directory.rglob("*"))
        if p.is_file() and not p.is_symlink() and p.relative_to(directory).parts[0] != ".git"
    }
