"""patch import --3way, beside git am -3 on the same repository, which must come to the same trees."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from killer import run_and_kill
from series_helpers import Sandbox

from tests import kill_points


@dataclass(frozen=True)
class Fork:
    """A clone of the vendored repository whose branch begins at the pin, below the patches of the series."""

    tree: Path
    box: Sandbox

    def git(self, *args: str, ok: bool = True) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=Bob", "-c", "user.email=bob@example.org", *args],
            cwd=self.tree, capture_output=True, text=True,
        )  # fmt: skip
        assert not ok or done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    def commit(self, subject: str, change: Callable[[Path], object]) -> None:
        change(self.tree)
        self.git("add", "-A")
        self.git("commit", "-qm", subject)

    def mails(self, place: Path, *options: str) -> list[str]:
        """The patches of the branch."""
        return self.git("format-patch", "-o", str(place), *options, "pin/one").splitlines()

    def am(self, *files: str) -> str:
        """The tree that `git am -3` makes of the series' top; empty if it stops."""
        self.git("checkout", "-qf", "--detach", self.box.git("rev-parse", "HEAD"))
        done = subprocess.run(
            ["git", "-c", "user.name=Bob", "-c", "user.email=bob@example.org", "am", "-3", *files],
            cwd=self.tree, capture_output=True, text=True,
        )  # fmt: skip
        return self.git("rev-parse", "HEAD^{tree}") if done.returncode == 0 else ""


@pytest.fixture
def fork(three: Sandbox, tmp_path: Path) -> Fork:
    tree = tmp_path / "fork"
    subprocess.run(["git", "clone", "-q", str(three.tree), str(tree)], check=True)
    made = Fork(tree, three)
    made.git("checkout", "-qb", "fork", "pin/one")
    return made


def replaced(path: str, old: str, new: str) -> Callable[[Path], object]:
    def change(tree: Path) -> None:
        text = (tree / path).read_text()
        assert text.count(old) == 1
        (tree / path).write_text(text.replace(old, new))

    return change


def renamed(tree: Path) -> None:
    (tree / "src/scale.c").rename(tree / "src/moved.c")


def executable(tree: Path) -> None:
    (tree / "src/scale.c").chmod(0o755)


def deleted(tree: Path) -> None:
    (tree / "src/twins.c").unlink()


def binary(tree: Path) -> None:
    (tree / "data.bin").write_bytes(bytes(range(256)))


def new_file(tree: Path) -> None:
    (tree / "src/new.c").write_text("new\n")


