"""Child processes: their output, their end, and ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.processes import Child, Finished, UserInterruptError, run, run_attached, run_lines, signal_name

ROOT = Path(__file__).parent.parent
FAMILY = "sh -c 'echo $$ >> pids; exec sleep 60' & echo $$ >> pids; {before} wait"
"""A shell and what it started, both with their numbers in a file."""


def alive(pids: list[int]) -> list[int]:
    """Those that are more than a zombie that nobody has waited for yet."""

    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid in pids if lives(pid)]


def family(directory: Path) -> list[int]:
    """The numbers of both, once they are there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = [int(line) for line in _text(directory / "pids").splitlines()]
        if len(pids) == 2:
            return pids
        time.sleep(0.01)
    raise AssertionError("the processes did not start")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pids)


def test_run_keeps_both_outputs_or_one() -> None:
    command = ["sh", "-c", "cat; echo error >&2; exit 3"]
    assert run(command, text=b"in\n") == Finished(3, b"in\n", b"error\n")
    assert run(command, text=b"in\n", merged=True) == Finished(3, b"in\nerror\n")
    assert run(["sh", "-c", "kill -9 $$"]).status == -9
    assert run(["sh", "-c", "printf '\\377'"]).text == "\ufffd"


def test_run_takes_environment_and_directory(tmp_path: Path) -> None:
    done = run(["/bin/sh", "-c", "pwd; echo $A"], env={"A": "b"}, cwd=tmp_path)
    assert done.text.split() == [str(tmp_path), "b"]


def test_a_limit_ends_the_group(tmp_path: Path) -> None:
    started = time.monotonic()
    done = run(["sh", "-c", FAMILY.format(before="echo said;")], cwd=tmp_path, limit=0.5)
    assert (done.status, done.output) == (None, b"said\n")
    assert time.monotonic() - started < 20
    assert gone(family(tmp_path))


def test_an_exception_ends_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(line: str) -> None:
        family(tmp_path)
        raise ValueError(line)

    monkeypatch.setattr("pyggml.processes.STOP_PATIENCE_SECONDS", 0.5)
    with pytest.raises(ValueError, match="said"):
        run_lines(["sh", "-c", f"cd '{tmp_path}'; " + FAMILY.format(before="echo said;")], fail, os.environ)
    assert gone(family(tmp_path))


def test_lines_come_as_they_are_written() -> None:
    lines: list[str] = []
    assert run_lines(["sh", "-c", "echo a; echo b >&2; printf c; exit 2"], lines.append, os.environ) == 2
    assert lines == ["a\n", "b\n", "c"]


def test_ends_within() -> None:
    with Child(["sleep", "60"]) as child:
        assert not child.ends_within(0.05)
        child.kill_group()
        assert child.ends_within(20)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("start", [run, lambda command: run_lines(command, print, os.environ), run_attached])
def test_what_cannot_be_started_is_said(start: object, tmp_path: Path) -> None:
    arguments = (os.environ,) if start is run_attached else ()
    with pytest.raises(PyggmlError, match=r"cannot start .*nothing here: No such file"):
        start([tmp_path / "nothing here"], *arguments)  # type: ignore[operator]


CALLS = {
    "run": "run(['sh', '-c', SCRIPT])",
    "run_lines": "run_lines(['sh', '-c', SCRIPT], lambda line: Path('ready').touch(), os.environ)",
}
PARENT = """
import os, sys
from pathlib import Path
from pyggml import processes
from pyggml.processes import UserInterruptError, run, run_lines

class Told(processes.Child):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if options.get("watched", True):
            Path("ready").touch()

processes.Child = Told
# What a shell starts in the background does not listen to SIGINT.
processes.STOP_PATIENCE_SECONDS = 0.5
try:
    {call}
except UserInterruptError as error:
    print(error)
    sys.exit(130)
except KeyboardInterrupt:
    sys.exit(131)
"""


def parent(call: str, directory: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that waits for the family; it can be interrupted now."""
    program = PARENT.format(call=CALLS[call]).replace("SCRIPT", repr(FAMILY.format(before="echo said;")))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=directory, env=env, stdout=subprocess.PIPE, text=True
    )
    pids = family(directory)
    deadline = time.monotonic() + 20
    while not (directory / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return process, pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_group_of_run_lines(number: signal.Signals, tmp_path: Path) -> None:
    process, pids = parent("run_lines", tmp_path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == UserInterruptError.exit_code, said
    assert "continues where it stopped" in said
    assert alive(pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_ends_the_group_whatever_ends_us(number: signal.Signals, tmp_path: Path) -> None:
    process, pids = parent("run", tmp_path)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (131 if number == signal.SIGINT else -number)
    assert gone(pids)


def test_what_has_ended_is_not_watched_any_more(tmp_path: Path) -> None:
    """Its group's number may be another's by then."""
    script = "sleep 60 > /dev/null 2>&1 & echo $! >> pids"
    program = f"from pyggml.processes import run\nrun(['sh', '-c', {script!r}])\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True)
    time.sleep(1)
    left = int(_text(tmp_path / "pids"))
    assert alive([left]) == [left]
    os.kill(left, signal.SIGKILL)


def test_signal_names() -> None:
    assert signal_name(6) == "SIGABRT"
    assert signal_name(50) == "signal 50"
