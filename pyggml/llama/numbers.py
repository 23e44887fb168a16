"""Numbers that C would take wrongly, checked before it sees them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from pyggml.errors import UsageError

MAX_INT32 = (1 << 31) - 1


def whole(what: str, value: Any, least: int, most: int) -> int:
    """`value` as a whole number from `least` to `most`.

    Raises:
        UsageError: it is none, or outside.
    """
    try:
        # True is a mistake more often than it is 1.
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{what} must be a whole number, not {value!r:.60}")
    if not least <= number <= most:
        raise UsageError(f"{what} is {number}; {least} to {most} is possible")
    return number


def choice(what: str, value: Any, known: Mapping[Any, int]) -> int:
    """The C value of one of the `known` words.

    Raises:
        UsageError: it is none of them; the message lists them.
    """
    try:
        return known[value]
    except (KeyError, TypeError):
        words = ", ".join(repr(word) for word in known)
        raise UsageError(f"{what} is {value!r:.60}", f"Possible: {words}.") from None
