"""drop, move, rename and undo."""

from __future__ import annotations

from series_helpers import Sandbox


def test_drop_renumbers_and_undo_brings_everything_back(three: Sandbox) -> None:
    before = three.state()
    three.ok("patch", "drop", "first")
    assert sorted(three.files()) == ["0001-second.patch", "0002-third.patch", "series.toml"]
    text = (three.tree / "src/scale.c").read_text()
    assert "line 3\n" in text and "line twenty\n" in text
    assert three.status()["state"] == "applied"
    three.ok("undo")
    assert three.state() == before


def test_drop_of_an_unapplied_patch_leaves_the_work_tree(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "1")
    head = three.git("rev-parse", "HEAD")
    three.ok("patch", "drop", "third")
    assert three.git("rev-parse", "HEAD") == head
    assert [row["name"] for row in three.status()["patches"]] == ["first", "second"]


def test_move_changes_the_order_and_not_the_result(three: Sandbox) -> None:
    tree = three.git("rev-parse", "HEAD^{tree}")
    three.ok("patch", "move", "third", "1")
    assert sorted(three.files())[:3] == ["0001-third.patch", "0002-first.patch", "0003-second.patch"]
    assert three.git("rev-parse", "HEAD^{tree}") == tree
    assert three.ok("patch", "verify").code == 0
    assert "no place 4" in three.refused("patch", "move", "third", "4")


def test_a_move_that_conflicts_stops_and_abort_goes_back(box: Sandbox) -> None:
    box.patch("a", "README.md", "upstream\n", "one\n")
    box.patch("b", "README.md", "one\n", "two\n")
    before = box.state()
    assert "README.md" in box.refused("patch", "move", "b", "1", code=3)
    box.ok("patch", "abort")
    assert box.state() == before


def test_rename_keeps_the_commit_and_the_entry(three: Sandbox) -> None:
    head = three.git("rev-parse", "HEAD")
    listing = three.patches / "series.toml"
    listing.write_text(listing.read_text().replace('name = "second"', 'name = "second"\nnote = "mine"'))
    three.ok("patch", "rename", "second", "number-two")
    assert three.git("rev-parse", "HEAD") == head
    assert "0002-number-two.patch" in three.files() and "0002-second.patch" not in three.files()
    assert 'note = "mine"' in listing.read_text()
    assert "named first already" in three.refused("patch", "rename", "number-two", "first")
    assert "cannot be a patch name" in three.refused("patch", "rename", "number-two", "../x")


def test_comments_of_series_toml_survive(three: Sandbox) -> None:
    listing = three.patches / "series.toml"
    listing.write_text("# about this series\n" + listing.read_text())
    three.ok("patch", "drop", "first")
    assert listing.read_text().startswith("# about this series\n")


def test_undo_goes_back_step_by_step_to_the_beginning(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "2")
    three.ok("patch", "rename", "1", "uno")
    rows = three.ok("undo", "--list", "--json").json
    assert [row["doing"] for row in rows][:2] == ["patch rename first uno", "patch unapply"]
    for row in rows:
        three.ok("undo")
        if row["doing"].startswith("patch new"):
            # What the patch was made of comes back as edits; a further undo refuses to touch them.
            assert three.status()["state"] == "dirty"
            three.git("stash", "-q")
    assert three.git("rev-parse", "HEAD") == three.git("rev-parse", "pin/one")
    assert list(three.files()) == []
    assert "line three" in three.git("stash", "show", "-p", "stash@{0}")
    assert "nothing to take back" in three.refused("undo")


def test_undo_of_refresh_gives_the_edits_back(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "precious\n")
    files, head = three.files(), three.git("rev-parse", "HEAD")
    three.ok("patch", "refresh")
    three.ok("undo")
    assert three.files() == files
    assert three.git("rev-parse", "HEAD") == head
    assert (three.tree / "README.md").read_text() == "precious\n"
    assert three.status()["edits"] == ["README.md"]


def test_undo_refuses_what_would_lose_work(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "2")
    three.write("src/scale.c", "mine\n")
    assert "edited since" in three.refused("undo")
    three.git("commit", "-qam", "mine")
    assert "HEAD has moved" in three.refused("undo")
    three.git("reset", "-q", "--hard", "HEAD~1")
    three.ok("patch", "rename", "1", "uno")
    path = three.patches / "0001-uno.patch"
    path.write_bytes(path.read_bytes() + b"\n")
    assert "was changed since" in three.refused("undo")
