"""Making and changing patches: new, edit, refresh; `continue` and `abort` of what waits."""

from __future__ import annotations

from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.git import Git, GitError
from pyggml.git.runner import run_outside
from pyggml.project import Project
from pyggml.series.editing.branch import collect, later
from pyggml.series.editing.operation import Operation, read_operation
from pyggml.series.editing.publish import SeriesChange, operation_file, publish_operation, result, run, write
from pyggml.series.patchfile.mail import Identity, clean_message, read_patch
from pyggml.series.rebasing.state import refuse_rebase
from pyggml.series.stack.commits import Commit, apply_mail, scratch_index
from pyggml.series.stack.history import read_chain
from pyggml.series.stack.picks import Delta, Pick
from pyggml.series.stack.series_file import Patch, check_name
from pyggml.series.worktree.transaction import Change, publish, work_tree_state
from pyggml.series.worktree.workspace import (
    Workspace,
    canonical,
    changing,
    known_position,
    other_pin,
    refuse_edits,
    refuse_operation,
)

TEMPLATE = """{name}

Defect: what goes wrong, and how one sees it.

Cause: why, with the function it happens in.

Evidence: the command or test that fails without this change.
"""


def new_patch(
    project: Project, name: str, message: str | None = None, pin: str | None = None
) -> SeriesChange:
    """Make a patch of the work tree's edits, on top of the patches applied now.

    Without edits it begins the patch: the next `patch continue` takes the edits made until then.

    Args:
        name: the patch's name in the series.
        message: its commit message; a template to be filled in by default.

    Raises:
        PyggmlError: the name is taken, or there are commits that are in no patch file yet.
    """
    with changing(project, f"patch new {name}", pin) as (work, _):
        refuse_operation(work)
        check_name(name)
        if any(patch.name == name for patch in work.series.patches):
            raise PyggmlError(
                f"there is a patch named {name} already", "List the names with: pyggml patch list"
            )
        at = known_position(work)
        if at < 0:
            raise other_pin(work)
        text = clean_message(message) if message else TEMPLATE.format(name=name.replace("-", " "))
        head, tree = work.head, work_tree_state(work.git)
        operation = Operation(f"patch new {name}", "new", work.pin.name, at + 1, head, tree, name, text)
        if tree == work.series.trees[at]:
            publish_operation(work, operation, head, head, tree, tree)
            return result(work, at, head, (), f"Edit {work.git.work_tree}, then: pyggml patch continue")
        return _finish_new(work, operation, tree)


def edit_patch(project: Project, wanted: str, pin: str | None = None) -> SeriesChange:
    """Bring the work tree to the patch `wanted`, for edits that `patch continue` folds into it.

    Raises:
        PyggmlError: no such patch, local edits, or commits that are in no patch file yet.
    """
    with changing(project, f"patch edit {wanted}", pin) as (work, _):
        refuse_operation(work)
        number = work.series.find(wanted)
        refuse_edits(work, "`patch edit`")
        at = known_position(work)
        stack = canonical(work, number)
        name = work.series.patches[number - 1].name
        before, tree = work.head, work_tree_state(work.git)
        operation = Operation(
            f"patch edit {name}", "edit", work.pin.name, max(at, number), before, tree, name
        )
        publish_operation(work, operation, before, stack[-1].id, tree, stack[-1].tree)
        where = f"Edit {work.git.work_tree}, then: pyggml patch continue   (or: pyggml patch abort)"
        return result(work, number, stack[-1].id, (), where)


def continue_operation(project: Project) -> SeriesChange:
    """Go on with what waits: take the edits or the resolution in, and put the later patches back on top.

    Raises:
        PyggmlError: nothing waits, or conflict markers are left.
        StoppedError: a later patch conflicts.
    """
    operation = read_operation(project)
    if operation is None:
        refuse_rebase(project)
        raise PyggmlError(
            "nothing is under way", "`pyggml patch edit N` or `pyggml patch new NAME` begin something."
        )
    with changing(project, "patch continue", operation.pin) as (work, _):
        tree = work_tree_state(work.git)
        if operation.kind == "conflict":
            return _resolve(work, operation, tree)
        if operation.kind == "new":
            return _finish_new(work, operation, tree)
        done, picks, _ = collect(work, tree)
        return run(work, operation, done, picks, tree)


