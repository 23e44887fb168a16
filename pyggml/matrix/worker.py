"""A process that has loaded a build and forks a process for every run.

Starting Python and loading a build takes ten times as long as running a tiny model; a fork has both already.
It reads jobs (model_run.to_job) from standard input, one a line, and answers each with a line on standard
output: `{"status": exit status or minus the signal, "hung": bool, "seconds": ..., "messages": [...]}`. `messages` is
what the run's process said: `{"phase": ...}`, at the end `{"done": {...}}`, `{"refused": message}` or
`{"error": traceback}`. The first line of all is `{"ready": true}`, or `{"error": message, "hint": ...}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyggml.matrix.cases import Run
    from pyggml.native.load import Bindings

_LONGEST_TOLD = 1 << 20


def main(directory: str, scratch: str) -> None:
    """Serve until standard input ends.

    Args:
        directory: of the build.
        scratch: where logits are written; removed at the end, because the sender of the jobs may have been killed.
    """
    import resource
    import shutil

    # A run that dies must not leave a core file, and Ctrl-C is for the process that started this one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        bindings = _load(Path(directory))
    except Exception as error:
        _answer(
            {
                "error": getattr(error, "message", None) or f"{type(error).__name__}: {error}",
                "hint": getattr(error, "hint", None),
            }
        )
        return
    _answer({"ready": True})
    while line := sys.stdin.buffer.readline():
        with contextlib.suppress(BrokenPipeError):
            _answer(_serve(bindings, line))
    shutil.rmtree(scratch, ignore_errors=True)


def _load(directory: Path) -> Bindings:
    # This imports numpy and everything else that a run needs, once.
    import pyggml.matrix.model_run  # noqa: F401
    from pyggml.llama.library import library
    from pyggml.native.load import build_in, load

    load(build_in(directory))
    return library()


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(document).encode() + b"\n")
    sys.stdout.buffer.flush()


def _serve(bindings: Bindings, line: bytes) -> dict[str, Any]:
    from pyggml.matrix.model_run import from_job

    run, out, said, timeout = from_job(line)
    reading, writing = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _case(bindings, run, out, said, writing)
    os.close(writing)
    try:
        text, hung = _listen(reading, start + timeout)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    messages = [json.loads(each) for each in text.splitlines(keepends=True) if each.endswith(b"\n")]
    return {"status": status, "hung": hung, "seconds": time.monotonic() - start, "messages": messages}


def _listen(reading: int, end: float) -> tuple[bytes, bool]:
    """What the run says until its process ends, and whether it had to be stopped.

    Its end of the pipe closes when it dies, in whatever way.
    """
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    # No job comes while one is being served, so this can only mean that the sender has ended.
    poll.register(0, 0)
    text = b""
    while True:
        left = end - time.monotonic()
        ready = dict(poll.poll(max(0.0, left) * 1000))
        if not ready:
            return text, True
        if 0 in ready and reading not in ready:
            return text, True
        data = os.read(reading, 65536)
        if not data:
            return text, False
        text = (text + data)[-_LONGEST_TOLD:]


def _case(bindings: Bindings, run: Run, out: Path, said: Path, writing: int) -> None:
    """The process of the run; does not return."""
    status = 1
    try:
        # Nothing but answers may reach standard output.
        log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

        def tell(**content: Any) -> None:
            os.write(writing, json.dumps(content).encode() + b"\n")

        status = _run_case(bindings, run, out, tell)
    finally:
        # The child must not flush or clean up anything of the parent's.
        os._exit(status)


def _run_case(bindings: Bindings, run: Run, out: Path, tell: Any) -> int:
    from pyggml.errors import PyggmlError
    from pyggml.matrix.model_run import compute_logits

    try:
        about = compute_logits(bindings, run, out, lambda text: tell(phase=text))
    except PyggmlError as error:
        tell(refused=error.message)
        return 3
    except BaseException:
        tell(error=traceback.format_exc())
        return 1
    tell(done=about)
    return 0
