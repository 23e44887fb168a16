"""Tests that must die by a certain abort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.conftest import Inner

pytest_plugins = ["pytester"]


def test_the_abort_that_was_expected_passes(inner: Inner, broken: Path) -> None:
    result = inner(
        f"""
from pyggml.testing import expects_abort
library = ctypes.CDLL({str(broken)!r})

@pytest.mark.isolated
def test_block():
    library.check(4)
    with expects_abort(match=r"broken\\.c:\\d+: .*rows == 4"):
        library.check(3)

@pytest.mark.expects_abort(match="rows")
def test_marker():
    library.check(3)

@pytest.mark.expects_abort
def test_any():
    os.abort()
"""
    )
    result.assert_outcomes(passed=3)


WRONG = {
    "library.check(3)": "E   expected an abort matching 'columns', and its text is another",
    "os.abort()": "E   expected an abort matching 'columns', and it has no text",
    "ctypes.string_at(0)": "E   expected an abort matching 'columns' instead",
    "library.divide(1, 0)": "E   the process was killed by SIGFPE*",
    "1 / 0": "E*expected an abort matching 'columns' instead",
    "pass": "expected an abort matching 'columns', and nothing of the kind happened",
    "os._exit(0)": "E   the process ended in the middle of the test",
    "time.sleep(60)": "E   not finished after 1 s; killed",
}


@pytest.mark.parametrize("body", WRONG)
def test_anything_else_fails_and_is_named(inner: Inner, broken: Path, body: str) -> None:
    result = inner(
        f"""
from pyggml.testing import expects_abort
library = ctypes.CDLL({str(broken)!r})

@pytest.mark.isolated(timeout=1)
def test_it():
    with expects_abort(match="columns"):
        {body}
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([WRONG[body]])


@pytest.mark.parametrize("body", ["library.check(3)", "1 / 0", "pass"])
def test_anything_else_fails_with_the_marker_too(inner: Inner, broken: Path, body: str) -> None:
    result = inner(
        f"""
library = ctypes.CDLL({str(broken)!r})

@pytest.mark.expects_abort("columns")
def test_it():
    {body}
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([WRONG[body]])


def test_an_abort_after_the_block_fails(inner: Inner) -> None:
    result = inner(
        """
from pyggml.testing import expects_abort

@pytest.mark.isolated
def test_it():
    try:
        with expects_abort():
            raise ValueError
    except ValueError:
        pass
    os.abort()
"""
    )
    result.assert_outcomes(failed=1)


def test_a_skipped_test_stays_skipped(inner: Inner) -> None:
    result = inner(
        """
@pytest.mark.expects_abort
@pytest.mark.skipif(True, reason="no build")
def test_mark(): os.abort()

@pytest.mark.expects_abort
def test_call(): pytest.skip("no build")
"""
    )
    result.assert_outcomes(skipped=2)


def test_the_block_refuses_to_kill_the_run(inner: Inner) -> None:
    result = inner(
        """
from pyggml.testing import expects_abort

def test_it():
    with expects_abort():
        os.abort()
""",
        apart=True,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*expects_abort needs a test with @pytest.mark.isolated"])


@pytest.mark.parametrize(
    ("condition", "outcomes"),
    [
        ("reason='known'", {"xfailed": 1}),
        ("False, reason='elsewhere'", {"failed": 1}),
        ("raises=ProcessDiedError, reason='known'", {"xfailed": 1}),
        ("raises=ValueError, reason='other'", {"failed": 1}),
    ],
)
def test_a_death_that_is_known(inner: Inner, condition: str, outcomes: dict[str, int]) -> None:
    result = inner(
        f"""
from pyggml.testing import ProcessDiedError

@pytest.mark.isolated
@pytest.mark.xfail({condition})
def test_it():
    os.abort()
"""
    )
    result.assert_outcomes(**outcomes)
