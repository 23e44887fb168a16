"""A command in a process group of its own, with its output kept; it ends together with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError

TAIL = 20_000
"""Characters of the output that are kept."""


@dataclass(frozen=True)
class Ended:
    """How it ended; `status` is negative for a signal and None if it took too long."""

    status: int | None
    output: str


def run_child(command: Sequence[str], env: Mapping[str, str], cwd: Path, limit: float | None = None) -> Ended:
    """Run `command` and wait for it.

    Args:
        env: added to our environment; git's own variables are left out of it.
        limit: seconds.

    Raises:
        PyggmlError: it cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        child = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**inherited, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise PyggmlError(
            f"cannot start {command[0]}: {error.strerror or error}", "Check its name and path."
        ) from error
    try:
        out, _ = child.communicate(timeout=limit)
        return Ended(child.returncode, out.decode("utf-8", "replace")[-TAIL:])
    except subprocess.TimeoutExpired:
        _kill(child)
        out, _ = child.communicate()
        return Ended(None, out.decode("utf-8", "replace")[-TAIL:])
    except BaseException:
        _kill(child)
        child.wait()
        raise


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
