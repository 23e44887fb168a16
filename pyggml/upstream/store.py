"""The vendored repository: one parentless commit per pin, with the tag `refs/tags/pin/<name>`.

`vendor/<upstream>` appears in one rename, complete and checked out, or not at all. A later pin is imported
into a temporary repository beside it, and only its pack and its tag are moved over. So a process killed at any
point leaves what was there before, plus a directory that the next fetch removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import write_atomic
from pyggml.git.runner import Git, GitError, require_git, run_outside
from pyggml.project import Project
from pyggml.upstream.pins import Pin, Pins
from pyggml.upstream.progress import Progress, silent

SERIES = "refs/heads/series"
_MARKER_KEY = "pyggml.upstream"
_ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !merge !diff\n"


@dataclass(frozen=True)
class FetchResult:
    """What a fetch did.

    Attributes:
        pin: the pin's name.
        commit: the imported commit, the base of the series on this pin.
        tree: its tree.
        changed: False if everything was there already.
        created: True if the work tree `vendor/<upstream>` was created.
    """

    pin: str
    commit: str
    tree: str
    changed: bool
    created: bool


@dataclass(frozen=True)
class PinState:
    """The state of a pin.

    Attributes:
        state: `fetched`, `not fetched`, `differs` (its tag has another tree than recorded) or `damaged`.
        commit: the imported commit, if there is one.
    """

    pin: Pin
    state: str
    commit: str | None


def repository(project: Project, pins: Pins) -> Git:
    """The vendored repository and its work tree; it may not exist."""
    work_tree = project.vendor_dir / pins.upstream
    return Git(work_tree / ".git", work_tree)


def base_commit(project: Project, pins: Pins, pin: Pin) -> str:
    """The id of the imported commit of `pin`; its tree is compared with the recorded one.

    Raises:
        PyggmlError: it is not fetched, or has another tree.
    """
    try:
        imported = _imported(project, pins, pin)
    except GitError as error:
        raise _damaged(project, pins, pin, error.stderr.splitlines()[:1]) from error
    if imported is None:
        raise PyggmlError(f"pin {pin.name} is not fetched", f"Fetch it with: pyggml vendor fetch {pin.name}")
    commit, tree = imported
    if tree != pin.tree:
        raise PyggmlError(
            f"pin {pin.name} is imported with tree {tree[:12]}, but vendor/pins.toml has {pin.tree[:12]}",
            f"Import it again with: pyggml vendor fetch {pin.name}",
        )
    return commit


def pin_states(project: Project, pins: Pins) -> tuple[PinState, ...]:
    """The state of every pin, oldest first; never raises because something is missing."""
    states = []
    for pin in pins.pins:
        try:
            imported = _imported(project, pins, pin)
        except GitError:
            states.append(PinState(pin, "damaged", None))
            continue
        if imported is None:
            states.append(PinState(pin, "not fetched", None))
        else:
            commit, tree = imported
            states.append(PinState(pin, "fetched" if tree == pin.tree else "differs", commit))
    return tuple(states)


@dataclass(frozen=True)
class StoreStatus:
    """The vendored repository as a whole.

    Attributes:
        work_tree: where it is, or will be.
        repository: `present`, `absent` (not fetched yet) or `foreign` (something else is in its place).
    """

    work_tree: Path
    repository: str


def store_status(project: Project, pins: Pins) -> StoreStatus:
    """Whether pyggml's repository is at `vendor/<upstream>`."""
    work_tree = project.vendor_dir / pins.upstream
    if is_ours(project, pins):
        return StoreStatus(work_tree, "present")
    return StoreStatus(work_tree, "absent" if _is_free(work_tree) else "foreign")


def is_ours(project: Project, pins: Pins) -> bool:
    """Whether `vendor/<upstream>` is a repository created by a fetch."""
    git = repository(project, pins)
    if not git.git_dir.is_dir() or git.git_dir.is_symlink():
        return False
    status, out = git.status("config", "--local", "--get", _MARKER_KEY, ok=(0, 1, 128))
    return status == 0 and out.decode("utf-8", "replace").strip() == pins.upstream


def fetch(project: Project, pins: Pins, pin: Pin, report: Progress = silent) -> FetchResult:
    """Make sure that `pin` is imported; the first fetch also creates and checks out the work tree.

    The caller holds the project's lock. Whatever is there already is kept; a tag with another tree than the
    recorded one is replaced.

    Raises:
        PyggmlError: the source cannot be obtained, is refused or differs from what is recorded, or
            something else is at `vendor/<upstream>`; nothing is changed then.
    """
    return import_pin(project, pins, pin, report, check=True)


def import_pin(project: Project, pins: Pins, pin: Pin, report: Progress, *, check: bool) -> FetchResult:
    """Like `fetch`; without `check` the pin's `tree` is not known yet, and the result has it."""
    from pyggml.upstream.import_source import import_source

    _remove_leftovers(project, pins)
    existing = repository(project, pins)
    have_repository = is_ours(project, pins)
    if not have_repository:
        _refuse_foreign(project, pins)
    elif check:
        with contextlib.suppress(PyggmlError):
            return FetchResult(pin.name, verify(project, pins, pin), pin.tree, changed=False, created=False)
    with _temporary_directory(project, pins) as temporary:
        git = _new_repository(temporary, pins, sharing=existing if have_repository else None)
        import_source(project, pins, pin, git, report)
        commit, tree = commit_and_tree(git, pin.ref) or ("", "")
        if check and tree != pin.tree:
            raise PyggmlError(
                f"pin {pin.name}: the source has tree {tree}, but vendor/pins.toml records {pin.tree}",
                "Nothing was imported. If you changed `exclude` or the source, update `tree` in that file.",
            )
        if have_repository:
            _move_objects(git, existing)
            existing.run("update-ref", pin.ref, commit)
            verify(project, pins, replace(pin, tree=tree))
        else:
            _check_out(git, commit, report)
            _rename(temporary, project.vendor_dir / pins.upstream)
    return FetchResult(pin.name, commit, tree, changed=True, created=not have_repository)


