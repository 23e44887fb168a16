"""A random walk: edits, plain git, pulls, commands, kills. Nothing that was written is lost, and status is true.

The lines that edits write are numbered, and a patch is known by the lines it changes. After every step, each of them
is in the work tree, in a reference, in a patch file or its history, or where `undo` finds it, unless the user threw it
away with git.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from killer import run_and_kill
from series_helpers import Sandbox

from pyggml.project import Project

STEPS = 8
FILES = ["src/scale.c", "src/named.c", "README.md"]
NUMBERS = st.integers(1, 4)
COMMANDS = [
    "apply", "unapply", "new", "edit", "continue", "abort", "refresh", "refresh --from-files", "drop", "move",
    "rename", "import", "undo", "redo", "squash", "split", "refresh -p", "reword", "push", "pop",
    "renumber",
]  # fmt: skip
REWRITES = {
    "swap": "sed -i '1{h;d};2{G}'",
    "drop": "sed -i 1d",
    "squash": "sed -i '2s/^pick/fixup/'",
}
FOLDS = ["new", "new", "refresh", "refresh -p", "commit -qam own", "commit -qa --fixup HEAD~1"]
PULLS = ["push", "change", "add", "drop", "move"]
GIT = [
    *PULLS,
    "touch",
    "commit -qam own",
    "commit -q --amend -a --no-edit",
    "commit -q --amend -m other",
    "commit -qa --fixup HEAD~1",
    "reset -q --hard HEAD~1",
    "reset -q --hard HEAD~2",
    "reset -q --soft HEAD~1",
    "reset -q HEAD~1",
    "reset -q --keep HEAD~1",
    "checkout -q HEAD -- .",
    "checkout -q HEAD~1 -- src",
    "checkout -q -- README.md",
    "stash push -q",
    "stash pop -q",
    *(f"rebase -qi HEAD~{depth} {how}" for depth in (2, 3, 4) for how in REWRITES),
]
TOKEN = re.compile(rb"token \d+")
Lines = tuple[bytes, ...]


def run(directory: Path, *command: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """A command of the user's, which may fail."""
    who = {
        f"GIT_{role}_{what}": "ada@example.org"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    return subprocess.run(
        command, cwd=directory, env={**os.environ, **who, "GIT_EDITOR": "true", **env}, capture_output=True
    )


def git(directory: Path, *args: str, **env: str) -> bytes:
    """What git says; nothing where it fails."""
    done = run(directory, "git", *args, **env)
    return done.stdout if done.returncode == 0 else b""


def changed_lines(diff: bytes) -> Lines:
    """What makes a patch the same patch wherever it is: the lines it adds and removes."""
    lines = [
        line
        for line in diff.split(b"\n")
        if line[:1] in (b"+", b"-") and not line.startswith((b"+++", b"---"))
    ]
    return tuple(sorted(line for line in lines if line != b"-- "))


def patches_in(files: Iterable[tuple[str, bytes | None]]) -> set[Lines]:
    return {changed_lines(data) for name, data in files if name.endswith(".patch") and data}


class Walk(RuleBasedStateMachine):
    """One walk. `place` holds the project it begins with, in `template`; every walk has a copy of it, in `now`."""

    place: ClassVar[Path]
    walks: ClassVar[int] = 0
    taken: ClassVar[int] = 0
    merges: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).walks += 1
        now = self.place / "now"
        shutil.rmtree(now, ignore_errors=True)
        shutil.copytree(self.place / "template", now, symlinks=True)
        self.box, self.other = Sandbox(Project(now / "project")), Sandbox(Project(now / "other"))
        self.tree = self.box.tree
        self.base, self.base_tree = git(self.tree, "log", "--format=%H %T", "HEAD~4", "-1").decode().split()
        self.trace: list[str] = []
        self.count = 0
        self.committed = patches_in(self.box.files().items())
        self.written = set(self.committed)
        self.tokens: set[bytes] = set()
        self.before: dict[int, Any] = {}
        self.killed: Any = None
        self.now = self.state()

    # What the user does.

    @rule(path=st.sampled_from(FILES), line=st.sampled_from([0, 3, 4, 19, 30]), over=st.booleans())
    def edit_file(self, path: str, line: int, over: bool) -> None:
        self.insert(path, line, over)
        self.by_user(f"edit {path}:{line}")

    @rule(
        path=st.sampled_from(FILES), line=st.sampled_from([0, 3, 4, 19, 30]), command=st.sampled_from(FOLDS)
    )
    def edit_and_fold(self, path: str, line: int, command: str) -> None:
        self.insert(path, line, False)
        self.by_user(f"edit {path}:{line}")
        if command.startswith("commit"):
            self.git(command)
            command = "refresh"
        self.tool(command, 1, 1, 0)

    @precondition(lambda self: "conflict" in self.waits())
    @rule(both=st.booleans())
    def resolve(self, both: bool) -> None:
        for path in self.tree.rglob("*.*"):
            text = path.read_text() if path.is_file() and ".git" not in path.parts else ""
            if "<<<<<<< " in text:
                kept = r"\1\2" if both else r"\2"
                marks = r"(?ms)^<<<<<<< .*?\n(.*?)(?:^\|{7} .*?)?^=======\n(.*?)^>>>>>>> .*?\n"
                path.write_text(re.sub(marks, kept, text))
        self.by_user("resolve")
        self.tool("continue", 1, 1, 0)

    def push_or_pull(self, what: str, number: int) -> None:
        """What a colleague does arrives; for `push`, what the user does goes there."""
        self.save()
        if what == "push":
            git(self.box.root, "push", "-q")
        else:
            self.colleague(what, str(number))
            self.pull()
            if not self.interrupted() and self.box.pyggml("patch", "status").code:
                git(self.box.root, "reset", "-q", "--hard", "ORIG_HEAD")  # a merge that makes no sense
        self.by_user(f"pull ({what} {number})" if what != "push" else what)

    def pull(self) -> None:
        """Merge a colleague's series into the user's, with the merge driver and `patch renumber`."""
        root = self.box.root
        ours = patches_in(self.box.files().items())
        git(root, "fetch", "-q")
        base, theirs = (
            patches_in(self.committed_files(commit))
            for commit in (git(root, "merge-base", "HEAD", "@{u}").decode().strip(), "@{u}")
        )
        git(root, "merge", "-q", "--no-edit", "@{u}")
        done = self.box.pyggml("patch", "renumber")
        self.check("Traceback" not in done.err and "internal error" not in done.err, done.err)
        if done.code:
            git(root, "merge", "--abort")
            return
        type(self).merges += 1
        wanted = (ours & theirs) | (ours - base) | (theirs - base)
        lost = wanted - patches_in(self.box.files().items())
        self.check(not lost, f"lost in a merge: {lost}")
        self.save()

    def committed_files(self, commit: str) -> Iterable[tuple[str, bytes]]:
        """The patch files of a commit in the project's repository."""
        names = git(self.box.root, "ls-tree", "--name-only", commit, "patches/one/").decode().split()
        return [(name, git(self.box.root, "show", f"{commit}:{name}")) for name in names]

    @rule(what=st.sampled_from(GIT), number=NUMBERS)
    def git_command(self, what: str, number: int) -> None:
        if what in PULLS:
            self.push_or_pull(what, number)
        else:
            self.git(what)

    def colleague(self, what: str, number: str) -> None:
        there = self.other
        git(there.root, "pull", "-q", "--ff-only")
        if there.pyggml("patch", "apply").code == 0:
            if what == "change":
                there.pyggml("patch", "edit", number)
            if what in ("change", "add"):
                self.insert("README.md", 99, False, there)
                name = f"theirs-{self.count}"
                args = ["continue"] if what == "change" else ["new", name, "-m", name]
                there.pyggml("patch", *args)
            else:
                there.pyggml("patch", what, number, *(["1"] if what == "move" else []))
            if (there.root / ".pyggml/operation.json").exists():
                there.ok("patch", "abort")
        git(there.root, "add", "-A", "patches")
        git(there.root, "commit", "-qm", "theirs")
        git(there.root, "push", "-q")
        self.committed |= patches_in(there.files().items())

    def insert(self, path: str, line: int, over: bool, box: Sandbox | None = None) -> None:
        target = (box or self.box).tree / path
        lines = target.read_text().splitlines(keepends=True) if target.is_file() else []
        self.count += 1
        self.tokens.add(b"token %d" % self.count)
        lines[line : line + over] = [f"token {self.count}\n"]
        target.parent.mkdir(exist_ok=True)
        target.write_text("".join(lines))

    def git(self, args: str) -> None:
        words = args.split()
        editor = REWRITES[words.pop()] if words[0] == "rebase" else ""
        if words[0] == "touch":
            self.insert(f"src/new{self.count + 1}.c", 0, False)
            words = ["add", "src"]
        if words[-1] == "own":
            words[-1] = f"own : {len(self.trace)}"
        failed = run(self.tree, "git", *words, GIT_SEQUENCE_EDITOR=editor).returncode
        if failed and words[0] == "rebase":
            git(self.tree, "rebase", "--abort")
        self.by_user(f"git {args}{' (fails)' if failed else ''}")

    # What the tool does.

    @rule(command=st.sampled_from(COMMANDS), number=NUMBERS, to=NUMBERS)
    def any_command(self, command: str, number: int, to: int) -> None:
        self.tool(command, number, to, 0)

    @rule(
        command=st.sampled_from(
            ["apply", "unapply", "edit", "drop", "move", "rename", "import", "squash", "split", "pop", "push"]
        ),
        number=NUMBERS,
    )
    def clean_command(self, command: str, number: int) -> None:
        """With no edits in its way."""
        if git(self.tree, "diff", "HEAD", "--name-only"):
            self.git("stash push -q")
        self.tool(command, number, 1 + number % 3, 0)

    @rule(command=st.sampled_from(["undo", "redo"]))
    def back_or_forth(self, command: str) -> None:
        self.tool(command, 1, 1, 0)

    @precondition(lambda self: self.waits())
    @rule(command=st.sampled_from(["continue", "abort", "undo", "refresh"]))
    def go_on(self, command: str) -> None:
        self.tool(command, 1, 1, 0)

    @rule(command=st.sampled_from(COMMANDS), number=NUMBERS, to=NUMBERS, point=st.integers(1, 60))
    def kill(self, command: str, number: int, to: int, point: int) -> None:
        self.tool(command, number, to, point)

    def tool(self, command: str, number: int, to: int, point: int) -> None:
        args = ["undo", *(["--redo"] if command == "redo" else [])]
        path = FILES[(number + to) % len(FILES)]
        if command not in ("undo", "redo"):
            more = {
                "apply": ["--to", str(to)] if to < 4 else [],
                "unapply": ["--to", str(to - 1)],
                "new": [f"new-{len(self.trace)}", "-m", f"new : {len(self.trace)}"],
                "edit": [str(number)],
                "drop": [str(number)],
                "move": [str(number), str(to)],
                "rename": [str(number), f"name-{len(self.trace)}"],
                "import": [str(self.place / "mails" / f"{number}.patch")],
                "squash": [str(number), str(to)],
                "split": [str(number), f"split-{len(self.trace)}"]
                + (["--path", path] if to % 2 else ["--hunk", f"{path}:1"]),
                "refresh -p": [str(number)],
                "reword": [str(number), "-m", f"reworded : {len(self.trace)}"],
                "push": [str(to)],
                "pop": [str(to)],
            }
            args = ["patch", *command.split(), *more.get(command, [])]
        before, interrupted, old = self.now, self.interrupted(), set(self.records())
        expected = None
        if args[0] == "undo" and not interrupted:
            rows = self.can_redo() if command == "redo" else self.can_undo()
            expected = (
                (self.before[rows[0]], self.records()[rows[0]]) if rows and rows[0] in self.before else None
            )
        killed = False
        if point:
            code, _ = run_and_kill(point, self.box.root, *args)
            killed = code < 0
            told = ""
        else:
            done = self.box.pyggml(*args)
            code, told = done.code, done.err
        self.now = self.state()
        self.trace.append(
            f"{'killed ' if killed else ''}pyggml {' '.join(args)} (point {point}, exit {code})"
        )
        if killed:
            if self.interrupted() and not interrupted:
                self.killed = before
        else:
            self.check(code in (0, 1, 3), f"exit {code}: {told}")
            self.check("Traceback" not in told and "internal error" not in told, told)
            self.check(not self.interrupted() or interrupted, "a command that ended left a journal")
        if code == 1 and not interrupted:
            self.check(self.now == before, f"refused, but something changed: {told}")
        new = sorted(set(self.records()) - old)
        if new and interrupted:
            self.before[new[0]] = self.killed
        elif new:
            self.before[new[0]] = before
        if expected is not None and code == 0 and not killed:
            then, record = expected
            self.check(
                (*self.now[:2], self.now[3]) == (*then[:2], then[3]),
                f"{command} did not bring the state back",
            )
            for path, old_content, _ in record["files"]:
                file = self.box.root / path
                self.check(
                    (file.read_bytes() if file.is_file() else None) == old_content, f"{command}: {path}"
                )
        self.after(mine=False)

    # What must be so.

    def by_user(self, what: str) -> None:
        self.trace.append(what)
        self.now = self.state()
        self.after(mine=True)

    def after(self, mine: bool) -> None:
        """Check everything.

        Args:
            mine: the user did it: what is gone was thrown away.
        """
        type(self).taken += 1
        self.written |= patches_in(self.box.files().items())
        text, patches = self.reachable()
        marks = [
            line for lines in self.written for line in lines if line.startswith((b"+<<<<<<<", b"+>>>>>>>"))
        ]
        self.check(not marks, f"conflict marks in a patch: {marks}")
        tokens = {token for token in self.tokens if token not in text}
        lost = self.written - patches
        if not mine:
            self.check(not tokens, f"lost: {tokens}")
            self.check(not lost, f"lost patches: {lost}")
        self.tokens -= tokens
        self.written -= lost
        self.check_status()

    def reachable(self) -> tuple[set[bytes], set[Lines]]:
        """The tokens and patches in the work tree, in git's references, in patch files, and in what undo can reach."""
        log = git(self.tree, "log", "--all", "-m", "-p", "--format=%x00%B")
        stashes = self.tree / ".git/logs/refs/stash"
        if stashes.is_file() and len(stashes.read_bytes().splitlines()) > 1:
            log += git(self.tree, "log", "-g", "-m", "-p", "--format=%x00%B", "refs/stash")
        patches = {changed_lines(part) for part in log.split(b"\0")} | self.committed
        patches |= patches_in(self.box.files().items())
        records = self.records()
        data = [log, *self.box.files().values()]
        for number in {*self.can_undo(), *self.can_redo()}:
            for path, *sides in records[number]["files"]:
                patches |= patches_in((path, side) for side in sides)
                data += [side for side in sides if side]
        if self.interrupted():
            for path, *sides in self.decoded(self.box.root / ".pyggml/journal.json")["files"]:
                patches |= patches_in((path, side) for side in sides)
        data += [
            path.read_bytes()
            for path in self.tree.rglob("*.*")
            if path.is_file() and ".git" not in path.parts
        ]
        data += [b"\n".join(lines) for lines in self.committed]
        return set(TOKEN.findall(b"\n".join(data))), patches

    def check_status(self) -> None:
        """Compare what status says with the log, the listing and the files."""
        done = self.box.pyggml("patch", "status", "--json")
        if self.interrupted():
            self.check(
                done.code == 0 and done.json["interrupted"] is not None, f"status: {done.out} {done.err}"
            )
            return
        listing = self.box.patches / "series.toml"
        document = tomllib.loads(listing.read_text()) if listing.is_file() else {}
        trees = [self.base_tree, *(patch["tree"] for patch in document.get("patch", []))]
        rows = (
            git(self.tree, "log", "--reverse", "--format=%H %T %s", f"{self.base}..HEAD")
            .decode()
            .splitlines()
        )
        chain = [(self.base, trees[0], ""), *(row.split(" ", 2) for row in rows)]
        below = max((n for n, (_, tree, _) in enumerate(chain) if tree in trees), default=0)
        applied = trees.index(chain[below][1])
        if chain[-1][1] in trees:
            places = [n for n, tree in enumerate(trees) if tree == chain[-1][1]]
            applied = len(chain) - 1 if len(chain) - 1 in places else places[0]
        if rows and chain[-1][1] not in trees and not self.descends():
            below, applied, chain[1:] = 0, 0, [(chain[-1][0], "", "(HEAD does not descend from this pin)")]
        porcelain = git(self.tree, "status", "--porcelain", "--no-renames", "-uall").decode().splitlines()
        edits = sorted(row[3:] for row in porcelain if not row.startswith("??"))
        self.check(done.code == 0, f"status: {done.err}")
        said = done.json
        self.check(said["head"] == chain[-1][0], "status: head")
        self.check((said["applied"], said["total"]) == (applied, len(trees) - 1), f"status: {applied} {said}")
        self.check(sorted(said["edits"]) == edits, f"status: {edits} {said}")
        self.check((said["operation"] is not None) == bool(self.waits()), f"status: {said}")
        states = [patch["state"] for patch in said["patches"]]
        self.check(
            states == ["applied"] * applied + ["unapplied"] * (len(trees) - 1 - applied), f"status: {said}"
        )
        if chain[-1][1] in trees:
            position = {0: "clean", len(trees) - 1: "applied"}.get(applied, "partial")
            right = "dirty" if edits else "clean" if not applied else position
            self.check(said["state"] == right and not said["on_top"], f"status: {right} {said}")
        else:
            self.check(said["state"] in ("diverged", "outdated"), f"status: {said}")
            if said["state"] == "diverged":
                tops = [subject for _, _, subject in chain[below + 1 :]]
                self.check(said["on_top"] and set(said["on_top"]) <= set(tops), f"status: {tops} {said}")

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            steps = "\n".join(f"  {n}. {step}" for n, step in enumerate(self.trace, 1))
            raise AssertionError(f"{what}\nafter\n{steps}")

    # What is there.

    def save(self) -> None:
        """Commit the patch files in the project's repository."""
        git(self.box.root, "add", "-A", "patches")
        git(self.box.root, "commit", "-qm", "mine")
        self.committed |= patches_in(self.box.files().items())

    def state(self) -> tuple[object, ...]:
        tracked = git(self.tree, "ls-files", "-z").decode().split("\0")
        files = {
            path: (self.tree / path).read_bytes() for path in tracked if path and (self.tree / path).is_file()
        }
        return (self.tree / ".git/refs/heads/series").read_text(), files, self.box.files(), self.waits()

    def descends(self) -> bool:
        return not run(self.tree, "git", "merge-base", "--is-ancestor", self.base, "HEAD").returncode

    def waits(self) -> str:
        file = self.box.root / ".pyggml/operation.json"
        return file.read_text() if file.is_file() else ""

    def interrupted(self) -> bool:
        return (self.box.root / ".pyggml/journal.json").exists()

    def decoded(self, path: Path) -> dict[str, Any]:
        import base64

        record = json.loads(path.read_bytes())
        record["files"] = [
            (path, *(None if side is None else base64.b64decode(side) for side in sides))
            for path, *sides in record["files"]
        ]
        return record

    def records(self) -> dict[int, dict[str, Any]]:
        return {
            int(path.stem): self.decoded(path) for path in (self.box.root / ".pyggml/undo").glob("*.json")
        }

    def can_undo(self) -> list[int]:
        records, gone, rows = self.records(), set(), []
        for number in sorted(records, reverse=True):
            if number not in gone:
                gone.add(records[number]["undoes"])
                rows += [number] if records[number]["undoes"] is None else []
        return rows

    def can_redo(self) -> list[int]:
        records, gone, rows = self.records(), set(), []
        for number in sorted(records, reverse=True):
            if number in gone:
                continue
            if records[number]["undoes"] is None:
                break
            gone.add(records[number]["undoes"])
            rows += [number] if records[number]["doing"].startswith("undo") else []
        return rows


