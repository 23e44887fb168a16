"""Errors for users: what happened, where, and what to do next.

The command line prints `PyggmlError.message`, then `hint`, on stderr and exits with `exit_code`. Any other
exception is a bug; its traceback is only shown with `PYGGML_TRACEBACK=1`.
"""

from __future__ import annotations


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
