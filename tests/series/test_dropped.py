"""patch refresh --dropped: commits that `git rebase -i` removed on purpose. git is the oracle of what is left."""

from __future__ import annotations

import pytest
from series_helpers import Sandbox
from test_branch import FIRST, FOURTH, SECOND, THIRD, by_name, check_applied, commit, quartet, rebase

__all__ = ["quartet"]

REWORD = "exec git -c user.name=A -c user.email=a@b commit -q --amend -m 'other words'"
EDIT = "exec echo last >> run.sh && git -c user.name=A -c user.email=a@b commit -qa --amend -m 'other'"
# A commit that keeps its subject is still the patch, whatever else it changes.
CHANGED = "exec echo more >> README.md && git -c user.name=A -c user.email=a@b commit -qa --amend --no-edit"
WALKS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]] = {
    "one": (("pick %1", "pick %2", "pick %4"), ("third",), {"first": FIRST, "second": SECOND, "fourth": FOURTH}),
    "topmost": (("pick %1", "pick %2"), ("third", "4"), {"first": FIRST, "second": SECOND}),
    "all but one": (("pick %4",), ("first", "second", "third"), {"fourth": FOURTH}),
    "all": (("noop",), ("first", "second", "third", "fourth"), {}),
    "reordered": (("pick %4", "pick %3"), ("first", "second"), {"fourth": FOURTH, "third": THIRD}),
    "reworded": (("pick %2", REWORD, "pick %4"), ("first", "third"), {"second": SECOND, "fourth": FOURTH}),
    "edited and reworded": (
        ("pick %2", "pick %4", EDIT),
        ("first", "third"),
        {"second": SECOND, "fourth": FOURTH + "+last\n"},
    ),
    "squashed": (("pick %4", "fixup %1"), ("second", "third"), {"fourth": FIRST + FOURTH}),
    "all of it": (
        ("pick %3", REWORD, "pick %1", "squash %4"),
        ("second",),
        {"third": THIRD, "first": FOURTH + FIRST},
    ),
}  # fmt: skip


def history(box: Sandbox) -> tuple[str, str]:
    return box.git("rev-parse", "HEAD^{tree}"), box.git("log", "--format=%an %ae %T %B", "pin/one..")


@pytest.mark.parametrize("walk", WALKS)
def test_what_a_rebase_dropped_goes_away(quartet: Sandbox, walk: str) -> None:
    lines, dropped, wanted = WALKS[walk]
    before = quartet.files()
    rebase(quartet, *lines)
    rebased, after = quartet.state(), history(quartet)
    done = quartet.ok("patch", "refresh", "--dropped", *dropped)
    assert history(quartet) == after
    assert {n: sorted(text.splitlines()) for n, text in by_name(quartet).items()} == {
        n: sorted(text.splitlines()) for n, text in wanted.items()
    }
    assert list(by_name(quartet)) == list(wanted)
    if wanted:
        check_applied(quartet, done.out, len(wanted))
    quartet.ok("undo")
    assert quartet.files() == before and quartet.state() == rebased


@pytest.mark.parametrize(
    ("lines", "dropped", "told"),
    [
        (("pick %1", "pick %4"), (), "patches 2 (second), 3 (third) are not among"),
        (("pick %1", "pick %4"), ("second",), "patch 3 (third) is not among"),
        (("pick %1", "pick %2", "pick %4"), ("second",), "patch second was not dropped: commit "),
        (("pick %1", "pick %2", "pick %4"), ("third", "4"), "patch fourth was not dropped: commit "),
        (
            ("pick %1", "pick %2", "pick %3", CHANGED, "pick %4"),
            ("third",),
            "patch third was not dropped: commit ",
        ),
    ],
)
def test_other_names_than_those_missing(
    quartet: Sandbox, lines: tuple[str, ...], dropped: tuple[str, ...], told: str
) -> None:
    rebase(quartet, *lines)
    before = quartet.state()
    said = quartet.refused("patch", "refresh", *(["--dropped", *dropped] if dropped else []))
    assert told in said
    if "What is missing" in said or "on purpose" in said:
        command = said.split("pyggml ")[1].split(". ")[0].split()
        missing = {"second", "third"} if len(lines) == 2 else {"third"}
        assert set(command[3:]) == missing
        assert quartet.state() == before
        quartet.ok(*command)
        assert set(by_name(quartet)) == {"first", "second", "third", "fourth"} - missing
    else:
        assert "No applied patch is missing" in said and quartet.state() == before


def test_names_that_are_no_applied_patch(quartet: Sandbox) -> None:
    quartet.ok("patch", "unapply", "--to", "2")
    commit(quartet)
    before = quartet.state()
    assert "patch drop fourth" in quartet.refused("patch", "refresh", "--dropped", "fourth")
    assert "no patch 'fifth'" in quartet.refused("patch", "refresh", "--dropped", "fifth")
    assert "takes the names" in quartet.refused("patch", "refresh", "--dropped", code=2)
    assert "takes the names" in quartet.refused("patch", "refresh", "--dropped", "-p", "1", "2", code=2)
    assert "go together" in quartet.refused("patch", "continue", "second", code=2)
    assert quartet.state() == before


def test_patches_that_are_not_applied_stay(quartet: Sandbox) -> None:
    quartet.ok("patch", "unapply", "--to", "3")
    rebase(quartet, "pick %1", "pick %3")
    told = quartet.ok("patch", "refresh", "--dropped", "second").out
    assert "2 of 3 patches applied" in told
    assert by_name(quartet) == {"first": FIRST, "third": THIRD, "fourth": FOURTH}
    quartet.ok("patch", "apply")
    assert quartet.ok("patch", "verify").code == 0


def test_a_later_patch_that_needs_the_dropped_one_conflicts(quartet: Sandbox) -> None:
    quartet.patch("fifth", "src/scale.c", "line twenty\n", "line zwanzig\n")
    quartet.ok("patch", "unapply", "--to", "4")
    before = quartet.state()
    rebase(quartet, "pick %1", "pick %3", "pick %4")
    assert "patch fifth conflicts" in quartet.refused("patch", "refresh", "--dropped", "second", code=3)
    quartet.write(
        "src/scale.c", quartet.git("show", "HEAD:src/scale.c").replace("line 20\n", "line zwanzig\n") + "\n"
    )
    quartet.ok("patch", "continue")
    assert by_name(quartet)["fifth"] == "-line 20\n+line zwanzig\n"
    assert "second" not in by_name(quartet)
    quartet.ok("undo")
    quartet.ok("undo")
    assert quartet.files() == before[1]


def test_a_patch_dropped_during_an_edit(quartet: Sandbox) -> None:
    quartet.ok("patch", "edit", "third")
    rebase(quartet, "pick %1", "pick %3")
    told = quartet.refused("patch", "continue")
    assert "(second) is not among the commits any more" in told
    assert "pyggml patch continue --dropped second." in told
    done = quartet.ok("patch", "continue", "--dropped", "second")
    assert by_name(quartet) == {"first": FIRST, "third": THIRD, "fourth": FOURTH}
    check_applied(quartet, done.out, 3)
