"""What the doctor finds: rows, and whether the CPU job can run."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("ok", "missing", "optional")


@dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        group: the heading it stands under.
        state: `ok`, `missing` (the CPU job needs it) or `optional` (it is not there, and need not be).
        text: what was found, in a line.
        fix: what brings it, mostly a command; empty when nothing has to be done.
    """

    group: str
    name: str
    state: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that was found, in the order of the screen."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether fetching, patching, building and checking for the CPU can work here."""
        return not any(row.state == "missing" for row in self.rows)
