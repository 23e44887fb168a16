"""Every way in which a test can end its process is an ordinary failure that says where."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.testing.conftest import ASSERT_LINE, Inner

pytest_plugins = ["pytester"]


def test_assertion_in_c(inner: Inner, broken: Path) -> None:
    result = inner(
        f"""
def call(rows):
    ctypes.CDLL({str(broken)!r}).check(rows)

@pytest.mark.isolated
def test_rows():
    print("before")
    call(3)

def test_next():
    pass
"""
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            ">       ctypes.CDLL(*).check(rows)",
            f"E   broken.c:{ASSERT_LINE}: GGML_ASSERT(rows == 4) failed",
            "E   the process was killed by SIGABRT (aborted)",
            "E     test_inner.py:10: in test_rows",
            "E     test_inner.py:5: in call",
            "test_inner.py:5: SIGABRT",
            "*Captured stdout call*",
            "before",
            "*Captured stderr call*",
            f"broken.c:{ASSERT_LINE}: GGML_ASSERT(rows == 4) failed",
            f"FAILED test_inner.py::test_rows - SIGABRT: broken.c:{ASSERT_LINE}: GGML_ASSERT(rows *",
        ]
    )


def test_division_by_zero_in_c(inner: Inner, broken: Path) -> None:
    result = inner(
        f"""
@pytest.mark.isolated
def test_divide():
    library = ctypes.CDLL({str(broken)!r})
    library.divide(1, 0)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       library.divide(1, 0)",
            "E   the process was killed by SIGFPE (floating point exception)",
            "test_inner.py:7: SIGFPE",
        ]
    )


def test_segmentation_fault(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_read():
    ctypes.string_at(0)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       ctypes.string_at(0)",
            "E   the process was killed by SIGSEGV (segmentation fault)",
            "test_inner.py:6: SIGSEGV",
        ]
    )


def test_hang(inner: Inner) -> None:
    began = time.monotonic()
    result = inner(
        """
@pytest.mark.isolated(timeout=0.5)
def test_wait():
    print("waiting")
    time.sleep(600)
"""
    )
    assert time.monotonic() - began < 60
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       time.sleep(600)",
            "E   not finished after 0.5 s; killed",
            "test_inner.py:7: timeout",
            "*Captured stdout call*",
            "waiting",
        ]
    )


def test_hang_in_c_that_keeps_python_locked(inner: Inner, broken: Path) -> None:
    result = inner(
        f"""
@pytest.mark.isolated(timeout=0.5)
def test_spin():
    ctypes.PyDLL({str(broken)!r}).spin()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   not finished after 0.5 s; killed", "test_inner.py:6: timeout"])


def test_text_that_the_bindings_write(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_told():
    stacks = b"Python stack (most recent call last):\\n  File x\\n"
    text = b"/src/ggml ops.c:77: GGML_ASSERT(a == b) failed\\nmore of it\\n"
    os.write(int(os.environ["PYGGML_ABORT_FD"]), text + stacks)
    os.write(2, b"other.c:1: not this\\n")
    os.abort()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       os.abort()",
            "E   /src/ggml ops.c:77: GGML_ASSERT(a == b) failed",
            "E   more of it",
            "E   the process was killed by SIGABRT (aborted)",
            "",
            "test_inner.py:10: SIGABRT",
        ],
        consecutive=True,
    )


def test_abort_on_another_thread_names_the_line_of_the_test(inner: Inner) -> None:
    result = inner(
        """
import threading

@pytest.mark.isolated
def test_thread():
    thread = threading.Thread(target=os.abort)
    thread.start()
    thread.join()
    time.sleep(60)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r">       (thread\.(start|join)\(\)|time.sleep.*)", r"E .* SIGABRT.*"])


def test_exit_without_a_word(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated
def test_exit():
    os._exit(0)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   the process ended in the middle of the test", "test_inner.py:4: exit status 0"]
    )


@pytest.mark.parametrize(
    ("phase", "outcomes"), [("setup", {"errors": 1}), ("teardown", {"errors": 1, "passed": 1})]
)
def test_death_in_a_fixture_is_an_error(inner: Inner, phase: str, outcomes: dict[str, int]) -> None:
    result = inner(
        f"""
@pytest.fixture
def resource():
    if {phase!r} == "setup":
        os.abort()
    yield
    os.abort()

@pytest.mark.isolated
def test_it(resource):
    pass
"""
    )
    result.assert_outcomes(**outcomes)
    line = 7 if phase == "setup" else 9
    result.stdout.fnmatch_lines(
        [f"*ERROR at {phase} of test_it*", ">*os.abort()", f"test_inner.py:{line}: SIGABRT"]
    )


def test_death_at_exit_is_told(inner: Inner) -> None:
    result = inner(
        """
import atexit

@pytest.mark.isolated
def test_it():
    atexit.register(os.abort)
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "E   the process was killed by SIGABRT*"])


def test_nothing_that_the_test_started_outlives_it(inner: Inner, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    result = inner(
        f"""
import pathlib, subprocess

@pytest.mark.isolated
def test_it():
    process = subprocess.Popen(["sleep", "600"])
    pathlib.Path({str(note)!r}).write_text(str(process.pid))
    os.abort()
"""
    )
    result.assert_outcomes(failed=1)
    until = time.monotonic() + 10
    with contextlib.suppress(FileNotFoundError):
        # Killed; whoever inherited it may take a moment to notice.
        stat = Path(f"/proc/{note.read_text()}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)


def test_crash_below_a_path_with_non_ascii_characters(inner: Inner, pytester: pytest.Pytester) -> None:
    directory = pytester.mkdir("größe ä")
    (directory / "test_umlaut.py").write_text(
        "import os, pytest\n@pytest.mark.isolated\ndef test_it():\n    os.abort()\n", "utf-8"
    )
    result = inner("", str(directory))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">       os.abort()", f"{directory.name}{os.sep}test_umlaut.py:4: SIGABRT"])


def test_output_and_log_before_a_crash(inner: Inner, broken: Path) -> None:
    result = inner(
        f"""
import logging

@pytest.fixture
def earlier():
    print("in setup")

@pytest.mark.isolated
def test_it(earlier):
    ctypes.CDLL({str(broken)!r}).say(b"line from C\\n")
    logging.getLogger("some").error("logged %d", 7)
    os.abort()
"""
    )
    result.stdout.fnmatch_lines(
        [
            "*Captured log call*",
            "ERROR    some:test_inner.py:13 logged 7",
            "*Captured stdout call*",
            "line from C",
        ]
    )


def test_timeout_that_is_none(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.isolated(timeout="soon")
def test_a():
    pass

@pytest.mark.isolated(60)
def test_b():
    pass

@pytest.mark.isolated(timeout=None)
def test_c():
    pass
"""
    )
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines(
        ["the timeout must be a number of seconds, not 'soon'", "isolated takes timeout=*"]
    )
