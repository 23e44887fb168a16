"""Bisection over numbered steps (patches, rungs of a ladder), some of which may have no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """Where the answer changes: good at `last_good`, bad at `first_bad`; nothing usable lies between them."""

    last_good: int
    first_bad: int


def bisect(good: int, bad: int, ask: Callable[[int], bool | None]) -> Bracket:
    """Where the answer changes between a good step and a bad one, assuming that it changes once.

    Args:
        ask: whether a step is good; None if it has no answer, then another one is asked.
    """
    unusable: set[int] = set()
    while True:
        between = [rung for rung in range(good + 1, bad) if rung not in unusable]
        if not between:
            return Bracket(good, bad)
        middle = between[(len(between) - 1) // 2]
        answer = ask(middle)
        if answer is None:
            unusable.add(middle)
        elif answer:
            good = middle
        else:
            bad = middle
