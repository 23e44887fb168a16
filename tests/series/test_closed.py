"""A closed series is replayed and proven; whoever changes it must say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from rebase_helpers import RESOLVED, TwoPins
from series_helpers import Sandbox

WHY = "the next pin has taken its place"


def close(directory: Path) -> None:
    listing = directory / "series.toml"
    listing.write_text(listing.read_text("utf-8").replace("\n\n[[", f'\nclosed = "{WHY}"\n\n[[', 1), "utf-8")


CHANGES = {
    "new": ("patch", "new", "more", "-m", "more : x"),
    "edit": ("patch", "edit", "1"),
    "refresh": ("patch", "refresh"),
    "rename": ("patch", "rename", "1", "other"),
    "drop": ("patch", "drop", "2"),
    "move": ("patch", "move", "1", "2"),
}


@pytest.mark.parametrize("command", CHANGES)
def test_changes_are_refused_and_the_way_is_named(four: TwoPins, command: str) -> None:
    close(four.patches)
    before = four.state()
    told = four.refused(*CHANGES[command])
    assert f"the series on pin one is closed: {WHY}" in told and "--reopen" in told
    assert four.state() == before


def test_import_is_refused(four: TwoPins, tmp_path: Path) -> None:
    four.ok("patch", "export", str(tmp_path / "out"))
    close(four.patches)
    assert "is closed" in four.refused("patch", "import", str(tmp_path / "out"))


@pytest.mark.parametrize("command", ["rename", "drop", "new"])
def test_reopen_changes_it_and_undo_closes_it_again(four: TwoPins, command: str) -> None:
    close(four.patches)
    closed = four.files()
    if command == "new":
        four.replace("b.c", "line 20\n", "line twenty\n")
    four.ok(*CHANGES[command], "--reopen")
    assert b"closed" not in four.files()["series.toml"]
    assert four.files().keys() != closed.keys()
    four.ok("undo")
    four.ok("undo")
    assert four.files() == closed


def test_reopen_is_nothing_to_an_open_series(four: TwoPins) -> None:
    four.ok("patch", "drop", "2", "--reopen")
    four.ok("undo")
    assert len(four.status()["patches"]) == 4


def test_it_can_be_applied_verified_exported_and_rebased(four: TwoPins, tmp_path: Path) -> None:
    close(four.patches)
    four.ok("patch", "unapply")
    four.ok("patch", "apply")
    four.ok("patch", "verify")
    four.ok("patch", "export", str(tmp_path / "out"))
    four.pyggml("patch", "rebase", "--onto", "two")
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    # The new series is open.
    assert b"closed" not in four.new_files()["series.toml"]
    four.ok("patch", "drop", "after")


def test_a_rebase_does_not_replace_it(four: TwoPins) -> None:
    four.pyggml("patch", "rebase", "--onto", "two")
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    four.ok("patch", "drop", "after")
    close(four.new)
    files = four.new_files()
    four.refused("patch", "rebase", "--from", "one", "--onto", "two", code=3)
    assert f"the series on pin two is closed: {WHY}" in four.refused(
        "patch", "rebase", "--continue", "--replace"
    )
    assert four.new_files() == files


def test_what_was_begun_before_can_be_finished(four: TwoPins) -> None:
    four.ok("patch", "edit", "clean")
    close(four.patches)
    four.replace("b.c", "line 20\n", "line twenty\n")
    four.ok("patch", "continue")
    assert b"closed" in four.files()["series.toml"]


def test_the_mark_must_say_why(four: Sandbox) -> None:
    listing = four.patches / "series.toml"
    listing.write_text(listing.read_text("utf-8").replace("\n\n[[", "\nclosed = true\n\n[[", 1), "utf-8")
    assert "'closed' must be a string that says why" in four.refused("patch", "list")
