"""Synthetic upstreams: identical functions, a moved file, a partly merged patch, a reverted line."""

from __future__ import annotations

from pathlib import Path

from rebase_helpers import BLOCK, LINES, OLD, TwoPins, make_two_pins

ONTO = ("patch", "rebase", "--onto", "two", "--json")


def in_twin(text: str, name: str, old: str, new: str) -> str:
    """`old` replaced by `new` in the function twin_<name> only."""
    head, _, rest = text.partition(f"twin_{name}(")
    return head + f"twin_{name}(" + rest.replace(old, new, 1)


def with_twin_patch(directory: Path, new_twins: str, which: str = "c") -> TwoPins:
    box = make_two_pins(directory, OLD, {**OLD, "twins.c": new_twins})
    text = in_twin(OLD["twins.c"], which, "x += 1;", "x += 2;")
    box.write("twins.c", text)
    box.ok("patch", "new", "twin", "-m", "twin : two")
    return box


def test_the_patch_stays_in_its_function_among_identical_ones(tmp_path: Path) -> None:
    """Upstream drops the first of four identical functions: at its old line the hunk would fit the wrong one."""
    upstream = "".join(BLOCK.format(name) for name in "bcd")
    box = with_twin_patch(tmp_path, upstream)
    (found,) = box.ok(*ONTO).json["patches"]
    assert found["verdict"] == "merged"
    (move,) = found["moves"]
    assert (move["before"]["function"], move["after"]["function"]) == ("twin_c", "twin_c")
    # The hunk's context holds the function's own name; test_rebase_show.py has functions that are longer.
    assert (move["before"]["candidates"], move["after"]["candidates"], move["offset"]) == (1, 1, -6)
    assert (box.tree / "twins.c").read_text() == in_twin(upstream, "c", "x += 1;", "x += 2;")


def test_a_hunk_that_landed_in_another_function_waits_for_confirmation(tmp_path: Path) -> None:
    upstream = OLD["twins.c"].replace("twin_c", "other")
    box = with_twin_patch(tmp_path, upstream)
    done = box.pyggml(*ONTO)
    assert done.code == 3 and done.json["dossier"]["kind"] == "confirm"
    assert done.json["dossier"]["functions"] == ["twins.c: twin_c -> other"]
    assert not box.new.exists()
    assert "--confirm" in box.refused("patch", "rebase", "--continue")
    box.ok("patch", "rebase", "--continue", "--confirm")
    assert "x += 2;" in (box.tree / "twins.c").read_text().split("other(")[1].split("}")[0]
    # The confirmation is remembered: the same rebase asks no more.
    record = box.new_files()["resolutions/rebase.toml"]
    assert b"twins.c: twin_c -> other" in record
    box.ok("undo")
    (box.new / "resolutions").mkdir(parents=True, exist_ok=True)
    (box.new / "resolutions/rebase.toml").write_bytes(record)
    box.ok(*ONTO)


def test_a_hunk_in_the_wrong_function_can_be_moved_by_hand(tmp_path: Path) -> None:
    upstream = OLD["twins.c"].replace("twin_c", "other").replace("twin_a", "twin_c")
    box = with_twin_patch(tmp_path, upstream)
    assert box.pyggml(*ONTO).json["dossier"]["kind"] == "confirm"
    right = in_twin(upstream, "c", "x += 1;", "x += 2;")
    box.resolve("twins.c", right)
    (found,) = box.ok("patch", "rebase", "--continue", "--json").json["patches"]
    assert (box.tree / "twins.c").read_text() == right
    assert found["moves"][0]["after"]["function"] == "twin_c" and found["resolution"] == "replayed"


def test_a_new_signature_is_not_another_function(tmp_path: Path) -> None:
    upstream = OLD["twins.c"].replace("twin_c(void)", "twin_c(int more)")
    box = with_twin_patch(tmp_path, upstream)
    assert box.ok(*ONTO).json["patches"][0]["moves"][0]["function_changed"] is False


def spread(changed: set[int], word: str = "mine") -> str:
    """24 places far enough apart to be 24 hunks; those in `changed` are changed."""
    return "".join(
        f"// place {n}\n" + (f"value {n} {word}\n" if n in changed else f"value {n}\n") + "a\nb\nc\nd\ne\nf\n"
        for n in range(1, 25)
    )


def test_a_patch_of_which_upstream_merged_15_of_24_hunks(tmp_path: Path) -> None:
    theirs = {n for n in range(1, 25) if n % 8 not in (0, 3, 6)}
    assert len(theirs) == 15
    box = make_two_pins(tmp_path, {"m.txt": spread(set())}, {"m.txt": "top\n" + spread(theirs)})
    box.write("m.txt", spread(set(range(1, 25))))
    box.ok("patch", "new", "many", "-m", "many : 24 places")
    (found,) = box.ok(*ONTO).json["patches"]
    assert found["verdict"] == "partly upstream"
    assert (found["hunks"], found["upstream_hunks"]) == (24, sorted(theirs))
    assert found["summary"] == "partly upstream (15 of 24 hunks are upstream)"
    left = box.new_files()["0001-many.patch"].decode()
    assert left.count("\n@@ ") == 9
    assert (box.tree / "m.txt").read_text() == "top\n" + spread(set(range(1, 25)))