# `line 3` and `line 20` have other words in the series: the context of these does not fit there.
CHANGES: dict[str, list[Callable[[Path], object]]] = {
    "context": [replaced("src/scale.c", "line 5\n", "line five\n")],
    "two": [replaced("src/scale.c", "line 5\n", "line 5a\n"), replaced("src/scale.c", "line 22\n", "x\n")],
    "one applies": [replaced("src/scale.c", "line 35\n", "y\n"), replaced("src/scale.c", "line 22\n", "x\n")],
    "new, changed": [new_file, replaced("src/new.c", "new\n", "newer\n")],
    "rename": [renamed],
    "mode": [executable],
    "deleted": [deleted],
    "binary": [binary, replaced("src/scale.c", "line 22\n", "x\n")],
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_trees_are_those_of_git_am(three: Sandbox, fork: Fork, name: str, tmp_path: Path) -> None:
    for number, change in enumerate(CHANGES[name], 1):
        fork.commit(f"fork : change {number}", change)
    files = fork.mails(tmp_path / "out", "--binary", "--full-index")
    wanted = fork.am(*files)
    assert wanted
    before = three.state()
    done = three.ok("patch", "import", "--3way", *files)
    assert f"{3 + len(files)} of {3 + len(files)} patches applied" in done.out
    assert three.git("rev-parse", "HEAD^{tree}") == wanted
    three.ok("patch", "verify")
    three.ok("undo")
    assert three.state() == before


def test_a_file_that_the_series_moved_is_found(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    three.git("mv", "src/scale.c", "src/elsewhere.c")
    three.ok("patch", "new", "moves", "-m", "moves : elsewhere")
    fork.git("fetch", "-q", str(three.tree), "HEAD")
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    files = fork.mails(tmp_path / "out")
    wanted = fork.am(*files)
    three.ok("patch", "import", "--3way", *files)
    assert wanted == three.git("rev-parse", "HEAD^{tree}")
    assert "line five\n" in (three.tree / "src/elsewhere.c").read_text()


def test_a_patch_that_is_there_already_is_left_out(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    fork.commit("other words", replaced("src/scale.c", "line 3\n", "line three\n"))
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    files = fork.mails(tmp_path / "out")
    wanted = fork.am(*files)
    done = three.ok("patch", "import", "-3", *files)
    assert "other-words is left out: it changes nothing here" in done.out
    assert three.status()["total"] == 4
    assert three.git("rev-parse", "HEAD^{tree}") == wanted


def conflicting(fork: Fork, place: Path) -> list[str]:
    """Three mails: one applies, one conflicts with patch `second`, one merges after it."""
    fork.commit("fork : four", replaced("src/scale.c", "line 40\n", "line forty\n"))
    fork.commit("fork : twenty", replaced("src/scale.c", "line 20\n", "line XX\n"))
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    return fork.mails(place)


def test_a_conflict_stops_and_the_rest_follows(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    before = three.state()
    files = conflicting(fork, tmp_path / "out")
    assert "conflicts in src/scale.c" in three.refused("patch", "import", "--3way", *files, code=3)
    marked = (three.tree / "src/scale.c").read_text()
    for text in (
        "<<<<<<< the series so far\nline twenty\n",
        "line 20\n",
        "line XX\n>>>>>>> patch fork-twenty\n",
    ):
        assert text in marked
    assert three.git("diff", "--name-only", "--diff-filter=U") == "src/scale.c"
    assert three.files() == before[1]
    assert "still has conflict marks" in three.refused("patch", "continue")
    head, _, rest = marked.partition("<<<<<<< ")
    tail = rest.partition(">>>>>>> patch fork-twenty\n")[2]
    three.write("src/scale.c", f"{head}line twenty XX\n{tail}")
    assert "6 of 6 patches applied" in three.ok("patch", "continue").out
    text = (three.tree / "src/scale.c").read_text()
    assert "line five\n" in text and "line twenty XX\n" in text and "line forty\n" in text
    three.ok("patch", "verify")
    three.ok("undo")
    three.ok("undo")
    assert three.state() == before


def test_a_conflict_is_given_up(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    before = three.state()
    three.refused("patch", "import", "--3way", *conflicting(fork, tmp_path / "out"), code=3)
    three.ok("patch", "abort")
    assert three.state() == before
    assert three.git("status", "--porcelain") == ""


def test_a_resolution_that_leaves_nothing_leaves_the_patch_out(
    three: Sandbox, fork: Fork, tmp_path: Path
) -> None:
    three.refused("patch", "import", "--3way", *conflicting(fork, tmp_path / "out"), code=3)
    three.git("checkout", "HEAD", "--", "src/scale.c")
    done = three.ok("patch", "continue")
    assert "fork-twenty is left out" in done.out and "5 of 5 patches applied" in done.out


def test_one_patch_is_replaced(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    fork.commit("second : better", replaced("src/scale.c", "line 6\n", "line six\n"))
    files = fork.mails(tmp_path / "out")
    three.refused("patch", "import", "--replace", "second", *files)
    three.ok("patch", "import", "--3way", "--replace", "second", *files)
    text = (three.tree / "src/scale.c").read_text()
    assert "line six\n" in text and "line three\n" in text and "line 20\n" in text
    assert three.status()["applied"] == 3


def test_without_it_the_error_names_it(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    (file,) = fork.mails(tmp_path / "out")
    assert "pyggml patch import --3way" in three.refused("patch", "import", file)
    text = Path(file).read_text()
    Path(file).write_text(text.replace("index ", "index 0123456789").replace("0123456789", "deadbeef"))
    assert "--3way" not in three.refused("patch", "import", file)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda text: text.replace("index ", "index dead"), "the repository lacks what its index line names"),
        (
            lambda text: "".join(x for x in text.splitlines(True) if not x.startswith("index ")),
            "no index line names",
        ),
        (
            lambda text: text.replace("-line 5\n", "-line fifth\n"),
            "does not apply to the files that its index lines",
        ),
        (lambda text: text.replace("src/scale.c", "../scale.c"), "../scale.c"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    three: Sandbox, fork: Fork, tmp_path: Path, edit: Callable[[str], str], told: str
) -> None:
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    (file,) = fork.mails(tmp_path / "out")
    Path(file).write_text(edit(Path(file).read_text()))
    before = three.state()
    assert told in three.refused("patch", "import", "--3way", file)
    assert three.state() == before


def test_a_branch_named_like_a_blob_is_not_taken_for_it(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    fork.commit("fork : five", replaced("src/scale.c", "line 5\n", "line five\n"))
    files = fork.mails(tmp_path / "out")
    blob = fork.git("rev-parse", "--short=7", "pin/one:src/scale.c")
    assert f"index {blob}.." in Path(files[0]).read_text()
    wanted = fork.am(*files)
    three.git("tag", blob, three.git("rev-parse", "HEAD:README.md"))
    three.ok("patch", "import", "--3way", *files)
    assert three.git("rev-parse", "HEAD^{tree}") == wanted


def test_a_link_out_of_the_tree_is_refused(three: Sandbox, fork: Fork, tmp_path: Path) -> None:
    fork.commit("fork : link", lambda tree: (tree / "out").symlink_to("../../../etc"))
    before = three.state()
    three.refused("patch", "import", "--3way", *fork.mails(tmp_path / "out"))
    assert three.state() == before


@kill_points.every
def test_it_survives_a_kill_at_every_point(three: Sandbox, fork: Fork, tmp_path: Path, every: int) -> None:
    command = ("patch", "import", "--3way", *conflicting(fork, tmp_path / "out"))
    before = three.state()
    base = tmp_path / "before"
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    code, points = run_and_kill(0, three.root, *command)
    assert code == 3
    decided = 0
    # Most points are starts of git, before anything is decided.
    for point in kill_points.chosen(range(1, points + 1), every if every == 1 else 5 * every):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        assert run_and_kill(point, three.root, *command)[0] == -signal.SIGKILL
        status = three.status()
        if status["interrupted"] or status["operation"]:
            decided += 1
            three.ok("patch", "abort")
        assert three.state() == before, f"point {point}"
    assert every > 1 or decided > 1
