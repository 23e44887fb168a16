"""Several workers at a time: each thread of the pool has one per build, and starts it again if it dies."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.matrix.cases import Run
from pyggml.matrix.run_outcome import RunOutcome, outcome_of
from pyggml.processes import Child

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyggml.matrix.worker import main; main(*sys.argv[2:])"
)
_LONGEST_SAID = 65536
_GRACE_SECONDS = 30.0
"""A worker enforces the time limit itself; one that has not answered this much later is killed."""
_DROPPED = ("PYGGML_ABORT_FD", "PYGGML_ABORT_PID", "GGML_BACKEND_PATH")


class WorkerProcess:
    """A process of worker.main that does the runs of one build, one after the other."""

    def __init__(self, build: Build, scratch: Path, number: int) -> None:
        """
        Raises:
            PyggmlError: the build cannot be loaded; the message says why.
        """
        self._log = scratch / f"worker-{number}.log"
        env = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        env = {name: value for name, value in env.items() if not name.startswith("PYGGML_VDEV_")}
        # A process that forks must have one thread, and must not load CUDA, which does not survive a fork: a run on
        # CUDA devices loads it itself. And ggml would start a debugger for its backtrace.
        env |= {"OPENBLAS_NUM_THREADS": "1", "PYGGML_CUDA": "0", "GGML_NO_BACKTRACE": "1"}
        with self._log.open("wb") as log:
            self._process = Child(
                [sys.executable, "-c", _START, json.dumps(sys.path), build.directory, scratch],
                stdin=subprocess.PIPE,
                stderr=log,
                env=env,
            )
        first = self._answer()
        if first is None or "ready" not in first:
            self.close()
            why, hint = (first["error"], first["hint"]) if first else (self._last_words(), None)
            raise PyggmlError(f"the build {build.record.variant} cannot be loaded: {why}", hint)

    def serve(self, run: Run, out: Path, said: Path, timeout: float) -> RunOutcome | None:
        """Do a run; None if the worker itself died."""
        from pyggml.matrix.model_run import to_job

        assert self._process.stdin is not None  # noqa: S101
        watch = threading.Timer(timeout + _GRACE_SECONDS, self._process.kill_group)
        watch.daemon = True
        watch.start()
        try:
            self._process.stdin.write(to_job(run, out, said, timeout))
            self._process.stdin.flush()
            answer = self._answer()
        except (OSError, ValueError):
            answer = None
        finally:
            watch.cancel()
        return None if answer is None else outcome_of(run, answer, _tail(said), out, timeout)

    def close(self) -> None:
        """End it and its current run, which another thread may be waiting for."""
        # Closing its output would wait for that thread. Without input it ends, and so does the wait.
        with contextlib.suppress(OSError, ValueError):
            _close(self._process.stdin)
        if not self._process.ends_within(2):
            self._process.kill_group()
        self._process.wait()
        self._process.forget()

    def _answer(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def _last_words(self) -> str:
        lines = _tail(self._log).strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"


class WorkerPool:
    """Does runs in processes of their own, on several threads.

    A context manager: at its end, nothing that it started is left.
    """

    def __init__(self, builds: Mapping[str, Build], jobs: int, timeout: float, scratch: Path) -> None:
        """
        Args:
            builds: by variant.
            jobs: runs at a time.
            timeout: seconds that a run may take.
            scratch: an empty directory for logits and outputs.
        """
        self._builds = builds
        self._timeout = timeout
        self._scratch = scratch
        self._here = threading.local()
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._number = 0
        self._ending = False
        self._executor = ThreadPoolExecutor(jobs, thread_name_prefix="matrix")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            workers = self._workers[:]
        for worker in workers:
            worker.close()
        self._executor.shutdown(wait=True)

    def submit(self, runs: Iterable[Run], done: Callable[[RunOutcome], None]) -> None:
        """Do all runs, calling `done` in this thread as each ends.

        Raises:
            PyggmlError: a build cannot be loaded at all.
        """
        from concurrent.futures import as_completed

        futures: list[Future[RunOutcome]] = [self._executor.submit(self._run, run) for run in runs]
        for future in as_completed(futures):
            with contextlib.suppress(CancelledError):
                done(future.result())

    def _run(self, run: Run) -> RunOutcome:
        with self._lock:
            self._number += 1
            number = self._number
        out, said = self._scratch / f"{number}.npy", self._scratch / f"{number}.txt"
        start = time.monotonic()
        outcome = self._worker(run.build).serve(run, out, said, self._timeout)
        if outcome is None and not self._ending:
            self._forget(run.build)
            why = "the process that starts the cases ended"
            return RunOutcome(run, "failed", time.monotonic() - start, reason=why)
        said.unlink(missing_ok=True)
        return outcome or RunOutcome(run, "failed", time.monotonic() - start, reason="stopped")

    def _worker(self, build: str) -> WorkerProcess:
        mine: dict[str, WorkerProcess] = self._here.__dict__.setdefault("workers", {})
        if build not in mine:
            with self._lock:
                self._number += 1
                number = self._number
            worker = WorkerProcess(self._builds[build], self._scratch, number)
            with self._lock:
                self._workers.append(worker)
            mine[build] = worker
            if self._ending:
                worker.close()
        return mine[build]

    def _forget(self, build: str) -> None:
        worker = self._here.workers.pop(build)
        worker.close()
        with self._lock:
            self._workers.remove(worker)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        stream.close()


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LONGEST_SAID))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
