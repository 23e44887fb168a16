"""Commits that the user makes with plain git: each goes into the patch that it is, and no other patch is touched."""

from __future__ import annotations

import pytest
from series_helpers import Sandbox
from test_edit import texts

FIRST = "-line 3\n+line three\n"
SECOND = "-line 20\n+line twenty\n"
THIRD = "-upstream\n+downstream\n"
FOURTH = "-exit 0\n+exit 1\n"
OWN = "-    int x = 0;\n+    int x = 7;\n"
NEW_COMMIT = ("src/named.c", "twin_a(void) {\n    int x = 0;", "twin_a(void) {\n    int x = 7;")


@pytest.fixture
def quartet(three: Sandbox) -> Sandbox:
    """Four patches, all applied."""
    three.patch("fourth", "run.sh", "exit 0\n", "exit 1\n")
    return three


def commit(box: Sandbox, subject: str = "own : a commit", change: tuple[str, str, str] = NEW_COMMIT) -> None:
    box.replace(*change)
    box.git("commit", "-qam", subject)


def by_name(box: Sandbox) -> dict[str, str]:
    """What each patch changes, by its name, in order."""
    return {name[5:].removesuffix(".patch"): text for name, text in sorted(texts(box).items())}


def check_applied(box: Sandbox, done: str, count: int) -> None:
    """Everything is applied, the command said so, and the files give the recorded trees."""
    assert f"{count} of {count} patches applied" in done
    status = box.status()
    assert (status["state"], status["applied"], status["total"]) == ("applied", count, count)
    assert box.ok("patch", "verify").code == 0


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "subject", ["own : a commit", "third : change README.md", "second : change src/scale.c"]
)
def test_a_commit_during_an_edit_becomes_a_patch_there(quartet: Sandbox, depth: int, subject: str) -> None:
    names = list(by_name(quartet))
    quartet.ok("patch", "edit", str(depth))
    commit(quartet, subject)
    done = quartet.ok("patch", "continue")
    found = by_name(quartet)
    assert [found.pop(name) for name in names] == [FIRST, SECOND, THIRD, FOURTH]
    assert [*found.values()] == [OWN]
    assert list(by_name(quartet)).index(next(iter(found))) == depth
    check_applied(quartet, done.out, 5)


def test_commits_and_edits_during_an_edit(quartet: Sandbox) -> None:
    quartet.ok("patch", "edit", "2")
    quartet.replace("src/scale.c", "line twenty\n", "line XX\n")
    quartet.git("commit", "-qa", "--amend", "--no-edit")
    commit(quartet)
    commit(quartet, "own : another", ("src/scale.c", "line 33\n", "line xxxiii\n"))
    quartet.replace("src/scale.c", "line xxxiii\n", "line XXXIII\n")
    done = quartet.ok("patch", "continue")
    assert by_name(quartet) == {
        "first": FIRST,
        "second": "-line 20\n+line XX\n",
        "a-commit": OWN,
        "another": "-line 33\n+line XXXIII\n",
        "third": THIRD,
        "fourth": FOURTH,
    }
    check_applied(quartet, done.out, 6)


def test_an_edit_of_an_unapplied_patch_counts_only_what_was_applied(quartet: Sandbox) -> None:
    quartet.ok("patch", "unapply", "--to", "1")
    quartet.ok("patch", "edit", "3")
    commit(quartet)
    done = quartet.ok("patch", "continue")
    assert "4 of 5 patches applied" in done.out
    assert quartet.status()["applied"] == 4
    assert list(by_name(quartet)) == ["first", "second", "third", "a-commit", "fourth"]


def test_refresh_never_takes_a_new_commit_for_an_unapplied_patch(quartet: Sandbox) -> None:
    quartet.ok("patch", "unapply", "--to", "2")
    commit(quartet)
    assert "3 of 5 patches applied" in quartet.ok("patch", "refresh").out
    assert list(by_name(quartet)) == ["first", "second", "a-commit", "third", "fourth"]
    assert quartet.status()["applied"] == 3


def test_a_commit_after_a_reset_leaves_the_patch_that_was_reset_away(quartet: Sandbox) -> None:
    quartet.git("reset", "-q", "--hard", "HEAD~1")
    commit(quartet)
    quartet.ok("patch", "refresh")
    assert by_name(quartet) == {
        "first": FIRST,
        "second": SECOND,
        "third": THIRD,
        "a-commit": OWN,
        "fourth": FOURTH,
    }
    assert quartet.status()["applied"] == 4


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_reset_only_takes_patches_off(quartet: Sandbox, steps: int) -> None:
    files = quartet.files()
    quartet.git("reset", "-q", "--hard", f"HEAD~{steps}")
    assert f"{4 - steps} of 4 patches applied" in quartet.ok("patch", "refresh").out
    assert quartet.files() == files
    assert quartet.status()["applied"] == 4 - steps