def verify(project: Project, pins: Pins, pin: Pin) -> str:
    """Check that `pin`'s tag has the recorded tree and that no object is missing; return the commit id.

    The work tree is not checked.

    Raises:
        PyggmlError: it is not fetched, has another tree, or objects are missing.
    """
    commit = base_commit(project, pins, pin)
    git = repository(project, pins)
    status, out = git.status(
        "fsck", "--connectivity-only", "--no-dangling", "--no-reflogs", "--no-progress", commit, ok=range(256)
    )
    if status != 0:
        raise _damaged(project, pins, pin, out.decode("utf-8", "replace").splitlines()[:2])
    return commit


def _damaged(project: Project, pins: Pins, pin: Pin, details: list[str]) -> PyggmlError:
    suffix = f": {'; '.join(details)}" if details else ""
    return PyggmlError(
        f"pin {pin.name}: objects are missing in {repository(project, pins).git_dir}{suffix}",
        f"Restore them with: pyggml vendor fetch {pin.name}",
    )


def _imported(project: Project, pins: Pins, pin: Pin) -> tuple[str, str] | None:
    """The imported commit and its tree."""
    git = repository(project, pins)
    return commit_and_tree(git, pin.ref) if git.git_dir.is_dir() else None


def commit_and_tree(git: Git, ref: str) -> tuple[str, str] | None:
    """The commit that `ref` points at and its tree; None if there is no such reference."""
    # for-each-ref also lists refs below `ref`, hence the name in its output.
    out = git.text("for-each-ref", "--format=%(refname) %(objectname) %(tree)", ref)
    for line in out.splitlines():
        words = line.split(" ")
        if len(words) == 3 and words[0] == ref and words[2]:
            return words[1], words[2]
    return None


def _refuse_foreign(project: Project, pins: Pins) -> None:
    work_tree = project.vendor_dir / pins.upstream
    if _is_free(work_tree):
        return
    raise PyggmlError(
        f"{work_tree} is in the way: pyggml did not create it",
        "Move it away, or change `upstream` in vendor/pins.toml, and run the command again.",
    )


def _is_free(path: Path) -> bool:
    if path.is_symlink():
        return False
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _prefix(pins: Pins) -> str:
    return f".{pins.upstream}.fetch-"


def _remove_leftovers(project: Project, pins: Pins) -> None:
    if project.vendor_dir.is_dir():
        for leftover in project.vendor_dir.iterdir():
            if leftover.name.startswith(_prefix(pins)):
                # A git that outlived its killed parent may still be writing there; then a later fetch removes it.
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _temporary_directory(project: Project, pins: Pins) -> Iterator[Path]:
    """A directory beside the work tree, so that a rename can put it in place."""
    try:
        project.vendor_dir.mkdir(exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=_prefix(pins), dir=project.vendor_dir))
    except OSError as error:
        raise PyggmlError(f"cannot write to {project.vendor_dir}: {error.strerror or error}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _new_repository(directory: Path, pins: Pins, sharing: Git | None) -> Git:
    require_git()
    directory.chmod(0o777 & ~_umask())
    run_outside(
        "init", "--quiet", "--template=", "--initial-branch=series", "--object-format=sha1", str(directory)
    )
    git = Git(directory / ".git", directory)
    for key, value in (("gc.auto", "0"), ("maintenance.auto", "false"), (_MARKER_KEY, pins.upstream)):
        git.run("config", "--local", key, value)
    write_atomic(git.git_dir / "info" / "attributes", _ATTRIBUTES)
    if sharing is not None:
        from pyggml.upstream.fast_import import quoted

        objects = bytes((sharing.git_dir / "objects").absolute())
        write_atomic(git.git_dir / "objects" / "info" / "alternates", quoted(objects) + b"\n")
    return git


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _move_objects(source: Git, target: Git) -> None:
    source_packs = source.git_dir / "objects" / "pack"
    target_packs = target.git_dir / "objects" / "pack"
    try:
        target_packs.mkdir(parents=True, exist_ok=True)
        # The index comes last: git finds a pack by its index.
        for suffix in (".rev", ".pack", ".idx"):
            for file in source_packs.glob(f"pack-*{suffix}"):
                file.replace(target_packs / file.name)
    except OSError as error:
        raise PyggmlError(f"cannot write to {target_packs}: {error.strerror or error}") from error


def _check_out(git: Git, commit: str, report: Progress) -> None:
    report("checking out", 0, None)
    git.run("update-ref", SERIES, commit)
    git.run("symbolic-ref", "HEAD", SERIES)
    git.run("read-tree", "-m", "-u", "HEAD")
    git.run("update-index", "-q", "--refresh")
    differences = git.run("status", "--porcelain", "-z", "--untracked-files=all")
    if differences:
        from pyggml.upstream.snapshot import printable

        raise PyggmlError(
            f"this file system cannot store {printable(differences.split(bytes(1))[0][3:])} as recorded",
            "Nothing was changed. Use a file system that is case-sensitive and keeps file modes.",
        )


def _rename(temporary: Path, work_tree: Path) -> None:
    try:
        temporary.rename(work_tree)
    except OSError as error:
        raise PyggmlError(f"cannot create {work_tree}: {error.strerror or error}") from error
