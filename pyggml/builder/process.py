"""One long-running child process: its output line by line, its end together with ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError

STOP_PATIENCE_SECONDS = 10.0


class InterruptedBuildError(PyggmlError):
    """Stopped by the user (Ctrl-C) or by a termination signal; exit code 130 as of a shell."""

    exit_code = 130


def tool_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for CMake, Ninja and compilers: messages in English, no repository of a git hook's.

    CMake reads CFLAGS, CMAKE_GENERATOR and others from the environment at the first configuration only,
    so what counts of them is in the plan and nothing is left here.
    """
    dropped = (
        *("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CC", "CXX", "SOURCE_DATE_EPOCH", "NINJA_STATUS"),
        *("CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX"),
    )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "CMAKE_")) and name not in dropped
    }
    env.update(LC_ALL="C.UTF-8", LANGUAGE="C", **(extra or {}))
    return env


def run_lines(
    command: Sequence[str | Path],
    on_line: Callable[[str], None],
    env: Mapping[str, str],
    keep_open: Sequence[int] = (),
) -> int:
    """Run `command`, hand each line of its output to `on_line` and return the exit status.

    The child gets a process group of its own, which is stopped as a whole when this process is
    interrupted or terminated. If this process is killed outright, the child's next line of output
    meets a closed pipe and ends it.

    Args:
        keep_open: file descriptors for the child and its children (a lock held while any of them runs).

    Raises:
        InterruptedBuildError: SIGINT, SIGTERM or SIGHUP came; all children are gone.
        PyggmlError: the program cannot be started.
    """
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )
    except OSError as error:
        raise PyggmlError(f"cannot start {command[0]}: {error.strerror or error}") from error
    assert child.stdout is not None  # noqa: S101
    try:
        with _termination_as_interrupt():
            for raw in child.stdout:
                on_line(raw.decode("utf-8", "replace"))
            return child.wait()
    except BaseException as error:
        _stop(child)
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedBuildError("stopped", "The same command continues where it stopped.") from error
        raise
    finally:
        child.stdout.close()


def _stop(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(KeyboardInterrupt):
                if child.poll() is not None and not _group_lives(child.pid):
                    return
                time.sleep(0.02)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP behave like Ctrl-C meanwhile; only the main thread may arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
