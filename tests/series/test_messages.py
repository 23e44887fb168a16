"""What a command says it did is what it did: counts as `patch status` has them, and the files that it changed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from series_helpers import Sandbox

Step = Callable[[Sandbox], object]


def check_said(box: Sandbox, *args: str) -> str:
    """Run a command; its counts must be those of `status`, its files those that differ afterwards."""
    before = box.files()
    said = box.ok(*args).out
    after = box.files()
    status = box.status()
    counts = re.findall(r"(\d+) of (\d+) patches applied", said)
    assert counts in ([], [(str(status["applied"]), str(status["total"]))]), said
    assert counts or status["operation"] or args[0] == "undo"
    wrote = {line.rsplit("/", 1)[-1] for line in said.splitlines() if line.startswith("wrote ")}
    removed = {line.rsplit("/", 1)[-1] for line in said.splitlines() if line.startswith("removed ")}
    moved = [
        re.fullmatch(r"moved .*/(\S+) to (\S+)", line) for line in said.splitlines() if line[:6] == "moved "
    ]
    pairs = {match[1]: match[2] for match in moved if match}
    assert len(pairs) == len(moved)
    if args[0] != "undo" and args[1] not in ("abort", "apply", "unapply"):
        gone, new = before.keys() - after.keys(), after.keys() - before.keys()
        changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
        assert removed | pairs.keys() == gone
        assert wrote | set(pairs.values()) == new | changed
        assert not wrote & set(pairs.values()) and not removed & pairs.keys()
    return said


def edited(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line three\n", "line III\n")


def stopped(box: Sandbox, *args: str) -> None:
    """A command that stops at a conflict: the second patch is put on the first, which it needs."""
    box.patch("needed", "src/named.c", "twin_a(", "twin_z(")
    box.patch("needs", "src/named.c", "twin_z(", "twin_zz(")
    box.refused(*args, code=3)


CASES: dict[str, tuple[Step, tuple[str, ...]]] = {
    "drop the last": (lambda box: None, ("patch", "drop", "3")),
    "drop the first": (lambda box: None, ("patch", "drop", "1")),
    "drop an unapplied one": (lambda box: box.ok("patch", "unapply", "--to", "1"), ("patch", "drop", "3")),
    "move up": (lambda box: None, ("patch", "move", "3", "1")),
    "move down": (lambda box: None, ("patch", "move", "1", "3")),
    "rename": (lambda box: None, ("patch", "rename", "2", "zwei")),
    "rename with edits": (lambda box: box.write("run.sh", "x\n"), ("patch", "rename", "2", "zwei")),
    "rename an unapplied one": (
        lambda box: box.ok("patch", "unapply", "--to", "1"),
        ("patch", "rename", "3", "drei"),
    ),
    "rename after commits": (
        lambda box: (box.write("run.sh", "x\n"), box.git("commit", "-qam", "own : a commit")),
        ("patch", "rename", "2", "zwei"),
    ),
    "new": (lambda box: box.write("run.sh", "x\n"), ("patch", "new", "four", "-m", "four")),
    "new in the middle": (
        lambda box: (box.ok("patch", "unapply", "--to", "1"), box.write("run.sh", "x\n")),
        ("patch", "new", "four", "-m", "four"),
    ),
    "new begun": (lambda box: None, ("patch", "new", "four", "-m", "four")),
    "edit": (lambda box: None, ("patch", "edit", "2")),
    "continue": (edited, ("patch", "continue")),
    "abort of an edit": (edited, ("patch", "abort")),
    "abort of an edit of an unapplied patch": (
        lambda box: (box.ok("patch", "unapply"), box.ok("patch", "edit", "3")),
        ("patch", "abort"),
    ),
    "abort of a new one": (lambda box: box.ok("patch", "new", "four"), ("patch", "abort")),
    "abort after undo of a new one": (
        lambda box: (
            box.ok("patch", "new", "four", "-m", "four"),
            box.write("run.sh", "x\n"),
            box.ok("patch", "continue"),
            box.ok("undo"),
        ),
        ("patch", "abort"),
    ),
    "abort of a stopped drop": (lambda box: stopped(box, "patch", "drop", "needed"), ("patch", "abort")),
    "abort of a stopped move": (lambda box: stopped(box, "patch", "move", "needs", "1"), ("patch", "abort")),
    "abort of a stopped refresh": (
        lambda box: (
            box.ok("patch", "unapply", "--to", "1"),
            box.replace("src/scale.c", "line 20\n", "line zwanzig\n"),
            box.refused("patch", "refresh", code=3),
        ),
        ("patch", "abort"),
    ),
    "refresh": (lambda box: box.write("run.sh", "x\n"), ("patch", "refresh")),
    "refresh with nothing to do": (lambda box: None, ("patch", "refresh")),
    "refresh with a commit": (
        lambda box: (box.write("run.sh", "x\n"), box.git("commit", "-qam", "own : a commit")),
        ("patch", "refresh"),
    ),
    "refresh in the middle": (
        lambda box: (box.ok("patch", "unapply", "--to", "2"), box.write("run.sh", "x\n")),
        ("patch", "refresh"),
    ),
    "unapply": (lambda box: None, ("patch", "unapply", "--to", "1")),
    "apply": (lambda box: box.ok("patch", "unapply"), ("patch", "apply", "--to", "2")),
    "undo": (lambda box: box.ok("patch", "drop", "1"), ("undo",)),
    "redo": (lambda box: (box.ok("patch", "drop", "1"), box.ok("undo")), ("undo", "--redo")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_command_says_what_it_did(three: Sandbox, case: str) -> None:
    prepare, args = CASES[case]
    prepare(three)
    check_said(three, *args)


def test_import_says_what_it_did(three: Sandbox) -> None:
    mail = three.root / "mail.patch"
    mail.write_bytes((three.patches / "0003-third.patch").read_bytes())
    three.ok("patch", "drop", "third")
    check_said(three, "patch", "import", str(mail))


def test_what_drop_move_and_rename_print(three: Sandbox) -> None:
    assert three.ok("patch", "move", "3", "1").out.splitlines() == [
        "moved patches/one/0001-first.patch to 0002-first.patch",
        "moved patches/one/0002-second.patch to 0003-second.patch",
        "moved patches/one/0003-third.patch to 0001-third.patch",
        "wrote patches/one/series.toml",
        "series on pin one: 3 of 3 patches applied",
    ]
    assert three.ok("patch", "rename", "3", "last").out.splitlines() == [
        "moved patches/one/0003-second.patch to 0003-last.patch",
        "wrote patches/one/series.toml",
        "series on pin one: 3 of 3 patches applied",
    ]
    dropped = three.ok("patch", "drop", "last", "--json").json
    assert dropped["removed"] == ["patches/one/0003-last.patch"]
    assert dropped["written"] == ["patches/one/series.toml"]
    assert (dropped["applied"], dropped["total"], dropped["renamed"]) == (2, 2, [])
