"""Tests that pass only if their process aborts as expected."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


class ProcessDiedError(Exception):
    """The exception for `xfail(raises=...)` when an isolated test's process dies."""


@dataclass(frozen=True)
class ExpectedAbort:
    """An abort with a text that the regular expression matches somewhere; None for any abort."""

    match: str | None

    def __str__(self) -> str:
        return "an abort" if self.match is None else f"an abort matching {self.match!r}"


Listener = Callable[[ExpectedAbort | None], None]
_listener: Listener | None = None


def listen(listener: Listener) -> None:
    """Call `listener` whenever an abort is expected from now on, and with None when it no longer is."""
    global _listener
    _listener = listener


@contextlib.contextmanager
def expects_abort(match: str | None = None) -> Iterator[None]:
    """A block of an isolated test that must abort the process.

    The test passes if it does. If the block ends in any other way, the test fails and says how.

        @pytest.mark.isolated
        def test_wrong_shape_is_refused(context):
            a, b = context.tensor("f32", (4, 2)), context.tensor("f32", (3, 2))
            with expects_abort(match="ggml_can_mul_mat"):
                a @ b

    Args:
        match: regular expression to search for in the text of the failed assertion,
            `file:line: GGML_ASSERT(condition) failed`; None for any abort.

    Raises:
        pytest.UsageError: the test is not isolated, so its abort would end the whole run.
    """
    expected = ExpectedAbort(match)
    if match is not None:
        re.compile(match)
    if _listener is None:
        raise pytest.UsageError("expects_abort needs a test with @pytest.mark.isolated")
    _listener(expected)
    try:
        yield
    except BaseException as error:
        error.add_note(f"expected {expected} instead")
        raise
    finally:
        _listener(None)
    pytest.fail(f"expected {expected}, and nothing of the kind happened", pytrace=False)