def abort_operation(project: Project) -> SeriesChange:
    """Go back to before the command that waits; what was edited since is kept in the undo record.

    Raises:
        PyggmlError: nothing waits.
    """
    operation = read_operation(project)
    if operation is None:
        refuse_rebase(project)
        raise PyggmlError("nothing is under way", "Look with: pyggml patch status")
    with changing(project, f"abort of {operation.doing}", operation.pin) as (work, _):
        publish(
            project,
            work.git,
            Change(
                f"abort of {operation.doing}",
                work.head,
                operation.start_head,
                work_tree_state(work.git),
                operation.start_tree,
                operation_file(project, None),
            ),
        )
        return result(work, operation.applied, operation.start_head, ())


def refresh(project: Project, pin: str | None = None, *, from_files: bool = False) -> SeriesChange:
    """Write the commits and edits of the work tree back into the patch files.

    Edits are folded into the topmost applied patch; `fixup!` commits into the patch they name; other
    commits become new patches. Patches that are not applied are put on top again.

    Args:
        from_files: the other direction: take patch files that were edited by hand as the truth, place
            their hunks (an ambiguous one is refused) and record their trees anew.

    Raises:
        PyggmlError: a commit matches nothing, a patch went missing, or there is nothing to take edits.
        StoppedError: a later patch conflicts.
    """
    with changing(project, "patch refresh", pin) as (work, _):
        refuse_operation(work)
        tree = work_tree_state(work.git)
        if from_files:
            refuse_edits(work, "`patch refresh --from-files`")
            at = known_position(work)
            entries = _reread(work)
            applied = len(entries) if at == len(entries) else max(at, 0)
            return write(work, "patch refresh --from-files", entries, applied, tree)
        done, picks, applied = collect(work, tree)
        operation = Operation("patch refresh", "edit", work.pin.name, applied, work.head, tree)
        return run(work, operation, done, picks, tree)


def _finish_new(work: Workspace, operation: Operation, tree: str) -> SeriesChange:
    head_tree = work.git.text("rev-parse", "HEAD^{tree}")
    if tree == head_tree:
        raise PyggmlError(
            "nothing is edited yet for the new patch",
            f"Edit {work.git.work_tree} (new files: git add them), then: pyggml patch continue",
        )
    at = known_position(work)
    stack = canonical(work)
    author = _user(work.git)
    done = list(zip(work.series.patches[:at], stack[:at], strict=True))
    made = Pick(Patch(operation.name, tree), author, operation.message, (Delta(head_tree, tree),))
    return run(work, operation, done, [made, *later(work, stack, at)], tree)


def _user(git: Git) -> Identity:
    try:
        text = run_outside("var", "GIT_AUTHOR_IDENT", user_config=True, cwd=git.work_tree).decode(
            "utf-8", "replace"
        )
    except GitError as error:
        raise PyggmlError(
            "git does not know who you are",
            "Tell it: git config --global user.name …; git config --global user.email …",
        ) from error
    name, _, rest = text.strip().partition(" <")
    email, _, date = rest.partition("> ")
    return Identity(name, email, date)


def _resolve(work: Workspace, operation: Operation, tree: str) -> SeriesChange:
    assert work.git.work_tree is not None  # noqa: S101
    for path in operation.conflicts:
        target = work.git.work_tree / path
        if target.is_file() and any(
            line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in target.read_bytes().splitlines()
        ):
            raise PyggmlError(
                f"{target} still has conflict markers", "Resolve them, then: pyggml patch continue"
            )
    done = [(patch, _read_commit(work, commit)) for patch, commit in operation.done]
    below = done[-1][1].tree if done else work.series.base
    pick = operation.todo[0]
    resolved = replace(pick, deltas=(Delta(below, tree), *pick.deltas))
    if tree == below:
        raise PyggmlError(
            f"the resolution leaves nothing of patch {pick.patch.name}",
            f"If it is not needed any more: pyggml patch abort, then pyggml patch drop {pick.patch.name}",
        )
    return run(work, operation, done, [resolved, *operation.todo[1:]], tree)


def _read_commit(work: Workspace, commit: str) -> Commit:
    parent = work.git.text("rev-parse", f"{commit}^")
    return read_chain(work.git, parent, commit)[0]


def _reread(work: Workspace) -> list[tuple[Patch, Commit]]:
    entries: list[tuple[Patch, Commit]] = []
    with scratch_index(work.git) as index:
        index.run("read-tree", work.series.base)
        parent, tree = work.base, work.series.base
        for number, patch in enumerate(work.series.patches, 1):
            file = patch.file(number)
            mail = read_patch((work.directory / file).read_bytes(), file)
            commit = apply_mail(work.git, index, parent, tree, mail, file).commit
            entries.append((replace(patch, tree=commit.tree), commit))
            parent, tree = commit.id, commit.tree
    return entries
