"""`pyggml patch frontier` on ladders whose breaks are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from series_helpers import Done, Sandbox

from pyggml.prove.search import Bracket, bisect
from pyggml.upstream.ladder import best_folder
from tests.frontier.ladders import BY_COMPILING, BY_PROOF, EXPECTED, RUNGS, write_sdist
from tests.upstream.helpers import git


def run(box: Sandbox, *args: str, code: int = 1, env: dict[str, str] | None = None) -> Done:
    done = box.pyggml("patch", "frontier", *args, env=env)
    assert done.code == code and "Traceback" not in done.err and "internal error" not in done.err, done.err
    return done


def over_commits(box: Sandbox, *args: str, code: int = 1) -> Done:
    checkout = str(box.root.parent / "checkout")
    return run(box, "--ladder", checkout, "--range", "r0..r11", *args, code=code)


def over_sdists(box: Sandbox, *args: str, code: int = 1) -> Done:
    links = {"PIP_FIND_LINKS": str(box.root.parent / "sdists")}
    return run(box, "--ladder", "lad", *args, code=code, env=links)


def found(document: dict, names: list[str]) -> dict[str, tuple | None]:
    """Each patch's first break, as EXPECTED has it."""
    out = {}
    for patch in document["patches"]:
        first = next(iter(patch["breaks"]), None)
        if first is not None:
            ends = names.index(first["last_good"]), names.index(first["first_bad"])
            fate = (first["collision"]["fate"],) if first["collision"] else ()
            first = (first["question"], *ends, *fate)
        out[patch["name"]] = first
    return out


OF_THREE = {name: EXPECTED[name] for name in ("clean", "collides", "depends")}


@pytest.mark.slow
def test_each_patch_breaks_where_upstream_broke_it(ten: Sandbox) -> None:
    before = ten.state()
    document = over_commits(ten, "--json").json
    commits = [git(ten.root.parent / "checkout", "rev-parse", f"r{n}")[:12] for n in range(len(RUNGS))]
    assert found(document, commits) == EXPECTED
    assert document["newest"] == commits[-1] and document["broken"] is True
    patches = {patch["name"]: patch for patch in document["patches"]}
    assert patches["upstream"]["broken"] is False
    assert patches["depends"]["without"] == [2] and patches["partly"]["without"] == []
    collides = patches["collides"]["breaks"][0]["collision"]
    assert collides["paths"] == ("a.c",) or collides["paths"] == ["a.c"]
    assert [(hunk["path"], hunk["line"]) for hunk in collides["hunks"]] == [("a.c", 2)]
    assert "-line 5\n+line five upstream\n" in collides["hunks"][0]["text"]
    partly = patches["partly"]["breaks"][0]["collision"]
    assert ([hunk["number"] for hunk in partly["contained"]], partly["total"]) == ([1], 2)
    assert patches["renamed"]["breaks"][0]["collision"]["moved"] == [["old/moved.c", "new/moved.c"]]
    assert (
        patches["heals"]["notes"] == [f"collides at {commits[3]}, but applies again at {commits[11]}"]
        and not patches["heals"]["broken"]
    )
    assert ten.state() == before


def test_sdists_are_the_same_ladder_and_their_folder_is_found(three: Sandbox) -> None:
    document = over_sdists(three, "--json").json
    assert found(document, [f"1.{n}" for n in range(len(RUNGS))]) == OF_THREE
    assert not list((three.root.parents[1] / "cache" / "sources").glob("*/*.tar.gz"))
    text = over_sdists(three).out
    assert "applies up to 1.3; from 1.4 on: collides" in text
    assert "applies up to 1.3; from 1.4 on: needs a patch before it that does not apply" in text
    assert "-line 5\n" in text and "+line five upstream\n" in text


def test_a_part_of_the_ladder_that_breaks_nothing_ends_with_0(three: Sandbox) -> None:
    document = over_sdists(three, "--to", "1.2", "--json", code=0).json
    assert all(patch["state"] == "applies" for patch in document["patches"])
    assert document["probed"] == ["1.0", "1.2"]


def test_a_ladder_that_begins_after_the_break_names_the_pin_as_last_good(three: Sandbox) -> None:
    document = over_sdists(three, "--from", "1.9", "--json").json
    first = document["patches"][1]["breaks"][0]
    assert (first["last_good"], first["first_bad"]) == ("pin one", "1.9")


