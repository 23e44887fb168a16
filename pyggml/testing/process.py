"""An isolated test in a process of its own: start it, wait for it, collect what it left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pyggml.processes import Child

ABORT_FD = "PYGGML_ABORT_FD"
"""See pyggml.native.load: where the text of a failed assertion goes."""

REACH_SECONDS = 60.0
"""Time for collecting the test, if the test has a limit at all."""

GRACE_SECONDS = 10.0
"""The process ends itself when its time is over; if it does not, it is killed this much later."""

LONGEST_OUTPUT = 1 << 20
"""Bytes that are kept of an output: its end."""


@dataclass(frozen=True)
class IsolatedJob:
    """What the process has to do.

    Attributes:
        arguments: of the pytest run that it repeats for one test.
        directory: where that run was started.
        target: the collection argument that leads to the test.
        parent, name: of the test's node; together they identify it.
        timeout: seconds from the start of the test's setup; None for no limit.
        basetemp: the directory for its temporary directories.
        worker: pytest-xdist's description of the worker, serialised by execnet, in hex.
        inherit: its output goes to this process's output (`-s`).
    """

    arguments: Sequence[str]
    directory: Path
    target: str
    parent: str
    name: str
    timeout: float | None
    basetemp: str | None
    worker: str | None
    inherit: bool


@dataclass(frozen=True)
class EndedProcess:
    """A process that has ended, and what it left.

    Attributes:
        status: exit status, or the negative number of the signal that killed it.
        overdue: it had to be killed.
        began, seconds: when it was started (since the epoch) and how long it ran.
        messages: see child.IsolatedRun.
        abort: what pyggml.native wrote when an assertion failed.
        fault: what faulthandler wrote.
        outputs: `stdout`, `stderr` (unless inherited) and `log`, of the last phase of the test.
    """

    status: int
    overdue: bool
    began: float
    seconds: float
    messages: tuple[dict[str, Any], ...]
    abort: str
    fault: str
    outputs: dict[str, str]


def run(job: IsolatedJob) -> EndedProcess:
    """Run the job; nothing that it starts outlives it.

    Raises:
        PyggmlError: the process cannot be started.
    """
    with contextlib.ExitStack() as stack:
        # Files without names: whatever kills this process, none is left behind.
        def file() -> IO[bytes]:
            return stack.enter_context(tempfile.TemporaryFile(buffering=0))

        told, abort, fault = file(), file(), file()
        outputs = {name: file() for name in ("log",) + (() if job.inherit else ("stdout", "stderr"))}
        document = {
            "arguments": job.arguments,
            "target": job.target,
            "parent": job.parent,
            "name": job.name,
            "timeout": job.timeout,
            "reach": None if job.timeout is None else REACH_SECONDS,
            "basetemp": job.basetemp,
            "worker": job.worker,
            "path": sys.path,
            "told": told.fileno(),
            "fault": fault.fileno(),
            "outputs": {name: output.fileno() for name, output in outputs.items()},
        }
        order = file()
        order.write(json.dumps(document).encode())
        order.seek(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.flush()
        began, clock = time.time(), time.perf_counter()
        command = [
            sys.executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-u",
            str(Path(__file__).with_name("start.py")),
            str(order.fileno()),
        ]
        limit = None if job.timeout is None else REACH_SECONDS + job.timeout + GRACE_SECONDS
        with Child(
            command,
            cwd=job.directory,
            # ggml would start a debugger for its own backtrace.
            env={"GGML_NO_BACKTRACE": "1", **os.environ, ABORT_FD: str(abort.fileno())},
            stdout=outputs.get("stdout"),
            stderr=outputs.get("stderr"),
            pass_fds=[each.fileno() for each in (order, told, abort, fault, *outputs.values())],
        ) as process:
            overdue = not process.ends_within(limit)
            process.kill_group()
            status = process.wait()
        seconds = time.perf_counter() - clock
        messages = _messages(told)
        phases = [message for message in messages if message["kind"] == "phase"]
        since = phases[-1]["written"] if phases else {}
        return EndedProcess(
            status,
            overdue,
            began,
            seconds,
            tuple(messages),
            read_text(abort.fileno()),
            read_text(fault.fileno()),
            {name: read_text(output.fileno(), since.get(name, 0)) for name, output in outputs.items()},
        )


def _messages(file: IO[bytes]) -> list[dict[str, Any]]:
    file.seek(0)
    # The last line may have been cut off by the end of the process.
    return [json.loads(line) for line in io.BytesIO(file.read()) if line.endswith(b"\n")]


def read_text(descriptor: int, since: int = 0) -> str:
    """What was written to a file after its first `since` bytes, at most the last LONGEST_OUTPUT of it."""
    size = os.fstat(descriptor).st_size
    since = max(since, size - LONGEST_OUTPUT)
    return os.pread(descriptor, max(0, size - since), since).decode("utf-8", "replace")
