"""patch squash and patch split: other patches, the same source."""

from __future__ import annotations

import re
import tomllib

import pytest
from series_helpers import Sandbox
from test_edit import texts


def entries(box: Sandbox) -> list[dict]:
    return tomllib.loads(box.files()["series.toml"].decode())["patch"]


def describe(box: Sandbox, name: str, **keys: object) -> None:
    """Give a patch keys in series.toml."""
    text = box.files()["series.toml"].decode()
    for key, value in keys.items():
        literal = str(value).replace("'", '"')
        start = text.index(f'name = "{name}"')
        end = text.find("[[patch]]", start) if "[[patch]]" in text[start:] else len(text)
        part = re.sub(rf"(?m)^{key} = .*\n", "", text[start:end])
        part = part.replace("tree = ", f"{key} = {literal}\ntree = ")
        text = text[:start] + part + text[end:]
    (box.patches / "series.toml").write_text(text)


def resolve(box: Sandbox, path: str, text: str) -> None:
    """Put `text` where the conflict marks are."""
    now = (box.tree / path).read_text()
    start, end = now.index("<<<<<<<"), now.index("\n", now.index(">>>>>>>")) + 1
    box.write(path, now[:start] + text + now[end:])


@pytest.mark.parametrize(
    ("which", "names"),
    [
        (("1", "2"), ["first", "third"]),
        (("third", "first"), ["first", "second"]),
        (("1", "2", "3"), ["first"]),
    ],
)
def test_squash_keeps_the_source(three: Sandbox, which: tuple[str, ...], names: list[str]) -> None:
    before, files = three.state()[0], three.files()
    done = three.ok("patch", "squash", *which)
    assert f"{len(names)} of {len(names)} patches applied" in done.out
    assert [entry["name"] for entry in entries(three)] == names
    assert three.state()[0] == before
    assert "line three" in texts(three)["0001-first.patch"]
    assert three.ok("patch", "verify").code == 0 and three.status()["state"] == "applied"
    three.ok("undo")
    assert three.files() == files


def test_squash_joins_messages_authors_and_entries(three: Sandbox) -> None:
    three.git("commit", "-q", "--amend", "--author", "Bob <bob@example.org>", "--no-edit")
    three.ok("patch", "refresh")
    describe(three, "first", purpose="'One.'", proof=["t.py::a"])
    describe(three, "third", purpose="'Three.'", proof=["t.py::b", "t.py::a"])
    describe(three, "third", **{"fails-with": "'boom'", "drop-when": "'never'"})
    told = three.ok("patch", "squash", "1", "3").out
    assert "proofs of first and third" in told and "patch prove first" in told and "boom" in told
    assert entries(three)[0] | {"tree": ""} == {
        "name": "first",
        "file": "0001-first.patch",
        "purpose": "One. Three.",
        "drop-when": "never",
        "proof": ["t.py::a", "t.py::b"],
        "tree": "",
    }
    assert three.git("log", "-1", "--format=%an%n%B", "HEAD~1").strip() == (
        "Ada\nfirst : change src/scale.c\n\nWhy: because.\n\nthird : change README.md\n\nWhy: because.\n\n"
        "Co-authored-by: Bob <bob@example.org>"
    )
    three.ok("patch", "squash", "1", "2", "-m", "both : all of it", "-n", "both")
    assert three.git("log", "-1", "--format=%an %s") == "Ada both : all of it"
    assert [entry["name"] for entry in entries(three)] == ["both"]


def test_squash_of_unapplied_patches(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "1")
    before = three.state()[0]
    assert "1 of 2 patches applied" in three.ok("patch", "squash", "2", "3").out
    assert three.state()[0] == before
    three.ok("patch", "apply")
    assert three.ok("patch", "verify").code == 0


def test_squash_that_conflicts(three: Sandbox) -> None:
    three.patch("fourth", "src/scale.c", "line twenty\n", "line zwanzig\n")
    before = three.state()
    assert "patch first conflicts" in three.refused("patch", "squash", "1", "4", code=3)
    three.ok("patch", "abort")
    assert three.state() == before
    three.refused("patch", "squash", "1", "4", code=3)
    resolve(three, "src/scale.c", "line zwanzig\n")
    assert "patch second conflicts" in three.refused("patch", "continue", code=3)
    resolve(three, "src/scale.c", "line ZWANZIG\n")
    three.ok("patch", "continue")
    assert texts(three) == {
        "0001-first.patch": "-line 3\n+line three\n-line 20\n+line zwanzig\n",
        "0002-second.patch": "-line zwanzig\n+line ZWANZIG\n",
        "0003-third.patch": "-upstream\n+downstream\n",
    }