@pytest.mark.slow
def test_rungs_older_than_the_pin_are_not_judged(three: Sandbox) -> None:
    sdists = three.root.parent / "sdists"
    for n in range(5):
        older = {
            f"src/up/{path}": text.replace("line 5\n", f"ancient {n}\n") + "ancient\n" * (path < f"{n}")
            for path, text in RUNGS[0].items()
        }
        older |= {f"src/up/extra{i}": "x\n" for i in range(9 - n)}
        write_sdist(sdists, f"0.{n}", older)
    document = over_sdists(three, "--json").json
    assert document["first"] == "1.0"
    assert any("older than pin one" in note for note in document["notes"])
    assert found(document, [f"1.{n}" for n in range(len(RUNGS))]) == OF_THREE


@pytest.mark.slow
def test_compiling_and_proving_find_what_the_text_does_not_show(ten: Sandbox) -> None:
    document = over_sdists(ten, "--compile", "--prove", "--no-build", "--json").json
    names = [f"1.{n}" for n in range(len(RUNGS))]
    expected = {**EXPECTED, "semantics": BY_PROOF, "compiles": BY_COMPILING}
    assert found(document, names) == expected
    patches = {patch["name"]: patch for patch in document["patches"]}
    assert "outside function" in patches["compiles"]["breaks"][0]["detail"]
    assert "the sum is wrong" in patches["semantics"]["breaks"][0]["detail"]
    assert (patches["semantics"]["state"], patches["compiles"]["state"]) == ("proof", "compile")


