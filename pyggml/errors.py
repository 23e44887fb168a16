"""Errors that reach a user: what happened, where, and what to do next.

The command line prints `PyggmlError.message`, then `hint`, on stderr and exits with `exit_code`.
Anything else that escapes is a bug and shows its traceback only with `PYGGML_TRACEBACK=1`.
"""

from __future__ import annotations


class PyggmlError(Exception):
    """A failure that the user can act on; exit code 1."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(PyggmlError):
    """The request itself makes no sense; exit code 2."""

    exit_code = 2


class StoppedError(PyggmlError):
    """Stopped at a conflict and waiting for the user; exit code 3."""

    exit_code = 3
