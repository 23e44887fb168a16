"""Patches that only the newer pin has: recorded whole, and replayed with the rest."""

from __future__ import annotations

import pytest
from rebase_helpers import RESOLVED, TwoPins

ARGS = ("--from", "one", "--onto", "two")


def with_added(four: TwoPins) -> dict[str, bytes]:
    """The series on `two` with `extra` as its second patch, recorded; its files."""
    four.pyggml("patch", "rebase", "--onto", "two")
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    four.patch("extra", "b.c", "line 20\n", "line twenty\n")
    four.ok("patch", "move", "extra", "2")
    listing = four.new / "series.toml"
    text = listing.read_text("utf-8")
    head, name, rest = text.partition('name = "extra"')
    listing.write_text(head + name + rest.replace('purpose = ""', 'purpose = "only here"', 1), "utf-8")
    written = four.ok("patch", "rebase", "--record", *ARGS, "--json").json["written"]
    assert "patches/two/resolutions/extra.patch" in written
    return four.new_files()


def forget_series(four: TwoPins) -> None:
    """As in a clone on the older pin that has the record only."""
    four.ok("patch", "apply", "--pin", "one")
    pins = four.project.pins_file
    pins.write_text(pins.read_text("utf-8").replace('default = "two"', 'default = "one"'), "utf-8")
    for path in four.new.iterdir():
        if path.is_file():
            path.unlink()


def test_the_replay_gives_the_same_files(four: TwoPins) -> None:
    files = with_added(four)
    assert "0002-extra.patch" in files
    forget_series(four)
    told = four.ok("patch", "rebase", *ARGS, "--json").json
    rows = [(row["number"], row["name"], row["verdict"]) for row in told["patches"][:3]]
    assert rows == [(1, "clean", "clean"), (None, "extra", "added"), (2, "moves", "merged")]
    assert four.new_files() == files


def test_it_keeps_its_place_when_the_old_series_grows(four: TwoPins) -> None:
    with_added(four)
    forget_series(four)
    four.patch("later", "b.c", "line 35\n", "line thirty-five\n")
    told = four.ok("patch", "rebase", *ARGS, "--json").json
    assert [row["name"] for row in told["patches"]] == [
        "clean", "extra", "moves", "conflicts", "after", "later",
    ]  # fmt: skip


def test_the_plan_can_leave_it_out(four: TwoPins, monkeypatch: pytest.MonkeyPatch) -> None:
    with_added(four)
    forget_series(four)
    monkeypatch.setenv("EDITOR", "sed -i /^add/d")
    four.ok("patch", "rebase", *ARGS, "--edit-todo")
    assert [name for name in four.new_files() if "extra" in name] == []


@pytest.mark.parametrize("script", ["s/^add/pick/", "s/^pick clean/add clean/"])
def test_the_plan_cannot_take_it_for_another_kind(
    four: TwoPins, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    with_added(four)
    forget_series(four)
    before = four.everything()
    monkeypatch.setenv("EDITOR", f"sed -i '{script}'")
    assert "another action than before" in four.refused("patch", "rebase", *ARGS, "--edit-todo")
    assert four.everything() == before


def test_one_that_does_not_apply_any_more_is_named(four: TwoPins) -> None:
    with_added(four)
    forget_series(four)
    four.ok("patch", "edit", "clean")
    four.replace("b.c", "line 20\n", "line 20 of the first patch\n")
    four.ok("patch", "continue")
    told = four.refused("patch", "rebase", *ARGS)
    assert "patch extra, which only pin two has, does not apply" in told


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_record_is_refused(four: TwoPins, damage: str) -> None:
    with_added(four)
    forget_series(four)
    file = four.new / "resolutions" / "extra.patch"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:40])
    assert "extra.patch" in four.refused("patch", "rebase", *ARGS)


def test_a_patch_that_uses_what_a_left_out_patch_added(four: TwoPins) -> None:
    """Its text merges without a conflict, and it would not compile."""
    four.patch(
        "defines", "twins.c", "static int twin_d", "static int helper_of_mine(void);\n\nstatic int twin_d"
    )
    four.patch("uses", "twins.c", "twin_a(void) {\n", "twin_a(void) {\n    helper_of_mine();\n")
    four.pyggml("patch", "rebase", "--onto", "two")
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    four.ok("patch", "drop", "defines")
    four.ok("patch", "rebase", "--record", *ARGS)
    forget_series(four)
    told = four.ok("patch", "rebase", *ARGS, "--json").json
    (row,) = (row for row in told["patches"] if row["name"] == "uses")
    assert row["missing_names"] == [{"name": "helper_of_mine", "path": "twins.c", "patch": "defines"}]
    assert row["verdict"] == "merged"
