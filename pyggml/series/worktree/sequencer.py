"""Commands that stop and wait for the user: where each kind keeps its state, and which commands go on with it.

At most one of them waits at a time. A command that stops ends with exit code 3 (`StoppedError`), or with 0 if it
was asked to stop, as `patch edit` is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pyggml.errors import PyggmlError
from pyggml.files import remove_file, write_atomic
from pyggml.project import Project
from pyggml.series.worktree.state_file import FileChange, from_plain, read_file, to_json, to_plain


class SequencerState(Protocol):
    """What a command that waits needs to go on: a dataclass."""

    def what(self) -> str:
        """What is under way and where it stopped, as a clause."""
        ...


T = TypeVar("T")


@dataclass(frozen=True)
class Sequencer:
    """A kind of command that can wait.

    Attributes:
        file: the state, relative to the project's root. There is one while a command waits.
        resume, abort: the commands that go on and give up.
        skip: the command that leaves out the patch that waits, if there is one.
        repair: what to do about a damaged state.
    """

    file: str
    resume: str
    abort: str
    repair: str
    skip: str = ""

    @property
    def choices(self) -> str:
        """What the user can do, for messages."""
        return f"Go on with `{self.resume}`, or give up with `{self.abort}`."

    def load(self, project: Project, kind: type[T]) -> T | None:
        """The state of the command that waits; None if none does.

        Raises:
            PyggmlError: the file is damaged.
        """
        return self.decode(project, kind, read_file(project.root / self.file))

    def decode(self, project: Project, kind: type[T], content: bytes | None) -> T | None:
        """As `load`, of a state that was in the file once."""
        document = self._document(project, content)
        try:
            return None if document is None else from_plain(kind, document[1])
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(project, error) from error

    def what(self, project: Project) -> str | None:
        """What waits, as a clause; None if nothing does. Cheap: every command of the series asks."""
        document = self._document(project, read_file(project.root / self.file))
        return document[0] if document else None

    def file_change(self, project: Project, state: SequencerState | None) -> tuple[FileChange, ...]:
        """The change of the file, to be published with others, that leaves `state` waiting, or nothing."""
        old = read_file(project.root / self.file)
        new = self._encode(state) if state else None
        return () if old == new else (FileChange(self.file, old, new),)

    def store(self, project: Project, state: SequencerState) -> None:
        """Leave `state` waiting, at once."""
        project.make_state_dir()
        write_atomic(project.root / self.file, self._encode(state))

    def clear(self, project: Project) -> None:
        """Let nothing wait, at once."""
        remove_file(project.root / self.file)

    def _encode(self, state: SequencerState) -> bytes:
        return to_json({"what": state.what(), **to_plain(state)})

    def _document(self, project: Project, content: bytes | None) -> tuple[str, dict[str, Any]] | None:
        if content is None:
            return None
        try:
            document = dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise self._damaged(project, error) from error
        # Versions before this one did not write down what waits.
        return document.pop("what", "a command of an older pyggml is under way"), document

    def _damaged(self, project: Project, error: Exception) -> PyggmlError:
        return PyggmlError(f"{project.root / self.file} is damaged: {error}", self.repair)


EDITING = Sequencer(
    ".pyggml/operation.json",
    resume="pyggml patch continue",
    abort="pyggml patch abort",
    repair="Take the last change back with `pyggml undo`, or remove that file.",
)
REBASING = Sequencer(
    ".pyggml/rebase/state.json",
    resume="pyggml patch rebase --continue",
    abort="pyggml patch rebase --abort",
    repair="Remove that file and begin the rebase again; nothing else is lost.",
    skip="pyggml patch rebase --skip --reason TEXT",
)


@dataclass(frozen=True)
class Waiting:
    """A command that waits for the user."""

    sequencer: Sequencer
    what: str


def waiting(project: Project) -> Waiting | None:
    """The command that waits for the user, if one does.

    Raises:
        PyggmlError: its state is damaged.
    """
    for sequencer in (REBASING, EDITING):
        if what := sequencer.what(project):
            return Waiting(sequencer, what)
    return None


def refuse_waiting(project: Project, *kinds: Sequencer) -> None:
    """Raise while a command of one of `kinds` waits; without any, of every kind.

    Raises:
        PyggmlError: one waits; the message says what, and how to go on or give up.
    """
    command = waiting(project)
    if command is not None and (not kinds or command.sequencer in kinds):
        raise PyggmlError(command.what, command.sequencer.choices)
