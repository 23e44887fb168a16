"""Proof that the files say what the series records: every one of them is imported again."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.patchfile.mail import read_patch
from pyggml.series.stack.commits import apply_mail, scratch_index
from pyggml.series.stack.format_patch import export_commit
from pyggml.series.worktree.workspace import open_workspace


@dataclass(frozen=True)
class FileReport:
    """The verdict on one patch file; `detail` says what was found."""

    number: int
    file: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """The verdicts on a series."""

    pin: str
    ok: bool
    patches: tuple[FileReport, ...]


def verify_series(project: Project, pin_name: str | None = None) -> Report:
    """Import every patch file onto the tree recorded before it, and compare with the tree recorded after it.

    Each patch is judged on its own, so that one bad file does not hide the state of the others. The export
    of the imported commit is read back as well.
    """
    work = open_workspace(project, pin_name)
    rows: list[FileReport] = []
    trees = work.series.trees
    parent = work.base
    with scratch_index(work.git) as index:
        for number, patch in enumerate(work.series.patches, 1):
            file = patch.file(number)
            before = trees[number - 1]
            try:
                index.run("read-tree", before)
                mail = read_patch((work.directory / file).read_bytes(), file)
                found = apply_mail(work.git, index, parent, before, mail, file)
                export_commit(work.git, found.commit)
                parent = found.commit.id
                if found.commit.tree != patch.tree:
                    detail = f"gives tree {found.commit.tree[:12]}, recorded is {patch.tree[:12]}"
                    rows.append(FileReport(number, file, False, detail))
                else:
                    rows.append(
                        FileReport(number, file, True, f"tree {patch.tree[:12]}, commit {parent[:12]}")
                    )
            except PyggmlError as error:
                rows.append(FileReport(number, file, False, error.message.removeprefix(f"{file}: ")))
    return Report(work.pin.name, all(row.ok for row in rows), tuple(rows))
