"""Child processes, each in a process group of its own that ends together with this process.

    run(command, limit=60)            wait for it, its output kept
    run_lines(command, on_line, env)  its output line by line
    run_attached(command, env)        on our own terminal
    Child(command, ...)               anything else; a context manager

Ctrl-C and an exception end the whole group. A `kill -9` of this process ends the groups of Child and run as well:
a small shell waits for our end. run_lines leaves that to the child, which meets a closed pipe with its next line;
a compiler finishes the file that it is writing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from pyggml.errors import PyggmlError

STOP_PATIENCE_SECONDS = 10.0

Command = Sequence[str | os.PathLike[str]]

# Reads `+ GROUP` and `- GROUP` until we are gone, then ends the groups that are left.
_WATCHER = """
groups=' '
while read -r sign group; do
    case $groups in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac
    [ "$sign" = - ] || groups="$groups$group "
done
for name in INT TERM KILL; do
    for group in $groups; do kill -s $name -- "-$group" && sleep 1; done
done
"""
_watcher_lock = threading.Lock()
_watcher: int | None = None


class UserInterruptError(PyggmlError):
    """Stopped by the user (Ctrl-C) or by a termination signal; exit code 130 as of a shell."""

    exit_code = 130


@dataclass(frozen=True)
class Finished:
    """How a process ended.

    Attributes:
        status: exit status, the negative number of the signal that killed it, or None if it exceeded its time limit.
        output, errors: of standard output and standard error; everything is in `output` if they were merged.
    """

    status: int | None
    output: bytes
    errors: bytes = b""

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode("utf-8", "replace")


class Child(subprocess.Popen[bytes]):
    """A process in a group of its own. As a context manager: after an exception the group is killed."""

    def __init__(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.PIPE,
        stderr: int | IO[bytes] | None = subprocess.STDOUT,
        pass_fds: Sequence[int] = (),
        watched: bool = True,
    ) -> None:
        """
        Args:
            watched: it is ended after a `kill -9` of this process.

        Raises:
            PyggmlError: the program cannot be started.
        """
        self._watched = watched and _tell_watcher("")
        with _cannot_start(command):
            super().__init__(
                list(command),
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        try:
            if self._watched:
                _tell_watcher(f"+ {self.pid}\n")
        except BaseException:
            self.kill_group()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill_group()
            self.wait()
        super().__exit__(kind, value, traceback)
        self.forget()

    def forget(self) -> None:
        """Stop watching it: it has ended, and what it left in its group may go on."""
        if self._watched:
            self._watched = False
            _tell_watcher(f"- {self.pid}\n")

    def kill_group(self) -> None:
        """Kill it and everything in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop_group(self) -> None:
        """End the group with SIGINT, then with SIGTERM, then with SIGKILL, each after some patience."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            deadline = time.monotonic() + STOP_PATIENCE_SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(KeyboardInterrupt):
                    if self.poll() is not None and not _group_lives(self.pid):
                        return
                    time.sleep(0.02)

    def ends_within(self, limit: float | None) -> bool:
        """Wait at most `limit` seconds for its end; whether it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            try:
                self.wait(limit)
            except subprocess.TimeoutExpired:
                return False
            return True
        # Popen.wait(timeout) polls every 50 ms; this wakes up at once.
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(None if limit is None else limit * 1000))
        finally:
            os.close(descriptor)


def run(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    text: bytes = b"",
    limit: float | None = None,
    merged: bool = False,
) -> Finished:
    """Run `command`, wait for it and keep its output.

    Args:
        env: by default our own.
        text: its standard input.
        limit: seconds; then its group is killed.
        merged: standard error goes into the output.

    Raises:
        PyggmlError: it cannot be started.
    """
    stderr = subprocess.STDOUT if merged else subprocess.PIPE
    with Child(command, env=env, cwd=cwd, stdin=subprocess.PIPE, stderr=stderr) as child:
        status: int | None
        try:
            output, errors = child.communicate(text, timeout=limit)
            status = child.returncode
        except subprocess.TimeoutExpired:
            child.kill_group()
            output, errors = child.communicate()
            status = None
        return Finished(status, output, errors or b"")


def run_lines(
    command: Command,
    on_line: Callable[[str], None],
    env: Mapping[str, str],
    keep_open: Sequence[int] = (),
) -> int:
    """Run `command`, hand each line of its output to `on_line` and return the exit status.

    Its group is stopped when this process is interrupted or terminated.

    Args:
        keep_open: file descriptors for the child and its children (a lock held while any of them runs).

    Raises:
        UserInterruptError: SIGINT, SIGTERM or SIGHUP came; all children are gone.
        PyggmlError: the program cannot be started.
    """
    with Child(command, env=env, pass_fds=keep_open, watched=False) as child:
        assert child.stdout is not None  # noqa: S101
        try:
            with _termination_as_interrupt():
                for line in child.stdout:
                    on_line(line.decode("utf-8", "replace"))
                return child.wait()
        except KeyboardInterrupt as error:
            child.stop_group()
            raise UserInterruptError("stopped", "The same command continues where it stopped.") from error
        except BaseException:
            child.stop_group()
            raise


def run_attached(command: Command, env: Mapping[str, str]) -> int:
    """Run `command` on our own standard streams, in our own group, and wait for it.

    Returns:
        The exit status, or the negative number of the signal that ended it.

    Raises:
        PyggmlError: it cannot be started.
    """
    with _cannot_start(command):
        child = subprocess.Popen(list(command), env=dict(env))
    # Ctrl-C reaches the program as well, which decides what to do.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def signal_name(number: int) -> str:
    """`SIGABRT`, or `signal 50` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _cannot_start(command: Command) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PyggmlError(
            f"cannot start {os.fspath(command[0])}: {error.strerror or error}", "Check its name and path."
        ) from error


def _tell_watcher(line: str) -> bool:
    """Hand a line to the watcher, which is started before the first; whether there is one."""
    global _watcher
    with _watcher_lock:
        try:
            if _watcher is None:
                reading, _watcher = os.pipe()
                nothing = os.open(os.devnull, os.O_RDWR)
                # Not with subprocess, which would warn of a process that is still running when we end.
                os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-c", _WATCHER],
                    {"PATH": os.defpath},
                    file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)]
                    + [(os.POSIX_SPAWN_DUP2, nothing, number) for number in (1, 2)],
                    setsid=True,
                )
                os.close(nothing)
                os.close(reading)
            os.write(_watcher, line.encode())
        except OSError:
            # Without it, only a kill -9 of this process leaves children behind.
            return False
    return True


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
    """Let SIGTERM and SIGHUP act like Ctrl-C; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