def test_what_squash_refuses(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "edited\n")
    before = three.state()
    assert "README.md edited" in three.refused("patch", "squash", "1", "2")
    three.git("checkout", "-q", "README.md")
    before = three.state()
    assert "at least two" in three.refused("patch", "squash", "1", "first")
    assert "already" in three.refused("patch", "squash", "1", "2", "-n", "third")
    assert three.state() == before


@pytest.fixture
def wide(three: Sandbox) -> Sandbox:
    """A fourth patch of three files, one of them with three hunks, and a fifth on top."""
    three.replace("src/scale.c", "line 5\n", "line five\n")
    three.replace("src/scale.c", "line 30\n", "line thirty\n")
    three.replace("src/scale.c", "line 40\n", "line forty")
    three.git("mv", "run.sh", "start.sh")
    three.write("src/new.c", "new\n")
    three.git("add", "src/new.c")
    three.ok("patch", "new", "wide", "-m", "wide : much\n\nWhy: because.")
    three.patch("fifth", "src/named.c", "twin_a(", "twin_z(")
    return three


def test_the_hunks_are_listed_with_their_numbers(wide: Sandbox) -> None:
    told = wide.ok("patch", "split", "wide").out.splitlines()
    assert [line.split()[0] for line in told[::2]] == [
        "src/new.c:1",
        "src/scale.c:1",
        "src/scale.c:2",
        "src/scale.c:3",
        "start.sh:1",
    ]
    assert told[3].strip() == "-line 5" and told[7].strip() == "-line 40"
    assert len(wide.ok("patch", "split", "wide", "--json").json["hunks"]) == 5


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        (("--path", "src/new.c"), "+new\n"),
        (("--path", "run.sh"), ""),
        (("--hunk", "src/scale.c:2"), "-line 30\n+line thirty\n"),
        (
            ("--hunk", "src/scale.c:1", "--hunk", "src/scale.c:3"),
            "-line 5\n+line five\n-line 40\n+line forty\n",
        ),
        (
            ("--hunk", "src/scale.c:2-3", "-P", "src/new.c"),
            "+new\n-line 30\n+line thirty\n-line 40\n+line forty\n",
        ),
        (
            ("--hunk", "src/scale.c:1-3"),
            "-line 5\n+line five\n-line 30\n+line thirty\n-line 40\n+line forty\n",
        ),
    ],
)
def test_split_keeps_the_source(wide: Sandbox, options: tuple[str, ...], taken: str) -> None:
    applied = 3 if "run.sh" in options else 5
    wide.ok("patch", "unapply", "--to", str(applied))
    before, files, tree = wide.state()[0], wide.files(), wide.status()["patches"][3]["tree"]
    done = wide.ok("patch", "split", "wide", "narrow", *options, "-m", "narrow : a part")
    assert f"{applied + (applied > 3)} of 6 patches applied" in done.out
    assert texts(wide)["0005-narrow.patch"] == taken
    assert [entry["name"] for entry in entries(wide)][3:] == ["wide", "narrow", "fifth"]
    assert entries(wide)[4]["tree"] == tree
    assert files["0005-fifth.patch"] == wide.files()["0006-fifth.patch"]
    assert wide.state()[0] == before
    assert wide.ok("patch", "verify").code == 0
    wide.ok("patch", "squash", "wide", "narrow", "-m", "wide : much\n\nWhy: because.")
    assert wide.files() == files


def test_split_says_what_becomes_of_the_proofs(wide: Sandbox) -> None:
    describe(wide, "wide", proof=["t.py::a"], purpose="'Much.'")
    told = wide.ok("patch", "split", "wide", "narrow", "--path", "src/new.c").out
    assert "the proofs stay with wide" in told
    assert [(e["proof"], e["purpose"]) for e in entries(wide)[3:5]] == [(["t.py::a"], "Much."), ([], "Much.")]
    message = wide.git("log", "-1", "--format=%B", "HEAD~1")
    assert message.strip() == "wide : much (narrow)\n\nSplit off from the patch wide: src/new.c."


def test_what_split_refuses(wide: Sandbox) -> None:
    before = wide.state()
    for options, told in (
        (("--path", "src", "--path", "start.sh"), "all of patch wide"),
        (("--path", "README.md"), "does not touch README.md"),
        (("--hunk", "src/scale.c:4"), "no hunk src/scale.c:4"),
        (("--hunk", "src/scale.c"), "does not name a hunk"),
    ):
        assert told in wide.refused("patch", "split", "wide", "narrow", *options)
    assert "already" in wide.refused("patch", "split", "wide", "fifth", "--path", "src/new.c")
    assert "nothing is chosen" in wide.refused("patch", "split", "wide", "narrow", code=2)
    assert "no name" in wide.refused("patch", "split", "wide", "--path", "src", code=2)
    assert wide.state() == before
    wide.replace("README.md", "downstream\n", "edited\n")
    assert "README.md edited" in wide.refused("patch", "split", "wide", "narrow", "--path", "src/new.c")
