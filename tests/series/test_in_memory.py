"""What is done without a git process gives what git gives: mails, patches, merges, objects."""

from __future__ import annotations

import email.utils
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.git import Git, GitError
from pyggml.git.object_store import Entry, open_objects
from pyggml.series.patchfile import mail
from pyggml.series.patchfile.mail import Identity, NamedPatch, read_mail
from pyggml.series.patchfile.plain_mail import read_plain
from pyggml.series.stack import commits, merge
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.format_patch import format_patch, format_patches
from pyggml.series.stack.in_memory import apply_in_memory
from pyggml.series.stack.trees import open_trees, parsed_tree_diff

ROOT = Path(__file__).parents[2]
AUTHOR = Identity("A B", "a@example.org", "1764374400 +0100")


class Repository:
    """A repository with a work tree, driven by plain git."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.ours = Git(root / ".git", root)

    def git(self, *args: str, stdin: bytes | None = None) -> bytes:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.quotePath=true")
        return subprocess.run(
            ["git", *who, *args], cwd=self.root, check=True, capture_output=True, input=stdin or b""
        ).stdout

    def commit(self, files: dict[str, bytes | None], message: str = "a change\n") -> str:
        for path, data in files.items():
            target = self.root / path
            if data is None:
                target.unlink()
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").decode().strip()

    def tree(self, commit: str = "HEAD") -> str:
        return self.git("rev-parse", f"{commit}^{{tree}}").decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def mail_of(change: bytes, subject: bytes = b"change it", body: bytes = b"Because.\n") -> bytes:
    return (
        b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        b"From: A B <a@example.org>\nDate: Sat, 29 Nov 2025 01:00:00 +0100\n"
        b"Subject: [PATCH] " + subject + b"\n\n" + body + b"---\n f | 2 +-\n\n" + change
    )


def by_mailinfo(monkeypatch: pytest.MonkeyPatch, data: bytes) -> mail.PatchMail:
    with monkeypatch.context() as patch:
        patch.setattr(mail, "read_plain", lambda data: None)
        return read_mail(data, "x")


DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n\n"
SUBJECTS = [
    b"change it",
    b"ggml : change a thing that is long\n and goes on",
    b"Re: it",
    b"a [x] b",
    b"a  b",
    b"re-do",
]
SUBJECTS += [
    b"fix: it",
    b"=?UTF-8?q?=C3=A4?=",
    b"it \n goes",
    b"a\n\tb",
    b"x",
    b"a:",
    b"'quoted'",
    b"a, b; c",
    b" a",
    b"a~^b",
]
BODIES = [b"", b"Because.\n", b"\n\n Because.\n\n\n\nAnd so on.  \n\n", b"From: C <c@example.org>\n\nText\n"]
BODIES += [
    b">From me\n",
    b"Signed-off-by: A <a@x>\n",
    b"Text\nFrom: C <c@x>\n",
    b"[PATCH] x\n",
    b"a\n--- \nb\n",
]
BODIES += [
    b"a\n--- b\nc\n",
    b"a\n---b\nc\n",
    b"a\n----\nb\n",
    b"diff -u\nx\n",
    b"Index: f\n",
    b"a\n-- >8 --\nb\n",
]
BODIES += [
    "Grüße\n".encode(),
    b"\xff\n",
    b"a\r\nb\n",
    b"\ta\n",
    b"Date: x\n",
    b"a\n\nSubject: y\n",
    b"\x0cx\n",
    b"a\nFrom x\n",
]
BODIES += ["\u00a0x\n".encode(), b"a" * 1100 + b"\n", b"  \n\t\nFrom: C <c@x>\n", b"http://x\n", b"a\0b\n"]
BODIES += [b"a::b() fails\n\nText\n", b"From::a\n", b"subject::a b\n", b"Date::Mon\n", b"\nFrom: :a\n"]


def test_a_plain_mail_is_read_as_mailinfo_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = 0
    for subject in SUBJECTS:
        for body in BODIES:
            data = mail_of(DIFF, subject, body)
            if (found := read_plain(data)) is not None:
                plain += 1
                assert read_mail(data, "x") == by_mailinfo(monkeypatch, data), (subject, body)
                assert found.diff.endswith(DIFF)
    assert plain >= 60
    for path in sorted(ROOT.glob("patches/*/*.patch")):
        data = path.read_bytes()
        assert read_mail(data, "x") == by_mailinfo(monkeypatch, data), path


@pytest.mark.parametrize(
    "name", ["A", "a" * 61, "a.b", '"A. B"', "A (x)", "=?UTF-8?q?=C3=A4?=", "a@b", "A  B", " A B"]
)
def test_names_that_mailinfo_changes_are_left_to_it(name: str) -> None:
    data = mail_of(DIFF)
    assert read_plain(data) is not None
    assert read_plain(data.replace(b"From: A B ", f"From: {name} ".encode())) is None


def test_dates_are_read_and_written_as_the_standard_library_does() -> None:
    rng = random.Random(5)  # noqa: S311
    known = 0
    for _ in range(3000):
        day, month = rng.choice(["Mon", "Sun"]), rng.choice(["Jan", "Feb", "Sep", "Dec", "may", "Foo"])
        hour, minute, second = (rng.randint(0, end) for end in (24, 60, 60))
        zone = f"{rng.choice('+-')}{rng.randint(0, 25):02d}{rng.choice([0, 30, 45, 59, 60, 99]):02d}"
        clock = f"{hour:02d}:{minute:02d}:{second:02d}"
        text = f"{day}, {rng.randint(0, 32)} {month} {rng.choice([1960, 1970, 2026, 3000])} {clock} {zone}"
        try:
            when = email.utils.parsedate_to_datetime(text)
            wanted = f"{int(when.timestamp())} {when.strftime('%z') or '+0000'}"
        except ValueError:
            wanted = mail.UNKNOWN_DATE
        if wanted.startswith("-"):
            wanted = mail.UNKNOWN_DATE
        assert mail.raw_date(text) == wanted, text
        if wanted != mail.UNKNOWN_DATE and when.tzinfo:
            known += 1
            assert mail.mail_date(wanted) == email.utils.format_datetime(when), wanted
    assert known > 500


def random_files(seed: random.Random) -> dict[str, bytes]:
    names = ["a.c", "dir/b.c", "dir/sub/c.c", "dir.d/e", "dir-x", "ü.txt", "q uote"]
    return {
        name: b"".join(b"%s %d\n" % (name.encode(), n) for n in range(seed.randrange(1, 30)))
        for name in names
    }


def edited(seed: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    for _ in range(seed.randrange(1, 4)):
        at = seed.randrange(len(lines) + 1)
        lines[at : at + seed.randrange(3)] = [
            b"new %d\n" % seed.randrange(1000) for _ in range(seed.randrange(3))
        ]
    if seed.random() < 0.2 and lines:
        lines[-1] = lines[-1].rstrip(b"\n")
    return b"".join(lines)


@pytest.mark.parametrize("number", range(12))
def test_a_patch_gives_the_tree_that_git_gives(repository: Repository, number: int) -> None:
    """Files changed, made and removed at random: the tree of the commit, and `git fsck` finds every object good."""
    seed = random.Random(number)  # noqa: S311
    files = random_files(seed)
    base = repository.commit(dict(files))
    changes: dict[str, bytes | None] = {}
    for name in seed.sample(sorted(files), 3):
        changes[name] = edited(seed, files[name])
    changes["new/deep/file"] = b"x\n" * seed.randrange(1, 4)
    if number % 3 == 0:
        changes[seed.choice(sorted(set(files) - set(changes)))] = None
    head = repository.commit(changes)
    data = repository.git("format-patch", "--stdout", "--no-renames", "-1", head)
    patch = NamedPatch("x", read_mail(data, "x"))
    base_tree = repository.tree(base)
    with open_objects(repository.ours) as store:
        made = apply_in_memory(store, base_tree, patch)
    emptied = any(content == b"" for content in changes.values())
    assert made == repository.tree(head) or (made is None and emptied)
    (commit,) = apply_patches(repository.ours, base, base_tree, [patch])
    assert commit.tree == repository.tree(head)
    assert (
        commit.id == commits.commit_tree(repository.ours, commit.tree, base, commit.author, commit.message).id
    )
    assert b"error" not in repository.git("fsck", "--strict", "--no-dangling")


def new_file(path: bytes) -> bytes:
    head = b"diff --git a/%b b/%b\nnew file mode 100644\n--- /dev/null\n" % (path, path)
    return head + b"+++ b/%b\n@@ -0,0 +1 @@\n+x\n" % path


def test_what_is_not_plain_is_left_to_git(repository: Repository) -> None:
    base = repository.commit({"f": b"a\nb\n", "dir/g": b"x\n", "bin": b"\0\1\2"})
    tree = repository.tree()
    header = b"diff --git a/f b/f\n"
    hunk = b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+c\n b\n"
    cases = {
        "mode": header + b"old mode 100644\nnew mode 100755\n" + hunk,
        "rename": b"diff --git a/f b/h\nsimilarity index 50%\nrename from f\nrename to h\n"
        b"--- a/f\n+++ b/h\n@@ -1,2 +1,2 @@\n-a\n+c\n b\n",
        "link": b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+f\n",
        "over a file": new_file(b"f"),
        "below a file": new_file(b"f/x"),
        "over a directory": new_file(b"dir"),
        "removed in part": header + b"deleted file mode 100644\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        "elsewhere": header + hunk.replace(b"-a", b"-z"),
        "nothing": header + hunk.replace(b"+c", b"+a"),
        "plain diff": hunk,
    }
    assert apply_in_memory_of(repository, tree, header + hunk) is not None
    for name, diff in cases.items():
        assert apply_in_memory_of(repository, tree, diff) is None, name
    assert base


def apply_in_memory_of(repository: Repository, tree: str, diff: bytes) -> str | None:
    with open_objects(repository.ours) as store:
        return apply_in_memory(store, tree, NamedPatch("x", mail.PatchMail(AUTHOR, "x\n", diff)))


@pytest.mark.parametrize("number", range(12))
def test_a_merge_gives_what_git_gives(repository: Repository, number: int) -> None:
    seed = random.Random(100 + number)  # noqa: S311
    files = random_files(seed)
    base = repository.commit(dict(files))
    sides = []
    for _ in range(2):
        repository.git("reset", "-q", "--hard", base)
        changes: dict[str, bytes | None] = {n: edited(seed, files[n]) for n in seed.sample(sorted(files), 2)}
        changes[f"new/{seed.randrange(3)}"] = b"%d\n" % seed.randrange(2)
        if seed.random() < 0.4:
            changes[seed.choice(sorted(set(files) - set(changes)))] = None
        if seed.random() < 0.4:
            old = seed.choice(sorted(set(files) - set(changes)))
            changes |= {old: None, f"moved/{old}": files[old]}
        sides.append(repository.tree(repository.commit(changes)))
    tree = repository.tree(base)
    labels = merge.ConflictLabels("o", "b", "t")
    with open_objects(repository.ours) as store:
        wanted = merge.merge_by_git(store, tree, *sides, labels)
        assert merge.merge_stored(store, tree, *sides, labels) == wanted


def test_diffs_of_trees_are_those_of_git(repository: Repository) -> None:
    trees = [repository.tree(repository.commit({"f": b"a\nb\n", "g": b"x\n" * 20}))]
    trees.append(repository.tree(repository.commit({"f": b"a\nc\n"})))
    trees.append(
        repository.tree(repository.commit({"g": None, "h": b"x\n" * 19 + b"y\n", "b": b"\0\1" * 200}))
    )
    with open_trees(repository.ours) as access:
        for old in trees:
            for new in trees:
                assert access.diff(old, new) == parsed_tree_diff(repository.ours, old, new)


@pytest.mark.parametrize("count", [3, 130])
def test_objects_are_written_once_as_git_writes_them(repository: Repository, count: int) -> None:
    blobs = [b"%d\n" % number * number for number in range(count)]
    known = repository.git("hash-object", "-w", "--stdin", stdin=blobs[1]).decode().strip()
    with open_objects(repository.ours) as store:
        ids = [store.write("blob", blob) for blob in blobs]
        files = {b"d/%d" % n: Entry(b"100644", made) for n, made in enumerate(ids)}
        tree = store.with_files("", files)
        assert store.changes("", tree) == files
    assert ids[1] == known
    assert ids == [repository.git("hash-object", "--stdin", stdin=blob).decode().strip() for blob in blobs]
    listed = repository.git("ls-tree", "-r", tree).decode().splitlines()
    assert sorted(line.split("\t")[1] for line in listed) == sorted(path.decode() for path in files)
    assert b"error" not in repository.git("fsck", "--strict", "--no-dangling")


def test_objects_that_are_read_ahead_are_not_asked_for_again(repository: Repository) -> None:
    """Their answers are larger than a pipe, and some are missing."""
    blobs = [b"%d\n" % number * 2000 for number in range(250)]
    with open_objects(repository.ours) as store:
        ids = [store.write("blob", blob) for blob in blobs]
    with open_objects(repository.ours) as store:
        store.read_ahead(["0" * 40, *ids[:200], "1" * 40])
        assert [store.content(made) for made in ids] == blobs
        with pytest.raises(PyggmlError, match="is missing"):
            store.content("1" * 40)
    with open_objects(repository.ours) as store:
        store.read_ahead(ids)
        stdin, _ = store._streams
        stdin.close()
        assert [store.content(made) for made in ids] == blobs


def test_faults_are_told_in_the_order_of_the_patches(repository: Repository) -> None:
    base = repository.commit({"f": b"x\n"})

    def patches() -> Iterator[NamedPatch]:
        yield NamedPatch("first", read_mail(mail_of(DIFF), "first"))
        raise PyggmlError("the second cannot be read")

    with pytest.raises(PyggmlError, match="first"):
        list(apply_patches(repository.ours, base, repository.tree(), patches()))
    base = repository.commit({"f": b"a\n"})
    made = apply_patches(repository.ours, base, repository.tree(), patches())
    assert next(made).subject == "change it"
    with pytest.raises(PyggmlError, match="second"):
        next(made)


def test_a_message_that_git_refuses_is_not_written(repository: Repository) -> None:
    base = repository.commit({"f": b"a\n"})
    with pytest.raises(GitError, match="NUL"), open_objects(repository.ours) as store:
        commits.stored_commit(store, repository.tree(), base, AUTHOR, "a\0b\n")


def test_nothing_is_written_after_an_error(repository: Repository) -> None:
    repository.commit({"f": b"a\n"})
    before = sorted(repository.root.rglob("*"))
    with pytest.raises(ValueError, match="stop"), open_objects(repository.ours) as store:
        store.write("blob", b"new\n")
        raise ValueError("stop")
    assert sorted(repository.root.rglob("*")) == before


@pytest.mark.parametrize("numbered", [False, True])
def test_a_chain_is_formatted_as_each_of_its_commits(repository: Repository, numbered: bool) -> None:
    parent = repository.commit({"f": b"0\n"})
    messages = [
        "one\n",
        "two : it\n\nFrom: me\n",
        "three " * 20 + "\n",
        "ü\n\nGrüße\n",
        "five\n\na >8 b\n",
        "six\n\nFrom x y\n",
    ]
    messages += [f"more {n}\n" for n in range(5)]
    chain: list[Commit] = []
    for number, message in enumerate(messages, 1):
        tree = repository.tree(repository.commit({"f": b"%d\n" % number}))
        chain.append(commits.commit_tree(repository.ours, tree, parent, AUTHOR, mail.clean_message(message)))
        parent = chain[-1].id
    total = len(chain) if numbered else 0
    wanted = [format_patch(repository.ours, one, number=n, total=total) for n, one in enumerate(chain, 1)]
    assert format_patches(repository.ours, chain, numbered=numbered) == wanted
    assert numbered == wanted[0].count(b"[PATCH 01/11]")
