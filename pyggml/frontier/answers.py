"""Answers that are kept: one file each, named by patch, tree and question, so that an interrupted search goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyggml.files import write_atomic
from pyggml.project import Project

_FORMAT = 1
"""Goes up when a question is answered in another way than before."""


def answers_dir(project: Project) -> Path:
    """Where the answers lie."""
    return project.state_dir / "frontier" / "answers"


class Answers:
    """The answers of a project; a file that is damaged, cut off or for another question counts as none."""

    def __init__(self, project: Project) -> None:
        self.directory = answers_dir(project)

    def get(self, question: str, *about: str) -> Mapping[str, Any] | None:
        """The kept answer to `question` about the hashes `about`."""
        try:
            document = json.loads(self._path(question, about).read_bytes())
            answer = document["answer"]
            if document["about"] == [question, *about] and document["sha256"] == _digest(answer):
                return dict(answer)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def put(self, answer: Mapping[str, Any], question: str, *about: str) -> None:
        """Keep an answer.

        Raises:
            PyggmlError: it cannot be written.
        """
        document = {"about": [question, *about], "answer": answer, "sha256": _digest(answer)}
        write_atomic(self._path(question, about), json.dumps(document).encode())

    def _path(self, question: str, about: tuple[str, ...]) -> Path:
        name = hashlib.sha256(repr((_FORMAT, question, about)).encode()).hexdigest()
        return self.directory / f"{name}.json"


def _digest(answer: object) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()