def test_a_patch_that_upstream_merged_whole_is_left_out_with_the_evidence(tmp_path: Path) -> None:
    every = set(range(1, 25))
    box = make_two_pins(
        tmp_path, {"m.txt": spread(set()), "n.txt": "1\n"}, {"m.txt": spread(every), "n.txt": "1\n"}
    )
    box.patch("other", "n.txt", "1\n", "2\n")
    box.write("m.txt", spread(every))
    box.write("new.txt", "made by both\n")
    box.git("add", "new.txt")
    box.ok("patch", "new", "many", "-m", "many : 24 places")
    found = box.ok(*ONTO).json["patches"]
    # new.txt is not upstream: that alone is left.
    assert (found[1]["verdict"], found[1]["hunks"], len(found[1]["upstream_hunks"])) == (
        "partly upstream",
        25,
        24,
    )
    box.ok("undo")
    box.ok("patch", "edit", "many")
    box.git("rm", "-qf", "new.txt")
    box.ok("patch", "continue")
    found = box.ok(*ONTO).json["patches"]
    assert [patch["verdict"] for patch in found] == ["clean", "already upstream"]
    assert "24 of 24 hunks are in two" in found[1]["reason"]
    assert b"already upstream" in box.new_files()["resolutions/rebase.toml"]
    assert box.status()["total"] == 1


def test_a_conflict_over_a_patch_that_upstream_has_in_another_form_shows_its_traces(tmp_path: Path) -> None:
    """A back-ported fix, upstream in the next version: around it the file has changed, so no hunk is recognised."""
    old = {"a.c": "".join(LINES)}
    fix = "checked(first)\nchecked(second)\n}\n"
    new = (
        "".join(LINES).replace("line 19\n", "line nineteen\n").replace("line 20\n", fix + "checked(third)\n")
    )
    box = make_two_pins(tmp_path, old, {"a.c": new})
    box.patch("fix", "a.c", "line 20\n", fix + "checked(3rd)\n")
    done = box.pyggml(*ONTO)
    assert done.code == 3
    dossier = done.json["dossier"]
    # Of the four lines that it adds the brace does not count, and the last is another.
    assert dossier["traces"] == {"standing": 2, "added": 3, "gone": 1, "removed": 1}
    assert dossier["upstream_hunks"] == []
    told = (box.root / ".pyggml/rebase/dossier.md").read_text()
    assert "2 of the 3 lines that the patch adds are in the same files of two, and 1 of the 1" in told
    box.ok("patch", "rebase", "--abort")


def test_a_line_of_upstream_that_the_new_patch_reverts_is_reported(tmp_path: Path) -> None:
    old = {"a.c": "".join(LINES)}
    fixed = "".join(LINES).replace("line 20\n", "line 20, fixed\nand one more\n")
    box = make_two_pins(tmp_path, old, {"a.c": fixed})
    box.patch("mine", "a.c", "line 20\n", "line 20 of mine\n")
    assert box.pyggml(*ONTO).code == 3
    # Taking the patch's side as it is reverts what upstream added.
    box.resolve("a.c", old["a.c"].replace("line 20\n", "line 20 of mine\n"))
    (found,) = box.ok("patch", "rebase", "--continue", "--json").json["patches"]
    assert found["deleted_upstream_lines"] == [
        {"path": "a.c", "line": "line 20, fixed"},
        {"path": "a.c", "line": "and one more"},
    ]


def test_a_clean_merge_reports_no_reverted_line(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, {**OLD, "a.c": "".join(LINES[5:])})
    box.patch("mine", "a.c", "line 20\n", "line 20 of mine\n")
    (found,) = box.ok(*ONTO).json["patches"]
    assert found["deleted_upstream_lines"] == [] and found["moves"][0]["offset"] == -5


def test_moved_and_changed_file(tmp_path: Path) -> None:
    moved = "top\n" + OLD["twins.c"]
    new = {**{name: text for name, text in OLD.items() if name != "twins.c"}, "src/twins.c": moved}
    box = make_two_pins(tmp_path, OLD, new)
    box.write("twins.c", in_twin(OLD["twins.c"], "c", "x += 1;", "x += 2;"))
    box.ok("patch", "new", "twin", "-m", "twin : two")
    (found,) = box.ok(*ONTO).json["patches"]
    (move,) = found["moves"]
    assert (move["after"]["path"], move["after"]["function"], move["offset"]) == ("src/twins.c", "twin_c", 1)
