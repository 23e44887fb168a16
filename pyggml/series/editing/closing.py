"""A series that is closed: it is replayed and proven, and changed no more unless somebody opens it again."""

from __future__ import annotations

from pyggml.project import Project
from pyggml.series.stack.series_file import CLOSED, SERIES_FILE, read_toml
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.state_file import FileChange
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import open_bare


def reopen_series(project: Project, pin: str | None = None) -> None:
    """Take the mark `closed` out of `series.toml`; an open series stays as it is.

    Raises:
        PyggmlError: an edit, conflict or rebase waits, or the project cannot be opened.
    """
    import tomlkit

    doing = "patch --reopen"
    needs = Needs.NOTHING_WAITING
    # The entries need not be in order: `patch renumber` has this option, too.
    with changing(project, doing, pin, needs, keeps_series=True, opened=open_bare) as session:
        work = session.work
        path = work.directory / SERIES_FILE
        if not read_toml(path, {}).get(CLOSED):
            return
        old = path.read_bytes()
        document = tomlkit.parse(old.decode("utf-8"))
        document.remove(CLOSED)
        change = FileChange(
            path.relative_to(project.root).as_posix(), old, tomlkit.dumps(document).encode("utf-8")
        )
        head, tree = work.head, work_tree_state(work.git)
        publish(project, work.git, Transaction(doing, head, head, tree, tree, (change,)))
