"""A change of the series that waits for the user: an edit, or a conflict on the way through the later patches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.patchfile.mail import Identity
from pyggml.series.stack.picks import Delta, Pick
from pyggml.series.stack.series_file import Patch

OPERATION_FILE = ".pyggml/operation.json"


@dataclass(frozen=True)
class Operation:
    """What is under way.

    Attributes:
        doing: the command that began it, e.g. `patch edit v-head-size`.
        kind: `edit` (the work tree stands at the patch, waiting for edits), `new` (waiting for the edits
            that a new patch takes) or `conflict` (`todo[0]` waits to be resolved).
        applied: how many patches are applied once it is finished.
        start_head, start_tree: where the work tree stood before, for `patch abort`.
        name, message: of the new patch, for `new`.
        done: the finished patches, bottom up, with their commit ids.
        todo: the picks still to be made.
        conflicts: the paths with conflict markers.
    """

    doing: str
    kind: str
    pin: str
    applied: int
    start_head: str
    start_tree: str
    name: str = ""
    message: str = ""
    done: tuple[tuple[Patch, str], ...] = ()
    todo: tuple[Pick, ...] = ()
    conflicts: tuple[str, ...] = ()

    def words(self) -> str:
        """For messages."""
        if self.kind == "conflict":
            return f"`{self.doing}`, stopped at a conflict in patch {self.todo[0].patch.name},"
        return f"`{self.doing}`"

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


def operation_bytes(project: Project) -> bytes | None:
    """The file as it lies there; None if nothing is under way."""
    try:
        return _path(project).read_bytes()
    except FileNotFoundError:
        return None


def read_operation(project: Project) -> Operation | None:
    """What is under way, or None.

    Raises:
        PyggmlError: the file is damaged.
    """
    data = operation_bytes(project)
    if data is None:
        return None
    try:
        fields = json.loads(data)
        fields["done"] = tuple((_patch(patch), commit) for patch, commit in fields["done"])
        fields["todo"] = tuple(_pick(pick) for pick in fields["todo"])
        fields["conflicts"] = tuple(fields["conflicts"])
        return Operation(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise PyggmlError(
            f"{_path(project)} is damaged: {error}",
            "Take the last change back with `pyggml undo`, or remove that file.",
        ) from error


def _patch(fields: dict[str, Any]) -> Patch:
    return Patch(**{**fields, "proof": tuple(fields["proof"])})


def _pick(fields: dict[str, Any]) -> Pick:
    return Pick(
        _patch(fields["patch"]),
        Identity(**fields["author"]),
        fields["message"],
        tuple(Delta(**delta) for delta in fields["deltas"]),
    )


def _path(project: Project) -> Path:
    return project.root / OPERATION_FILE