@pytest.mark.parametrize("message", [None, "mine : reworded"])
def test_a_commit_that_equals_an_unapplied_patch_is_that_patch(quartet: Sandbox, message: str | None) -> None:
    third = quartet.git("rev-parse", "HEAD~1")
    quartet.ok("patch", "edit", "1")
    quartet.replace("src/scale.c", "line three\n", "line III\n")
    quartet.git("commit", "-qa", "--amend", "--no-edit")
    quartet.git("cherry-pick", third)
    if message:
        quartet.git("commit", "-q", "--amend", "--reset-author", "-m", message)
    done = quartet.ok("patch", "continue")
    assert by_name(quartet) == {
        "first": "-line 3\n+line III\n",
        "third": THIRD,
        "second": SECOND,
        "fourth": FOURTH,
    }
    check_applied(quartet, done.out, 4)


def rebase(box: Sandbox, *lines: str) -> None:
    """`git rebase -i` with `lines` as its list; `%n` is commit n of the branch."""
    commits = box.git("rev-list", "--reverse", "pin/one..HEAD").splitlines()
    text = "".join(f"{line}\n" for line in lines)
    for number, one in enumerate(commits, 1):
        text = text.replace(f"%{number}", one)
    todo = box.root / "todo"
    todo.write_text(text)
    env = {"GIT_SEQUENCE_EDITOR": f"cp {todo}", "GIT_EDITOR": "true"}
    box.git("rebase", "-q", "-i", "pin/one", env=env)


def test_reordered_commits_reorder_their_patches(quartet: Sandbox) -> None:
    rebase(quartet, "pick %3", "pick %1", "pick %4", "pick %2")
    done = quartet.ok("patch", "refresh")
    assert by_name(quartet) == {"third": THIRD, "first": FIRST, "fourth": FOURTH, "second": SECOND}
    assert list(by_name(quartet)) == ["third", "first", "fourth", "second"]
    check_applied(quartet, done.out, 4)


def test_a_rebase_that_edits_rewords_and_adds(quartet: Sandbox) -> None:
    reword = "exec git -c user.name=A -c user.email=a@b commit -q --amend -m 'second : another text'"
    add = "exec echo more >> README.md && git -c user.name=A -c user.email=a@b commit -qam 'own : more'"
    edit = "exec echo last >> run.sh && git -c user.name=A -c user.email=a@b commit -qa --amend -m 'other'"
    rebase(quartet, "pick %1", "pick %2", reword, "pick %3", add, "pick %4", edit)
    done = quartet.ok("patch", "refresh")
    assert by_name(quartet) == {
        "first": FIRST,
        "second": SECOND,
        "third": THIRD,
        "more": "+more\n",
        "fourth": "-exit 0\n+exit 1\n+last\n",
    }
    assert quartet.git("log", "--format=%s", "pin/one..").splitlines() == [
        "other",
        "own : more",
        "third : change README.md",
        "second : another text",
        "first : change src/scale.c",
    ]
    check_applied(quartet, done.out, 5)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (
            ("pick %1", "pick %2", "fixup %3", "pick %4"),
            {"first": FIRST, "second": THIRD + SECOND, "fourth": FOURTH},
        ),
        (
            ("pick %1", "pick %2", "pick %3", "squash %4"),
            {"first": FIRST, "second": SECOND, "third": THIRD + FOURTH},
        ),
        (
            ("pick %4", "pick %1", "squash %2", "squash %3"),
            {"fourth": FOURTH, "first": THIRD + FIRST + SECOND},
        ),
        (
            ("pick %4", "squash %1", "exec git -c user.name=B -c user.email=b@c commit -q --amend --reset-author "
             "-m 'own : all new'", "pick %2", "pick %3"),
            {"first": FOURTH + FIRST, "second": SECOND, "third": THIRD},
        ),
    ],
)  # fmt: skip
def test_squashed_commits_squash_their_patches(
    quartet: Sandbox, lines: tuple[str, ...], wanted: dict[str, str]
) -> None:
    described = quartet.files()["series.toml"].decode()
    for name in ("first", "second", "third", "fourth"):
        head, tail = described.split(f'name = "{name}"')
        described = f'{head}name = "{name}"' + tail.replace("proof = []", f'proof = ["t.py::{name}"]', 1)
    (quartet.patches / "series.toml").write_text(described)
    before = quartet.files()
    rebase(quartet, *lines)
    tree, subjects = quartet.git("rev-parse", "HEAD^{tree}"), quartet.git("log", "--format=%B", "pin/one..")
    done = quartet.ok("patch", "refresh")
    found = by_name(quartet)
    assert list(found) == list(wanted)
    assert {n: sorted(text.splitlines()) for n, text in found.items()} == {
        n: sorted(text.splitlines()) for n, text in wanted.items()
    }
    assert "is part of" in done.out
    assert quartet.git("rev-parse", "HEAD^{tree}") == tree
    assert quartet.git("log", "--format=%B", "pin/one..") == subjects
    toml = quartet.files()["series.toml"].decode()
    assert all(toml.count(f"t.py::{name}") == 1 for name in ("first", "second", "third", "fourth"))
    check_applied(quartet, done.out, len(wanted))
    quartet.ok("undo")
    assert quartet.files() == before