@pytest.mark.slow
def test_the_second_run_asks_nothing_again(three: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    first = over_sdists(three, "--json").out

    def never(*args: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr("pyggml.frontier.placing.Placer._place_one", never)
    monkeypatch.setattr("pyggml.upstream.tree_store.import_source", never)
    assert over_sdists(three, "--json").out == first


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_it_was(three: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml.frontier.placing import Placer

    real, asked = Placer._place_one, []

    def place_one(self: Placer, change, now, broken):  # type: ignore[no-untyped-def]
        asked.append((change.number, now))
        if len(asked) == 8:
            raise KeyboardInterrupt
        return real(self, change, now, broken)

    monkeypatch.setattr(Placer, "_place_one", place_one)
    done = over_sdists(three)
    assert done.err.splitlines()[-2:] == ["pyggml: stopped", "The same command goes on where it stopped."]
    over_sdists(three)
    # Only the question that was interrupted is asked twice.
    assert len(asked) == len(set(asked)) + 1
    assert asked[8] == asked[7]


@pytest.mark.slow
def test_damaged_answers_are_asked_for_again(three: Sandbox) -> None:
    first = over_sdists(three, "--json").out
    answers = sorted((three.root / ".pyggml" / "frontier" / "answers").iterdir())
    assert len(answers) > 10
    for number, path in enumerate(answers):
        other = path.read_bytes().replace(b"applies", b"collides").replace(b"false", b"true")
        path.write_bytes([b"", b"{", b'{"about": []}', b"[1]", other][number % 5])
    assert over_sdists(three, "--json").out == first
    assert all(json.loads(path.read_bytes())["answer"] for path in answers)


@pytest.mark.slow
def test_trees_that_are_gone_are_fetched_again(three: Sandbox) -> None:
    first = over_sdists(three, "--json").out
    assert "say what" in three.refused("clean", code=2) and "--yes" in three.pyggml("clean", "--trees").err
    listed = three.ok("clean", "--trees", "--yes").out
    assert "trees of ladders" in listed and "answers" in listed and "removed" in listed
    assert not (three.root / ".pyggml" / "trees").exists()
    assert three.ok("clean", "--trees", "--yes").out == "nothing to remove\n"
    assert over_sdists(three, "--json").out == first
    three.ok("patch", "verify")


@pytest.mark.slow
def test_the_trees_alone_can_be_gone(three: Sandbox) -> None:
    import shutil

    first = over_sdists(three, "--json").out
    shutil.rmtree(three.root / ".pyggml" / "trees")
    assert over_sdists(three, "--json").out == first


@pytest.mark.slow
def test_releases_that_cannot_be_used_are_passed_over(three: Sandbox) -> None:
    sdists = three.root.parent / "sdists"
    (sdists / "lad-1.5.tar.gz").write_bytes(b"not an archive")
    write_sdist(sdists, "1.11", {"elsewhere/README.md": "nothing of the upstream\n"})
    (sdists / "lad-1.3.tar.gz").rename(sdists / "lad-1.3-py3-none-any.whl")
    (sdists / "lad-bad!version.tar.gz").write_bytes(b"")
    document = over_sdists(three, "--json").json
    notes = "\n".join(document["notes"])
    assert "without an sdist: 1.3" in notes and "1.5" in notes and "1.11" in notes
    names = [f"1.{n}" for n in range(len(RUNGS))]
    widened = {**OF_THREE, "collides": ("text", 2, 4, "collides"), "depends": ("text", 2, 4, "depends")}
    assert (found(document, names), document["newest"]) == (widened, "1.10")


def test_yanked_releases_are_left_out(three: Sandbox, tmp_path: Path) -> None:
    sdists = three.root.parent / "sdists"
    links = "".join(
        f'<a href="{path.as_uri()}"{" data-yanked" * (path.name == "lad-1.11.tar.gz")}>{path.name}</a>'
        for path in sorted(sdists.iterdir())
    )
    page = tmp_path / "page.html"
    page.write_text(f"<html><body>{links}</body></html>")
    document = run(three, "--ladder", "lad", "--json", env={"PIP_FIND_LINKS": str(page)}).json
    assert document["newest"] == "1.10" and "left out, yanked: 1.11" in document["notes"]


@pytest.mark.slow
def test_pins_are_a_ladder(three: Sandbox) -> None:
    for n in (3, 4):
        three.ok("vendor", "add", f"p{n}", "--git", str(three.root.parent / "checkout"), "--commit",
               git(three.root.parent / "checkout", "rev-parse", f"r{n}"))  # fmt: skip
    document = run(three, "--ladder", "one,p3,p4", "--json").json
    first = document["patches"][1]["breaks"][0]
    assert (first["last_good"], first["first_bad"]) == ("p3", "p4")


REFUSED = {
    "no such package": (["--ladder", "nowhere"], 1, "no package source has nowhere"),
    "not a version": (["--ladder", "lad", "--from", "new!"], 2, "is not a version"),
    "nothing between": (["--ladder", "lad", "--from", "7"], 2, "no release with an sdist from 7"),
    "versions of a checkout": (["--ladder", ".", "--range", "a..b", "--to", "1"], 2, "versions of a package"),
    "no range": (["--ladder", "./x"], 2, "--range"),
    "no checkout": (["--ladder", "./x", "--range", "a..b"], 1, "cannot read a..b"),
    "not a range": (["--ladder", ".", "--range", "a"], 2, "is not a range"),
    "an option for a range": (["--ladder", ".", "--range", "--x..b"], 2, "is not a range"),
    "a path outside": (["--ladder", "lad", "--subdir", "../x"], 2, "relative path"),
    "unknown pins": (["--ladder", "one,two"], 2, "not all pins"),
    "no such folder": (["--ladder", "lad", "--subdir", "nowhere"], 1, "no rung of the ladder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(three: Sandbox, case: str) -> None:
    args, code, message = REFUSED[case]
    done = run(three, *args, code=code, env={"PIP_FIND_LINKS": str(three.root.parent / "sdists")})
    assert message in done.err.splitlines()[-2], done.err


def test_without_a_network(three: Sandbox) -> None:
    # Nothing listens at port 1.
    env = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "NO_PROXY": "127.0.0.1"}
    done = run(three, "--ladder", "lad", env=env)
    assert "cannot list the releases of lad" in done.err and "Check the network" in done.err


def test_bisecting_passes_over_what_has_no_answer() -> None:
    asked: list[int] = []

    def ask(rung: int) -> bool | None:
        asked.append(rung)
        return None if rung in (4, 5, 6) else rung < 7

    assert bisect(0, 10, ask) == Bracket(3, 7)
    assert len(asked) == len(set(asked))
    assert bisect(-1, 0, ask) == Bracket(-1, 0)


def test_which_folder_looks_like_the_upstream() -> None:
    known = frozenset({"CMakeLists.txt", "src/a.c", "src/b.c", "README.md"})
    inner = [f"vendor/up/{path}" for path in known]
    assert best_folder(["README.md", "setup.py", *inner], known) == "vendor/up"
    assert best_folder(["README.md"], frozenset({*known, "x"})) is None
    assert best_folder(sorted(known), known) == ""
