"""A series that is closed: it is replayed and proven, and changed no more unless somebody opens it again."""

from __future__ import annotations

from pyggml.project import Project
from pyggml.series.stack.series_file import CLOSED, SERIES_FILE
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.state_file import FileChange
from pyggml.series.worktree.transaction import Transaction, publish


def reopen_series(project: Project, pin: str | None = None) -> None:
    """Take the mark `closed` out of `series.toml`; an open series stays as it is.

    Raises:
        PyggmlError: an edit, conflict or rebase waits, or the project cannot be opened.
    """
    import tomlkit

    doing = "patch --reopen"
    with changing(project, doing, pin, Needs.NOTHING_WAITING, keeps_series=True) as session:
        work = session.work
        if not work.series.closed:
            return
        path = work.directory / SERIES_FILE
        old = path.read_bytes()
        document = tomlkit.parse(old.decode("utf-8"))
        document.remove(CLOSED)
        change = FileChange(
            path.relative_to(project.root).as_posix(), old, tomlkit.dumps(document).encode("utf-8")
        )
        head, tree = work.head, work_tree_state(work.git)
        publish(project, work.git, Transaction(doing, head, head, tree, tree, (change,)))
