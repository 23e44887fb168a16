"""Publishing a change: all of it or nothing, whatever happens in between.

A change moves the branch of the vendored repository, the files of its work tree, and files of the project
(patches, series.toml). Objects are written beforehand and hurt nobody. Then a journal is written and
renamed into place: from there on the change is decided. A process that dies later leaves the journal, and
the next command finishes the change from it; a failure in this process rolls it back. The reference comes
last. The finished journal becomes the record from which `pyggml undo` takes the change back.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.worktree.files import (
    BRANCH,
    PathChange,
    changed_paths,
    check_free,
    check_settled,
    edited_tree,
    write_paths,
)

UNDO_DEPTH = 50
PASSING = (".pyggml/rebase/state.json",)
"""Files that undo does not bring back."""
LOCK_AGE_SECONDS = 1.0
_MARK = b"pyggml transaction\n"


@dataclass(frozen=True)
class FileChange:
    """A file of the project, relative to its root with `/`; None stands for "not there"."""

    path: str
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True)
class Change:
    """What one command publishes.

    Attributes:
        doing: the command, as the user knows it.
        head_old, head_new: commit ids of the branch before and after.
        tree_old, tree_new: trees of the tracked files in the work tree before and after; they differ from
            the commits' trees where there are local edits.
        undoes: number of the record that this change takes back.
    """

    doing: str
    head_old: str
    head_new: str
    tree_old: str
    tree_new: str
    files: tuple[FileChange, ...] = field(default=())
    undoes: int | None = None

    def inverse(self, undoes: int) -> Change:
        # A rebase that was published is not under way again: its worktree is gone.
        files = tuple(FileChange(f.path, f.new, f.old) for f in self.files if f.path not in PASSING)
        return Change(
            f"undo of {self.doing}", self.head_new, self.head_old, self.tree_new, self.tree_old, files, undoes
        )

    @property
    def moves(self) -> bool:
        """Whether the index has to follow: edits that become a commit move it without touching a file."""
        return self.head_old != self.head_new or self.tree_old != self.tree_new

    @property
    def empty(self) -> bool:
        return not self.moves and not self.files


@dataclass(frozen=True)
class Record:
    """A finished change that can be taken back."""

    number: int
    when: float
    change: Change


def publish(project: Project, git: Git, change: Change) -> None:
    """Carry out `change`; the caller holds the project's lock and has checked that nothing else is edited.

    Raises:
        PyggmlError: something is in the way, or a step failed; everything is as before.
    """
    if change.empty:
        return
    paths = changed_paths(git, change.tree_old, change.tree_new)
    check_free(git, paths)
    _check_files(project, change)
    journal = _journal(project)
    project.make_state_dir()
    with _index_lock(git):
        write_atomic(journal, _encode(change, time.time()))
        try:
            _carry_out(project, git, change, paths)
        except BaseException as error:
            _roll_back(project, git, change, error)
            raise
    _finish(project, git, change)


def pending(project: Project) -> Change | None:
    """The change whose journal still lies there: its command was killed, or is at work right now."""
    try:
        return _decode(_journal(project).read_bytes()).change
    except FileNotFoundError:
        return None


def recover(project: Project, git: Git) -> str | None:
    """Finish the change of a command that was killed; returns what it was, or None.

    Raises:
        PyggmlError: files were edited in between.
    """
    change = pending(project)
    _break_own_lock(git)
    if change is None:
        return None
    _break_reference_locks(git)
    head = git.resolve(BRANCH)
    if head not in (change.head_old, change.head_new):
        raise PyggmlError(
            f"`{change.doing}` was interrupted, and the branch has moved since",
            f"Bring it back with: git -C {git.work_tree} update-ref {BRANCH} {change.head_old}",
        )
    paths = changed_paths(git, change.tree_old, change.tree_new)
    check_settled(git, paths)
    with _index_lock(git):
        _carry_out(project, git, change, paths)
    _finish(project, git, change)
    return change.doing


def _carry_out(project: Project, git: Git, change: Change, paths: Sequence[PathChange]) -> None:
    """Every step may have been done before by a process that died: each is a no-op then."""
    if change.moves:
        _move_work_tree(git, change, paths)
    for file in change.files:
        _write_file(project.root / file.path, file.new)
    if git.resolve(BRANCH) != change.head_new:
        git.run(
            "update-ref",
            "-m",
            f"pyggml: {change.doing}",
            "--stdin",
            stdin=f"update {BRANCH} {change.head_new} {change.head_old}\n".encode(),
        )


def _write_file(target: Path, content: bytes | None) -> None:
    if content is None:
        remove_file(target)
    elif not target.is_file() or target.read_bytes() != content:
        write_atomic(target, content)


def _move_work_tree(git: Git, change: Change, paths: Sequence[PathChange]) -> None:
    private = git.git_dir / "pyggml-index"
    remove_file(private.with_name(private.name + ".lock"))
    # With its time: git trusts an entry only if it is older than the index (racy-git in git's docs).
    shutil.copy2(git.git_dir / "index", private)
    index = git.with_index(private)
    index.run("read-tree", "--reset", change.tree_new)
    write_paths(index, paths)
    private.replace(git.git_dir / "index")


@contextlib.contextmanager
def _index_lock(git: Git) -> Iterator[None]:
    """Hold git's own lock on the index, so that the user's git and ours keep apart."""
    lock = git.git_dir / "index.lock"
    marked = git.git_dir / "pyggml-lock"
    try:
        # Linked into place with its mark inside: a lock without the mark is never ours, even after a kill.
        marked.write_bytes(_MARK)
        lock.hardlink_to(marked)
    except FileExistsError as error:
        raise PyggmlError(
            f"{lock} exists: another git is at work in the vendored tree, or one was killed there",
            "Wait for it; if there is none, remove that file.",
        ) from error
    except OSError as error:
        raise PyggmlError(f"cannot write {lock}: {error.strerror}", "Nothing was changed.") from error
    try:
        yield
    finally:
        remove_file(lock)


def _break_own_lock(git: Git) -> None:
    """Remove the index lock of a pyggml that was killed; the caller holds the project's lock."""
    lock = git.git_dir / "index.lock"
    with contextlib.suppress(OSError):
        if lock.read_bytes() == _MARK:
            lock.unlink()