def begin(place: Path, fetched: Path) -> None:
    """The project that every walk begins with, and a colleague's, on the same bare repository."""
    now = place / "now"
    shutil.copytree(fetched, now, symlinks=True)
    box = Sandbox(Project(now / "project"))
    box.patch("first", "src/scale.c", "line 3\n", "line three\n")
    box.patch("second", "src/scale.c", "line 4\n", "line four\n")
    box.patch("third", "README.md", "upstream\n", "downstream\n")
    box.patch("fourth", "src/named.c", "twin_a(", "twin_z(")
    (place / "mails").mkdir()
    for number, (path, old, new) in enumerate(
        [
            ("run.sh", "exit 0\n", "exit 1\n"),
            ("src/named.c", "twin_b(", "twin_y("),
            ("src/scale.c", "line 20\n", "line x\n"),
        ],
        1,
    ):
        box.patch("mail", path, old, new)
        (place / "mails" / f"{number}.patch").write_bytes((box.patches / "0005-mail.patch").read_bytes())
        box.ok("undo")
        box.git("reset", "-q", "--hard")
    (place / "mails" / "4.patch").write_bytes((box.patches / "0004-fourth.patch").read_bytes())
    (box.root / ".gitignore").write_text(".pyggml\n/vendor/*/\n")
    git(box.root, "init", "-q", "-b", "main")
    box.ok("patch", "install-merge-driver")
    git(box.root, "add", "-A")
    git(box.root, "commit", "-qm", "begin")
    git(now, "clone", "-q", "--bare", "project", "origin.git")
    git(box.root, "remote", "add", "origin", str(now / "origin.git"))
    git(box.root, "fetch", "-q", "origin")
    git(box.root, "branch", "-q", "-u", "origin/main")
    shutil.copytree(now / "project", now / "other", symlinks=True)
    now.rename(place / "template")


@pytest.mark.slow
def test_a_random_walk_loses_nothing(tmp_path: Path, fetched: Path, request: pytest.FixtureRequest) -> None:
    begin(tmp_path, fetched)
    Walk.place = tmp_path
    walk = seed(request.config.option.walk_seed)(Walk)
    run_state_machine_as_test(
        walk,
        settings=settings(
            max_examples=request.config.option.walks,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{Walk.walks} walks of {Walk.taken} steps, {Walk.merges} merges")
