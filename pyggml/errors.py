"""Errors for users: what happened, where, and what to do next.

The command line prints `PyggmlError.message`, then `hint`, on stderr and exits with `exit_code`. Any other
exception is a bug; its traceback is only shown with `PYGGML_TRACEBACK=1`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PyggmlError(Exception):
    """A failure that the user can do something about; exit code 1."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(PyggmlError):
    """The request itself is invalid; exit code 2."""

    exit_code = 2


class StoppedError(PyggmlError):
    """Stopped at a conflict that the user has to resolve; exit code 3."""

    exit_code = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint about a `name` that is not known; empty if nothing known is like it.

    >>> did_you_mean("nan-wihtout-work", ["nan-without-work", "log-at-exit"])
    "Did you mean 'nan-without-work'? "
    >>> did_you_mean("x", ["nan-without-work"])
    ''
    """
    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