def _break_reference_locks(git: Git) -> None:
    """Remove the locks of a git that was killed together with us; a living git lets go within moments."""
    names = ["HEAD.lock", "packed-refs.lock", f"{BRANCH}.lock"]
    locks = [git.git_dir / name for name in names]
    locks += (git.git_dir / "refs" / "pyggml").rglob("*.lock")
    deadline = time.monotonic() + LOCK_AGE_SECONDS
    while any(lock.exists() for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.05)
    for lock in locks:
        remove_file(lock)


def _roll_back(project: Project, git: Git, change: Change, error: BaseException) -> None:
    """Undo a half-done change in the process that failed to do it."""
    back = Change("roll back", change.head_new, change.head_old, change.tree_new, change.tree_old)
    try:
        if git.resolve(BRANCH) == change.head_new and change.head_new != change.head_old:
            # The reference moved: the change is complete but for its record.
            _finish(project, git, change)
            return
        paths = changed_paths(git, back.tree_old, back.tree_new)
        check_settled(git, paths)
        if back.moves:
            _move_work_tree(git, back, paths)
        for file in change.files:
            _write_file(project.root / file.path, file.old)
        remove_file(_journal(project))
    except Exception as second:
        raise PyggmlError(
            f"`{change.doing}` stopped half-way: {error}",
            f"Going back failed too ({second}). Remove the cause and run the command again: it finishes the change.",
        ) from error


def _check_files(project: Project, change: Change) -> None:
    for file in change.files:
        target = project.root / file.path
        now = target.read_bytes() if target.is_file() else None
        if now != file.old:
            raise PyggmlError(
                f"{target} changed while `{change.doing}` was preparing", "Run the command again."
            )


def _finish(project: Project, git: Git, change: Change) -> None:
    records = _records_dir(project)
    if change.undoes is not None:
        remove_file(records / f"{change.undoes:06d}.json")
        git.run("update-ref", "-d", f"refs/pyggml/undo/{change.undoes:06d}")
        remove_file(_journal(project))
        return
    records.mkdir(parents=True, exist_ok=True)
    numbers = _numbers(project)
    number = numbers[-1] + 1 if numbers else 1
    # Edits of the work tree are in no commit: a reference keeps their tree from being collected.
    git.run("update-ref", f"refs/pyggml/undo/{number:06d}", _keeper(git, change))
    _journal(project).replace(records / f"{number:06d}.json")
    for old in numbers[: -UNDO_DEPTH + 1] if len(numbers) >= UNDO_DEPTH else ():
        remove_file(records / f"{old:06d}.json")
        git.run("update-ref", "-d", f"refs/pyggml/undo/{old:06d}")


def _keeper(git: Git, change: Change) -> str:
    from pyggml.series.patchfile.mail import UNKNOWN_DATE, Identity
    from pyggml.series.stack.commits import commit_tree

    who = Identity("pyggml", "pyggml@users.noreply.github.com", UNKNOWN_DATE)
    return commit_tree(git, change.tree_old, change.head_old, who, f"before {change.doing}\n").id


def records(project: Project) -> list[Record]:
    """What can be taken back, oldest first."""
    found = []
    for number in _numbers(project):
        record = _decode((_records_dir(project) / f"{number:06d}.json").read_bytes())
        found.append(Record(number, record.when, record.change))
    return found


def work_tree_state(git: Git) -> str:
    """The tree of the tracked files as they lie there, edits included."""
    return edited_tree(git, git.git_dir / "index")


def _numbers(project: Project) -> list[int]:
    directory = _records_dir(project)
    if not directory.is_dir():
        return []
    return sorted(int(path.stem) for path in directory.glob("*.json") if path.stem.isdigit())


def _records_dir(project: Project) -> Path:
    return project.state_dir / "undo"


def _journal(project: Project) -> Path:
    return project.state_dir / "journal.json"


def _encode(change: Change, when: float) -> bytes:
    def pack(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode("ascii")

    document = {
        "doing": change.doing,
        "when": when,
        "head": [change.head_old, change.head_new],
        "tree": [change.tree_old, change.tree_new],
        "undoes": change.undoes,
        "files": [[os.fspath(f.path), pack(f.old), pack(f.new)] for f in change.files],
    }
    return json.dumps(document, indent=1).encode()


def _decode(data: bytes) -> Record:
    def unpack(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    document = json.loads(data)
    files = tuple(FileChange(path, unpack(old), unpack(new)) for path, old, new in document["files"])
    (head_old, head_new), (tree_old, tree_new) = document["head"], document["tree"]
    change = Change(document["doing"], head_old, head_new, tree_old, tree_new, files, document["undoes"])
    return Record(0, document["when"], change)
