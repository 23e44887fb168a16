"""Publishing a change: all of it or nothing, whatever happens in between.

A transaction moves the branch of the vendored repository, the files of its work tree, and files of the project
(patches, series.toml). Objects are written beforehand and do no harm. Then a journal is written and renamed into
place: from then on the transaction is decided. If the process dies later, the next command finishes the
transaction from the journal; if a step fails in this process, it is rolled back. The reference comes last. The
finished journal becomes the record from which `pyggml undo` takes the change back.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.git import Git
from pyggml.git.index import write_entries
from pyggml.project import Project
from pyggml.series.patchfile.mail import UNKNOWN_DATE, Identity
from pyggml.series.stack.commits import commit_tree
from pyggml.series.stack.merge import IndexStage
from pyggml.series.worktree.checkout import read_unmerged, show_unmerged
from pyggml.series.worktree.files import (
    BRANCH,
    PathChange,
    changed_paths,
    check_free,
    check_unedited,
    write_paths,
)
from pyggml.series.worktree.sequencer import EDITING, REBASING
from pyggml.series.worktree.state_file import FileChange, from_plain, read_file, to_json

UNDO_DEPTH = 50
RECORDS = 200
LOCK_AGE_SECONDS = 1.0
_MARK = b"pyggml transaction\n"


@dataclass(frozen=True)
class Transaction:
    """What one command changes.

    Attributes:
        doing: the command, as the user knows it.
        head_old, head_new: commit ids of the branch before and after.
        tree_old, tree_new: trees of the tracked files in the work tree before and after; they differ from
            the commits' trees where there are local edits.
        unmerged_old, unmerged_new: the index entries of conflicting paths before and after; `publish` sees to the
            old ones.
        undoes: number of the record that this transaction takes back; for a redo, that of the undo.
    """

    doing: str
    head_old: str
    head_new: str
    tree_old: str
    tree_new: str
    files: tuple[FileChange, ...] = field(default=())
    undoes: int | None = None
    unmerged_old: tuple[IndexStage, ...] = ()
    unmerged_new: tuple[IndexStage, ...] = ()

    def inverse(self, undoes: int) -> Transaction:
        """The transaction that takes this one back."""
        # A rebase that was published does not wait again: its worktree is gone.
        files = tuple(FileChange(f.path, f.new, f.old) for f in self.files if f.path != REBASING.file)
        doing = f"undo of {self.doing}"
        if self.undoes is not None:
            doing = f"redo of {self.doing.removeprefix('undo of ')}"
        return Transaction(
            doing,
            self.head_new,
            self.head_old,
            self.tree_new,
            self.tree_old,
            files,
            undoes,
            self.unmerged_new,
            self.unmerged_old,
        )

    @property
    def moves(self) -> bool:
        """Whether the index has to follow: edits that become a commit move it without touching a file."""
        return (self.head_old, self.tree_old, self.unmerged_old) != (
            self.head_new,
            self.tree_new,
            self.unmerged_new,
        )

    @property
    def empty(self) -> bool:
        return not self.moves and not self.files


@dataclass(frozen=True)
class UndoRecord:
    """A finished transaction that can be taken back; `when` is in seconds since the epoch."""

    number: int
    when: float
    transaction: Transaction


def publish(project: Project, git: Git, transaction: Transaction) -> None:
    """Carry out a transaction; the caller holds the project's lock and has checked that nothing else is edited.

    Raises:
        PyggmlError: something is in the way, or a step failed; everything is as it was before.
    """
    if transaction.empty:
        return
    if any(file.path == EDITING.file and file.old is not None for file in transaction.files):
        transaction = replace(transaction, unmerged_old=read_unmerged(git))
    paths = changed_paths(git, transaction.tree_old, transaction.tree_new)
    check_free(git, paths)
    _check_files(project, transaction)
    journal = _journal(project)
    project.make_state_dir()
    with _index_lock(git):
        write_atomic(journal, _encode(transaction, time.time()))
        try:
            _carry_out(project, git, transaction, paths)
        except BaseException as error:
            _roll_back(project, git, transaction, error)
            raise
    _finish(project, git, transaction)


def interrupted_transaction(project: Project) -> Transaction | None:
    """The transaction whose journal is still there: its command was killed, or is at work right now."""
    try:
        return _read_record(_journal(project)).transaction
    except FileNotFoundError:
        return None


def recover(project: Project, git: Git) -> Transaction | None:
    """Finish the transaction of a command that was killed; returns it, or None if there is none.

    Raises:
        PyggmlError: files were edited in between.
    """
    transaction = interrupted_transaction(project)
    _break_own_lock(git)
    if transaction is None:
        return None
    _break_reference_locks(git)
    head = git.resolve(BRANCH)
    if head not in (transaction.head_old, transaction.head_new):
        raise PyggmlError(
            f"`{transaction.doing}` was interrupted, and the branch has moved since",
            f"Bring it back with: git -C {git.work_tree} update-ref {BRANCH} {transaction.head_old}",
        )
    refuse_changed_files(project, transaction)
    paths = changed_paths(git, transaction.tree_old, transaction.tree_new)
    check_unedited(git, paths)
    with _index_lock(git):
        _carry_out(project, git, transaction, paths)
    _finish(project, git, transaction)
    return transaction


def refuse_changed_files(project: Project, transaction: Transaction) -> None:
    """Refuse to write over files of the project that something else has changed since, a `git pull` for one.

    Raises:
        PyggmlError: there is one that is neither as before the command nor as after it.
    """
    if changed := changed_since(project, transaction):
        raise PyggmlError(
            f"`{transaction.doing}` was interrupted, and {changed[0]} has been changed since",
            f"Put it back (after a pull: git -C {project.root} reset --keep ORIG_HEAD), run any command, "
            "then change it again.",
        )


def changed_since(project: Project, transaction: Transaction) -> list[str]:
    """The files of a killed command that are neither as before it nor as after it."""
    return [
        file.path
        for file in transaction.files
        if read_file(project.root / file.path) not in (file.old, file.new)
    ]


def _carry_out(project: Project, git: Git, transaction: Transaction, paths: Sequence[PathChange]) -> None:
    """A process that died may have done any of the steps already: each is a no-op then."""
    if transaction.moves:
        _move_work_tree(git, transaction, paths)
    for file in transaction.files:
        _write_file(project.root / file.path, file.new)
    if git.resolve(BRANCH) != transaction.head_new:
        git.run(
            "update-ref",
            "-m",
            f"pyggml: {transaction.doing}",
            "--stdin",
            stdin=f"update {BRANCH} {transaction.head_new} {transaction.head_old}\n".encode(),
        )


def _write_file(target: Path, content: bytes | None) -> None:
    if content is None:
        remove_file(target)
    elif read_file(target) != content:
        write_atomic(target, content)


def _move_work_tree(git: Git, transaction: Transaction, paths: Sequence[PathChange]) -> None:
    private = git.git_dir / "pyggml-index"
    remove_file(private.with_name(private.name + ".lock"))
    # The copy keeps its time: git trusts an entry only if it is older than the index (racy-git in git's docs).
    shutil.copy2(git.git_dir / "index", private)
    index = git.with_index(private)
    if not _keep_edits(index, transaction):
        index.run("read-tree", "--reset", transaction.tree_new)
    write_paths(index, paths)
    if transaction.unmerged_new:
        show_unmerged(index, transaction.unmerged_new)
    private.replace(git.git_dir / "index")


def _keep_edits(index: Git, transaction: Transaction) -> bool:
    """If edits stay in the work tree as they are, only let the commits' own changes into the index.

    What is staged stays staged, and what is not does not become so.

    Returns:
        whether that was all there is to do.
    """
    if transaction.tree_old != transaction.tree_new:
        return False
    heads = (f"{head}^{{tree}}" for head in (transaction.head_old, transaction.head_new))
    old, new = index.text("rev-parse", *heads).split("\n")
    if new == transaction.tree_new:
        return False
    if index.run("ls-files", "--unmerged"):
        return False
    added = {change.path: change for change in changed_paths(index, new, transaction.tree_new)}
    entries = {change.path: change.new for change in changed_paths(index, old, new)}
    for path, entry in entries.items():
        if entry is None and path in added:  # `git add` made it known: it stays so
            entries[path] = added[path].new
    write_entries(index, entries)
    return True


@contextlib.contextmanager
def _index_lock(git: Git) -> Iterator[None]:
    """Hold git's own lock on the index, so that the user's git and ours do not meet."""
    lock = git.git_dir / "index.lock"
    marked = git.git_dir / "pyggml-lock"
    try:
        # Linked into place with the mark inside: a lock without the mark is never ours, even after a kill.
        marked.write_bytes(_MARK)
        lock.hardlink_to(marked)
    except FileExistsError as error:
        raise PyggmlError(
            f"{lock} exists: another git is at work in the vendored tree, or was killed there",
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
    """Remove the locks of a git that was killed together with us; a living one releases them within moments."""
    names = ["HEAD.lock", "packed-refs.lock", f"{BRANCH}.lock"]
    locks = [git.git_dir / name for name in names]
    locks += (git.git_dir / "refs" / "pyggml").rglob("*.lock")
    deadline = time.monotonic() + LOCK_AGE_SECONDS
    while any(lock.exists() for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.05)
    for lock in locks:
        remove_file(lock)


def _roll_back(project: Project, git: Git, transaction: Transaction, error: BaseException) -> None:
    """Undo a half-done transaction, in the process in which it failed."""
    back = transaction.inverse(0)
    try:
        if git.resolve(BRANCH) == transaction.head_new and transaction.head_new != transaction.head_old:
            # The reference moved: the transaction is complete but for its record.
            _finish(project, git, transaction)
            return
        paths = changed_paths(git, back.tree_old, back.tree_new)
        check_unedited(git, paths)
        if back.moves:
            _move_work_tree(git, back, paths)
        for file in transaction.files:
            _write_file(project.root / file.path, file.old)
        remove_file(_journal(project))
    except Exception as second:
        raise PyggmlError(
            f"`{transaction.doing}` stopped half-way: {error}",
            f"Going back failed too ({second}). Remove the cause and run the command again to finish it.",
        ) from error


def _check_files(project: Project, transaction: Transaction) -> None:
    for file in transaction.files:
        target = project.root / file.path
        if read_file(target) != file.old:
            raise PyggmlError(
                f"{target} changed while `{transaction.doing}` was being prepared", "Run the command again."
            )


def _finish(project: Project, git: Git, transaction: Transaction) -> None:
    records = _records_dir(project)
    records.mkdir(parents=True, exist_ok=True)
    numbers = _numbers(project)
    number = numbers[-1] + 1 if numbers else 1
    # Edits are in no commit: a reference keeps git from collecting their tree.
    git.run("update-ref", f"refs/pyggml/undo/{number:06d}", _keeper(git, transaction))
    _journal(project).replace(records / f"{number:06d}.json")
    for old in _too_old(project, [*numbers, number]):
        remove_file(records / f"{old:06d}.json")
        git.run("update-ref", "-d", f"refs/pyggml/undo/{old:06d}")


def _too_old(project: Project, numbers: list[int]) -> list[int]:
    """The records to forget. An undo counts less than what it took back: going back must not shorten the way."""
    if len(numbers) <= UNDO_DEPTH:
        return []
    changes = [r.number for r in undo_records(project) if r.transaction.undoes is None]
    first = changes[-UNDO_DEPTH] if len(changes) > UNDO_DEPTH else numbers[0]
    return [number for number in numbers[:-1] if number < first or number <= numbers[-1] - RECORDS]


def _keeper(git: Git, transaction: Transaction) -> str:
    who = Identity("pyggml", "pyggml@users.noreply.github.com", UNKNOWN_DATE)
    message = f"before {transaction.doing}\n"
    return commit_tree(git, transaction.tree_old, transaction.head_old, who, message).id


def undo_records(project: Project) -> list[UndoRecord]:
    """Every finished transaction, those that were taken back and the undos included, oldest first."""
    directory = _records_dir(project)
    return [_read_record(directory / f"{number:06d}.json", number) for number in _numbers(project)]


def _numbers(project: Project) -> list[int]:
    directory = _records_dir(project)
    if not directory.is_dir():
        return []
    return sorted(int(path.stem) for path in directory.glob("*.json") if path.stem.isdigit())


def _records_dir(project: Project) -> Path:
    return project.state_dir / "undo"


def _journal(project: Project) -> Path:
    return project.state_dir / "journal.json"


@dataclass(frozen=True)
class _Journal:
    """A transaction as it is written down: pairs of old and new."""

    doing: str
    when: float
    head: tuple[str, str]
    tree: tuple[str, str]
    undoes: int | None
    files: tuple[tuple[str, bytes | None, bytes | None], ...]
    unmerged: tuple[tuple[IndexStage, ...], tuple[IndexStage, ...]] = ((), ())


def _encode(transaction: Transaction, when: float) -> bytes:
    t = transaction
    files = tuple((file.path, file.old, file.new) for file in t.files)
    return to_json(
        _Journal(
            t.doing,
            when,
            (t.head_old, t.head_new),
            (t.tree_old, t.tree_new),
            t.undoes,
            files,
            (t.unmerged_old, t.unmerged_new),
        )
    )


def _read_record(path: Path, number: int = 0) -> UndoRecord:
    journal = from_plain(_Journal, json.loads(path.read_bytes()))
    files = tuple(FileChange(*file) for file in journal.files)
    transaction = Transaction(
        journal.doing, *journal.head, *journal.tree, files, journal.undoes, *journal.unmerged
    )
    return UndoRecord(number, journal.when, transaction)
