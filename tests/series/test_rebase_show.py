"""One synthetic upstream with everything that goes wrong quietly: each is reported as what it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from rebase_helpers import LINES, TwoPins, make_two_pins
from test_rebase_verdicts import spread

TWIN = (
    "static int twin_{0}(void) {{\n"
    + "".join(f"    step({n});\n" for n in range(9))
    + "    return 0;\n}}\n\n"
)
TWINS = "".join(TWIN.format(name) for name in "abcd")
MERGED = {n for n in range(1, 25) if n % 8 not in (0, 3, 6)}
OLD = {
    "twins.c": TWINS,
    "io.c": "int io(void) {\n" + "".join(LINES) + "}\n",
    "many.txt": spread(set()),
    "fix.c": "".join(LINES),
}
NEW = {
    "twins.c": TWINS.removeprefix(TWIN.format("a")),
    "src/io.c": "// moved\nint io(void) {\n" + "".join(LINES) + "}\n",
    "many.txt": "top\n" + spread(MERGED),
    "fix.c": "".join(LINES).replace("line 20\n", "line 20, fixed\nand one more\n"),
}


def in_function(text: str, name: str) -> str:
    return text.partition(f"twin_{name}(")[2].partition("\n}")[0]


@pytest.fixture
def show(tmp_path: Path) -> TwoPins:
    """Four patches on the older pin; the fourth conflicts on the newer one."""
    box = make_two_pins(tmp_path, OLD, NEW)
    head, mark, rest = TWINS.partition("twin_c(")
    box.write("twins.c", head + mark + rest.replace("step(5);", "step(55);", 1))
    box.ok("patch", "new", "placement", "-m", "placement : twin_c")
    box.patch("moved", "io.c", "line 30\n", "line thirty\n")
    box.write("many.txt", spread(set(range(1, 25))))
    box.ok("patch", "new", "many", "-m", "many : 24 places")
    box.patch("mine", "fix.c", "line 20\n", "line 20 of mine\n")
    return box


def test_git_itself_puts_the_hunk_into_the_wrong_function(show: TwoPins, tmp_path: Path) -> None:
    """What the rest is measured against: the same patch file, with exit status 0, in twin_d."""
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "upstream-two", copy)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    subprocess.run(["git", "apply", show.patches / "0001-placement.patch"], cwd=copy, check=True)
    assert "step(55)" in in_function((copy / "twins.c").read_text(), "d")


def test_each_is_reported_as_what_it_is(show: TwoPins) -> None:
    before = show.everything()
    done = show.pyggml("patch", "rebase", "--onto", "two", "--json")
    assert done.code == 3 and done.json["dossier"]["patch"] == "mine"
    assert [patch["verdict"] for patch in done.json["patches"]] == ["merged", "merged", "partly upstream"]
    assert show.everything() == before
    # The patch's side as it was made: upstream's fix is lost.
    show.resolve("fix.c", OLD["fix.c"].replace("line 20\n", "line 20 of mine\n"))
    found = {
        patch["name"]: patch for patch in show.ok("patch", "rebase", "--continue", "--json").json["patches"]
    }

    (move,) = found["placement"]["moves"]
    assert (move["before"]["function"], move["after"]["function"]) == ("twin_c", "twin_c")
    assert (move["before"]["candidates"], move["after"]["candidates"]) == (4, 3)
    assert move["offset"] == -TWIN.count("\n") and not move["function_changed"]
    twins = (show.tree / "twins.c").read_text()
    assert [name for name in "bcd" if "step(55)" in in_function(twins, name)] == ["c"]

    (move,) = found["moved"]["moves"]
    assert (move["before"]["path"], move["after"]["path"], move["offset"]) == ("io.c", "src/io.c", 1)
    assert "line thirty\n" in (show.tree / "src/io.c").read_text() and not (show.tree / "io.c").exists()

    assert (found["many"]["hunks"], found["many"]["upstream_hunks"]) == (24, sorted(MERGED))
    assert show.new_files()["0003-many.patch"].count(b"\n@@ ") == 24 - 15
    assert (show.tree / "many.txt").read_text() == "top\n" + spread(set(range(1, 25)))

    assert found["mine"]["deleted_upstream_lines"] == [
        {"path": "fix.c", "line": "line 20, fixed"},
        {"path": "fix.c", "line": "and one more"},
    ]
    assert all(not found[name]["deleted_upstream_lines"] for name in ("placement", "moved", "many"))


def test_the_same_as_text(show: TwoPins) -> None:
    told = show.pyggml("patch", "rebase", "--onto", "two")
    assert told.code == 3 and "fix.c" in told.err
    show.resolve("fix.c", OLD["fix.c"].replace("line 20\n", "line 20 of mine\n"))
    out = show.ok("patch", "rebase", "--continue").out
    for line in (
        "in twin_c, 4 places matched before, 3 now",
        "io.c:31 -> src/io.c:32 (+1) in io",
        "partly upstream (15 of 24 hunks are upstream)",
        "upstream already: hunks " + ", ".join(map(str, sorted(MERGED))),
        "look: deletes a line of upstream that the old patch did not delete: fix.c: line 20, fixed",
        "look: deletes a line of upstream that the old patch did not delete: fix.c: and one more",
    ):
        assert line in out, out
