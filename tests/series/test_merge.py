"""Two branches of the user's project that each add a patch, merged with git."""

from __future__ import annotations

import subprocess

import pytest
from series_helpers import Sandbox


def git(box: Sandbox, *args: str) -> int:
    """Plain git in the user's project; its exit code."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    return subprocess.run(["git", *who, *args], cwd=box.root, capture_output=True).returncode


@pytest.fixture
def merged(three: Sandbox) -> Sandbox:
    """The project in the middle of a merge: both sides have added a fourth patch."""
    assert git(three, "init", "-q", "-b", "main") == 0
    git(three, "add", "patches")
    assert git(three, "commit", "-qm", "three patches") == 0
    assert git(three, "branch", "theirs") == 0
    three.patch("of-main", "run.sh", "exit 0\n", "exit 1\n")
    git(three, "add", "patches")
    assert git(three, "commit", "-qm", "main") == 0
    assert git(three, "checkout", "-q", "theirs") == 0
    three.ok("patch", "apply")
    three.patch("of-theirs", "src/named.c", "twin_a(", "twin_z(")
    git(three, "add", "patches")
    assert git(three, "commit", "-qm", "theirs") == 0
    assert git(three, "checkout", "-q", "main") == 0
    three.ok("patch", "apply")
    assert git(three, "merge", "theirs") == 1
    return three


def test_conflict_marks_are_named(merged: Sandbox) -> None:
    series = merged.patches / "series.toml"
    line = 1 + next(
        n for n, text in enumerate(series.read_text().splitlines()) if text.startswith("<<<<<<< ")
    )
    before = merged.state()
    for args in (
        ("list",),
        ("status",),
        ("apply",),
        ("verify",),
        ("drop", "first"),
        ("refresh", "--from-files"),
        ("renumber",),
    ):
        told = merged.refused("patch", *args)
        assert f"series.toml:{line}: a merge left conflict marks" in told
        assert "pyggml patch renumber" in told and "pyggml patch install-merge-driver" in told
    assert merged.state() == before


def test_the_way_out_that_is_named_works(merged: Sandbox) -> None:
    """Entries of both sides, as they are: numbers and trees come from their order and the files."""
    series = merged.patches / "series.toml"
    assert git(merged, "checkout", "--ours", "patches/one/series.toml") == 0
    entry = '\n[[patch]]\nname = "of-theirs"\nfile = "0004-of-theirs.patch"\n'
    series.write_text(series.read_text() + entry)
    done = merged.ok("patch", "renumber")
    assert "moved patches/one/0004-of-theirs.patch to 0005-of-theirs.patch" in done.out
    assert merged.ok("patch", "verify").code == 0
    status = merged.status()
    assert (status["state"], status["applied"], status["total"]) == ("applied", 5, 5)


def test_from_files_leaves_applied_what_was(merged: Sandbox) -> None:
    """By hand, without renumber: all of the series was applied, so all of it is."""
    series = merged.patches / "series.toml"
    assert git(merged, "checkout", "--ours", "patches/one/series.toml") == 0
    entry = '\n[[patch]]\nname = "of-theirs"\nfile = "0005-of-theirs.patch"\ntree = "{}"\n'
    series.write_text(series.read_text() + entry.format("0" * 40))
    (merged.patches / "0004-of-theirs.patch").rename(merged.patches / "0005-of-theirs.patch")
    merged.ok("patch", "refresh", "--from-files")
    assert merged.ok("patch", "verify").code == 0
    status = merged.status()
    assert (status["state"], status["applied"], status["total"]) == ("applied", 5, 5)
