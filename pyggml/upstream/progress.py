"""How long-running work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being done, bytes done, bytes in total); the total is None if unknown."""


def silent(what: str, done: int, total: int | None) -> None:
    """Report nothing."""
