"""Tests that pass only if their process dies as they say."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


class ProcessDiedError(Exception):
    """What `xfail(raises=...)` compares with when an isolated test's process dies."""


@dataclass(frozen=True)
class ExpectedAbort:
    """An abort whose text the regular expression finds something in; None for any abort."""

    match: str | None

    def __str__(self) -> str:
        return "an abort" if self.match is None else f"an abort matching {self.match!r}"


Listener = Callable[[ExpectedAbort | None], None]
_listener: Listener | None = None


def listen(listener: Listener) -> None:
    """Have `listener` told what is expected from now on, and that nothing is expected any more."""
    global _listener
    _listener = listener


@contextlib.contextmanager
def expects_abort(match: str | None = None) -> Iterator[None]:
    """The block of an isolated test that must end the process by an abort.

    The test passes if it does. It fails if the block ends in any other way, saying in which.

        @pytest.mark.isolated
        def test_wrong_shape_is_refused(context):
            a, b = context.tensor("f32", (4, 2)), context.tensor("f32", (3, 2))
            with expects_abort(match="ggml_can_mul_mat"):
                a @ b

    Args:
        match: regular expression, searched for in the text of the failed assertion as ggml words it,
            `file:line: GGML_ASSERT(condition) failed`; None for any abort.

    Raises:
        pytest.UsageError: the test is not isolated: its abort would end the whole run.
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
