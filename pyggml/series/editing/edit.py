"""Making and changing patches: new, edit, refresh; `continue` and `abort` of what waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.git import Git, GitError
from pyggml.git.runner import run_outside
from pyggml.project import Project
from pyggml.series.editing.branch import read_branch
from pyggml.series.editing.operation import Operation
from pyggml.series.editing.publish import (
    SeriesChange,
    begin,
    pick_and_publish,
    publish_waiting,
    series_change,
    top,
)
from pyggml.series.patchfile.mail import Identity, clean_message
from pyggml.series.stack.history import read_commit
from pyggml.series.stack.picks import Pick, TreeDelta, series_picks
from pyggml.series.stack.series_file import Patch, check_new_name
from pyggml.series.worktree.applied import (
    APPLIED_FILE,
    applied_change,
    applied_here,
    applied_series,
    outdated,
)
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.position import made_of_files
from pyggml.series.worktree.sequencer import EDITING, REBASING, refuse_waiting
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.state_file import FileChange
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace

TEMPLATE = """{name}

Defect: what goes wrong, and how one sees it.

Cause: why, with the function it happens in.

Evidence: the command or test that fails without this change.
"""


def new_patch(
    project: Project, name: str, message: str | None = None, pin: str | None = None
) -> SeriesChange:
    """Make a patch of the work tree's edits, on top of the patches applied now.

    Without edits it only begins the patch: the next `patch continue` takes the edits made until then.

    Args:
        name: the patch's name in the series.
        message: its commit message; by default a template to fill in.

    Raises:
        PyggmlError: the name is taken, or there are commits that are in no patch file yet.
    """
    with changing(project, f"patch new {name}", pin, Needs.NOTHING_WAITING | Needs.OWN_PIN) as session:
        work, at = session.work, session.applied
        check_new_name(name, work.series)
        text = clean_message(message) if message else TEMPLATE.format(name=name.replace("-", " "))
        head, tree = work.head, work_tree_state(work.git)
        operation = begin(work, f"patch new {name}", "new", at + 1, tree, name, text)
        if tree == work.series.trees[at]:
            publish_waiting(work, operation, head, tree, tree)
            return series_change(work, waiting=f"Edit {work.git.work_tree}, then: {EDITING.resume}")
        return _finish_new(work, operation, tree)


def edit_patch(project: Project, wanted: str, pin: str | None = None) -> SeriesChange:
    """Bring the work tree to the patch `wanted`, for edits that `patch continue` folds into it.

    Raises:
        PyggmlError: no such patch, local edits, or commits that are in no patch file yet.
    """
    with changing(project, f"patch edit {wanted}", pin, Needs.SETTLED) as session:
        work = session.work
        number = work.series.find(wanted)
        stack = work.stack(number)
        name = work.series.patches[number - 1].name
        applied = max(session.applied, number)
        tree = work_tree_state(work.git)
        operation = begin(work, f"patch edit {name}", "edit", applied, tree, name)
        kept = applied_change(project, applied_series(work, stack, len(work.series.patches)))
        publish_waiting(work, operation, stack[-1].id, tree, stack[-1].tree, kept)
        where = f"Edit {work.git.work_tree}, then: {EDITING.resume}   (or: {EDITING.abort})"
        return series_change(work, waiting=where)


def continue_operation(project: Project, dropped: Sequence[str] = ()) -> SeriesChange:
    """Go on with what waits: take the edits or the resolution in, and put the later patches back on top.

    Args:
        dropped: as for `refresh`.

    Raises:
        PyggmlError: nothing waits, or conflict marks are left.
        StoppedError: a later patch conflicts.
    """
    with changing(project, "patch continue", lambda: _waiting_pin(project), keeps_series=True) as session:
        work, operation = session.work, EDITING.load(project, Operation)
        if operation is None and session.recovered and _ended_by(project, session.recovered):
            return series_change(work, recovered=session.finished)
        if operation is None:
            raise _nothing_waits(project, "`pyggml patch edit N` or `pyggml patch new NAME` begin something.")
        tree = work_tree_state(work.git)
        if operation.kind == "conflict" and dropped:
            raise PyggmlError(
                "a conflict waits: no commit was dropped",
                f"Resolve it, then: {EDITING.resume}; and remove patches with: pyggml patch drop NAME",
            )
        if operation.kind == "conflict":
            return _resolve(work, operation, tree)
        _refuse_outdated(work, operation)
        if operation.kind == "new":
            return _finish_new(work, operation, tree, dropped)
        branch = read_branch(work, tree, operation.applied, dropped)
        operation = replace(operation, applied=branch.applied)
        change = pick_and_publish(work, operation, branch.done, branch.picks, tree)
        return replace(change, notes=branch.notes + change.notes)


def abort_operation(project: Project) -> SeriesChange:
    """Go back to before the command that waits; what was edited since is kept in the undo record.

    A `patch continue` that was killed or could not write is taken back as well.

    Raises:
        PyggmlError: nothing waits.
    """
    with changing(project, "patch abort", lambda: _waiting_pin(project), keeps_series=True) as session:
        work, operation, recovered = session.work, EDITING.load(project, Operation), session.recovered
        files = EDITING.file_change(project, None)
        if operation is None and recovered is not None:
            operation = _ended_by(project, recovered)
            if recovered.doing.startswith("abort of "):
                return series_change(work, recovered=recovered.doing)
            ended = (EDITING.file, APPLIED_FILE)
            files = tuple(FileChange(f.path, f.new, f.old) for f in recovered.files if f.path not in ended)
        if operation is None:
            raise _nothing_waits(project, "See: pyggml patch status")
        doing = f"abort of {operation.doing}"
        head, tree = operation.start_head, operation.start_tree
        files += applied_change(project, operation.before)
        change = Transaction(doing, work.head, head, work_tree_state(work.git), tree, files)
        publish(project, work.git, change)
        return series_change(work, changed=files)


def _waiting_pin(project: Project) -> str | None:
    """The pin of the command that waits; the default pin if none does."""
    operation = EDITING.load(project, Operation)
    return operation.pin if operation else None


def _ended_by(project: Project, change: Transaction) -> Operation | None:
    """The operation that waited until `change`, which let nothing wait any more."""
    ended = [f.old for f in change.files if f.path == EDITING.file and f.new is None]
    return EDITING.decode(project, Operation, ended[0]) if ended else None


def _nothing_waits(project: Project, hint: str) -> PyggmlError:
    refuse_waiting(project, REBASING)
    return PyggmlError("nothing is under way", hint)


def refresh(project: Project, pin: str | None = None, dropped: Sequence[str] = ()) -> SeriesChange:
    """Write the commits and edits of the work tree back into the patch files.

    Edits are folded into the topmost applied patch; `fixup!` commits into the patch they name; other
    commits become new patches. Patches that are not applied are put on top again.

    Args:
        dropped: the patches whose commits were removed on purpose, as with `git rebase -i`; their files go away.

    Raises:
        PyggmlError: a commit matches nothing, no patch can take the edits, or the patches that are missing are
            others than those in `dropped`.
        StoppedError: a later patch conflicts.
    """
    with changing(project, "patch refresh", pin, Needs.NOTHING_WAITING) as session:
        work = session.work
        tree = work_tree_state(work.git)
        branch = read_branch(work, tree, dropped=dropped)
        operation = begin(work, "patch refresh", "edit", branch.applied, tree)
        change = pick_and_publish(work, operation, branch.done, branch.picks, tree)
        return replace(change, notes=branch.notes + change.notes)


def _refuse_outdated(work: Workspace, operation: Operation) -> None:
    if not outdated(work):
        return
    way = ["git stash", EDITING.abort, "pyggml patch apply", f"pyggml {operation.doing}", "git stash pop"]
    applied = applied_here(work)
    if applied is not None and not made_of_files(work):
        way[1:1] = ["git branch mine"]
        way[-1:] = [f"git cherry-pick {applied.commits[-1][:12]}..mine", *way[-1:]]
    raise PyggmlError(
        f"{work.git.work_tree}: the patch files have changed since `{operation.doing}` began",
        f"To keep both, there: {'; '.join(way)}. Then: {EDITING.resume}",
    )


def _finish_new(
    work: Workspace, operation: Operation, tree: str, dropped: Sequence[str] = ()
) -> SeriesChange:
    """Make the new patch of the edits, or of the user's last commit if there are none.

    Other commits that were made meanwhile become patches of their own, as in `refresh`.
    """
    branch = read_branch(work, work.head_tree, dropped=dropped)
    at = branch.applied
    done = branch.done[:at]
    later = series_picks(work.series, work.stack(), range(len(done) + 1, len(branch.done) + 1))
    applied, later = branch.picks[: at - len(done)], [*later, *branch.picks[at - len(done) :]]
    known = {patch.name for patch in work.series.patches}
    own = [n for n, pick in enumerate(applied) if pick.patch.name not in known]
    if tree != work.head_tree:
        delta = TreeDelta(work.head_tree, tree)
        named = next((n for n in own if applied[n].patch.name == operation.name), None)
        if named is None:
            applied.append(Pick(Patch(operation.name, tree), _user(work.git), operation.message, (delta,)))
        else:
            applied[-1] = replace(applied[-1], deltas=(*applied[-1].deltas, delta))
    elif own:
        if all(applied[n].patch.name != operation.name for n in own):
            pick = applied[own[-1]]
            applied[own[-1]] = replace(pick, patch=replace(pick.patch, name=operation.name))
    else:
        raise PyggmlError(
            "nothing is edited yet for the new patch",
            f"Edit {work.git.work_tree} (new files: git add them), then: {EDITING.resume}",
        )
    operation = replace(operation, applied=len(done) + len(applied))
    return pick_and_publish(work, operation, done, [*applied, *later], tree)


def _user(git: Git) -> Identity:
    named = {key: value for key, value in os.environ.items() if key.startswith("GIT_AUTHOR_")}
    try:
        data = run_outside("var", "GIT_AUTHOR_IDENT", user_config=True, cwd=git.work_tree, env=named)
        text = data.decode("utf-8", "replace")
    except GitError as error:
        raise PyggmlError(
            f"git does not know who you are: {error.stderr.splitlines()[-1] if error.stderr else 'no reason given'}",
            "Tell it: git config --global user.name …; git config --global user.email …  "
            "(or set GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL)",
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
            raise PyggmlError(f"{target} still has conflict marks", f"Resolve them, then: {EDITING.resume}")
    if operation.series not in ("", work.digest()):
        raise PyggmlError(
            f"{work.directory}: the patch files have changed since `{operation.doing}` stopped",
            f"Put them back as they were, or give up with `{EDITING.abort}` (`pyggml undo` has your resolution).",
        )
    done = [(patch, read_commit(work.git, commit)) for patch, commit in operation.done]
    below = top(work, done)[1]
    pick = operation.todo[0]
    if tree == below and not pick.optional:
        raise PyggmlError(
            f"the resolution leaves nothing of patch {pick.patch.name}",
            f"If it is not needed any more: {EDITING.abort}, then pyggml patch drop {pick.patch.name}",
        )
    resolved = replace(pick, deltas=(TreeDelta(below, tree), *pick.deltas))
    return pick_and_publish(work, operation, done, [resolved, *operation.todo[1:]], tree)