def test_a_patch_that_a_rebase_took_out_is_never_lost(quartet: Sandbox) -> None:
    rebase(quartet, "pick %1", "pick %2", "pick %4")
    before = quartet.state()
    tree = quartet.git("rev-parse", "HEAD^{tree}")
    told = quartet.refused("patch", "refresh")
    assert "(third) is not among the commits any more" in told
    assert quartet.state() == before
    # The way out that it names works.
    command = told.split("on purpose: pyggml ")[1].split(". Otherwise")[0]
    done = quartet.ok(*command.split())
    assert quartet.git("rev-parse", "HEAD^{tree}") == tree
    lines_left = "".join(by_name(quartet).values())
    assert all(part in lines_left for part in (FIRST, SECOND, FOURTH))
    assert THIRD not in lines_left
    check_applied(quartet, done.out, 3)


def test_commits_with_the_same_subject_and_author(box: Sandbox) -> None:
    env = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b"}
    for path, old, new in (
        ("src/scale.c", "line 3\n", "line three\n"),
        ("README.md", "upstream\n", "downstream\n"),
        ("run.sh", "exit 0\n", "exit 1\n"),
    ):
        box.replace(path, old, new)
        box.git("commit", "-qam", "same", env=env)
    box.ok("patch", "refresh")
    assert by_name(box) == {"same": FIRST, "same-2": THIRD, "same-3": FOURTH}
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line 20\n", "line twenty\n")
    box.git("commit", "-qam", "same", env=env)
    told = box.pyggml("patch", "continue")
    assert told.code == 0, told.err
    # Which patch the commit is cannot be known; none of the four changes is lost.
    assert sorted(by_name(box).values()) == sorted([FIRST, SECOND, THIRD, FOURTH])


def test_an_empty_commit_is_refused(quartet: Sandbox) -> None:
    quartet.ok("patch", "edit", "2")
    quartet.git("commit", "-q", "--allow-empty", "-m", "nothing")
    before = quartet.state()
    assert "changes nothing" in quartet.refused("patch", "continue")
    assert quartet.state() == before
    quartet.git("reset", "-q", "--keep", "HEAD~1")
    quartet.ok("patch", "continue")
    assert list(by_name(quartet)) == ["first", "second", "third", "fourth"]


def test_a_patch_that_takes_another_back_keeps_its_place(quartet: Sandbox) -> None:
    """The tree after it is the one before the other: trees alone do not say where HEAD is."""
    quartet.git("revert", "--no-edit", "HEAD")
    quartet.ok("patch", "refresh")
    assert quartet.status()["applied"] == 5
    quartet.patch("sixth", "src/scale.c", "line 30\n", "line thirty\n")
    assert list(by_name(quartet))[-1] == "sixth"
    quartet.ok("patch", "unapply", "--to", "3")
    assert quartet.status()["applied"] == 3
    quartet.ok("patch", "apply")
    assert quartet.status()["applied"] == 6


@pytest.mark.parametrize("command", [("unapply",), ("drop", "1"), ("edit", "1"), ("move", "1", "2")])
def test_a_reworded_commit_is_not_left_behind(quartet: Sandbox, command: tuple[str, ...]) -> None:
    """Its tree is that of the series, but its message is in no patch file."""
    quartet.git("commit", "-q", "--amend", "-m", "fourth : in better words")
    before = quartet.state()
    told = quartet.refused("patch", *command)
    assert "commits of yours" in told and "pyggml patch refresh" in told
    assert quartet.state() == before
    quartet.ok("patch", "refresh")
    assert "in better words" in quartet.files()["0004-fourth.patch"].decode()
    quartet.ok("patch", *command)
