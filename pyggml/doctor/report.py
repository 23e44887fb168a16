"""The result of the checks: rows, and whether the CPU job can run."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("ok", "missing", "optional")


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        group: the heading it is printed under.
        state: `ok`, `missing` (the CPU job needs it) or `optional` (it is missing, but not required).
        text: the result, in one line.
        fix: how to install or repair it, usually a command; empty if nothing has to be done.
    """

    group: str
    name: str
    state: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class DoctorReport:
    """All rows, in the order they are printed."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether fetching, patching, building and checking can work here, for the CPU."""
        return not any(row.state == "missing" for row in self.rows)
