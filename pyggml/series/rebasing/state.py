"""A rebase that waits for a person, as `.pyggml/rebase/state.json`: the plan, the decisions so far, the stop."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.project import Project

if TYPE_CHECKING:
    from pyggml.series.rebasing.decisions import Decision
    from pyggml.series.rebasing.plan import Todo

STATE_FILE = ".pyggml/rebase/state.json"


@dataclass(frozen=True)
class Waiting:
    """The stop, as far as going on needs it.

    Attributes:
        kind: as `rebase.Stop.kind`, or `publish` (the new pin has a series that differs).
        head: the commit that the private worktree stands on.
        mechanical, start: the merge's tree, and the tree that was put into the worktree.
        paths: those that conflict.
        unconfirmed: hunks whose function changed.
    """

    kind: str
    name: str = ""
    number: int = 0
    head: str = ""
    mechanical: str = ""
    start: str = ""
    paths: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RebaseState:
    """A rebase under way.

    Attributes:
        digest: of the old series' files, which must not change meanwhile.
        compiled: trees that were built without an error.
        waiting: None only while it computes.
    """

    source: str
    onto: str
    digest: str
    todo: tuple[Todo, ...]
    decisions: Mapping[str, Decision]
    edited: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    compiling: bool = False
    waiting: Waiting | None = None

    def words(self) -> str:
        """For messages."""
        told = f"a rebase of pin {self.source} onto {self.onto} is under way"
        if self.waiting is None or self.waiting.kind == "publish":
            return told
        at = f"patch {self.waiting.name} ({self.waiting.number} of {len(self.todo)})"
        return f"{told}, stopped at {at}: {KINDS[self.waiting.kind]}"


KINDS = {
    "conflict": "it conflicts",
    "misfit": "its recorded resolution does not fit any more",
    "confirm": "a hunk stands in another function now",
    "edit": "to be edited",
    "build": "it does not build",
    "publish": "the new pin has another series already",
}


def rebase_dir(project: Project) -> Path:
    return project.root / ".pyggml" / "rebase"


def rebase_words(project: Project) -> str | None:
    """What is under way, in words; None if nothing is. Cheap: every command of the series asks."""
    if not (project.root / STATE_FILE).is_file():
        return None
    state = read_state(project)
    return state.words() if state else None


def refuse_rebase(project: Project) -> None:
    """Raise while a rebase waits.

    Raises:
        PyggmlError: it does.
    """
    words = rebase_words(project)
    if words is not None:
        raise PyggmlError(
            words,
            "Go on with `pyggml patch rebase --continue`, or drop it with `pyggml patch rebase --abort`.",
        )


def read_state(project: Project) -> RebaseState | None:
    """What is under way, or None.

    Raises:
        PyggmlError: the file is damaged.
    """
    from pyggml.series.rebasing.decisions import Decision, Resolution
    from pyggml.series.rebasing.plan import Todo

    path = project.root / STATE_FILE
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, error) from error

    def decision(values: dict[str, Any]) -> Decision:
        found = values["resolution"]
        if found is not None:
            found = Resolution(**{**found, "diff": base64.b64decode(found["diff"])})
        entry = {k: tuple(v) if isinstance(v, list) else v for k, v in values["entry"].items()}
        return Decision(
            **{**values, "resolution": found, "confirmed": tuple(values["confirmed"]), "entry": entry}
        )

    try:
        waiting = fields["waiting"]
        if waiting is not None:
            lists = {key: tuple(waiting[key]) for key in ("paths", "unconfirmed")}
            fields["waiting"] = Waiting(**{**waiting, **lists})
        fields["todo"] = tuple(Todo(**todo) for todo in fields["todo"])
        fields["decisions"] = {name: decision(values) for name, values in fields["decisions"].items()}
        fields["edited"], fields["compiled"] = tuple(fields["edited"]), tuple(fields["compiled"])
        return RebaseState(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> PyggmlError:
    return PyggmlError(
        f"{path} is damaged: {error}", "Remove that file and begin the rebase again; nothing else is touched."
    )


def state_bytes(state: RebaseState) -> bytes:
    plain = asdict(replace(state, decisions={}))
    plain["decisions"] = {}
    for name, decision in state.decisions.items():
        values = asdict(decision)
        if decision.resolution is not None:
            values["resolution"]["diff"] = base64.b64encode(decision.resolution.diff).decode("ascii")
        plain["decisions"][name] = values
    return json.dumps(plain, indent=1).encode()


def write_state(project: Project, state: RebaseState) -> None:
    project.make_state_dir()
    write_atomic(project.root / STATE_FILE, state_bytes(state))


def clear_state(project: Project) -> None:
    """Forget the rebase; the state first, so that a kill in between leaves only a directory nobody needs."""
    remove_file(project.root / STATE_FILE)
    shutil.rmtree(rebase_dir(project), ignore_errors=True)
