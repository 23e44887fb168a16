"""How long-running work tells the outside how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being done, how far, out of how much); bytes, the total None where it is unknown."""


def silent(what: str, done: int, total: int | None) -> None:
    """Report to nobody."""
