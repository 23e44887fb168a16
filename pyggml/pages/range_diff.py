"""The comparison of two series."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.pages.render import render
from pyggml.series.exchange.range_diff import RangeDiff, line_kind


@dataclass(frozen=True)
class _Verdict:
    sign: str
    words: str
    tone: str
    count: int = 0


_VERDICTS = {
    "=": ("the same", "good"),
    "!": ("changed", "warn"),
    "<": ("only before", "bad"),
    ">": ("only after", "calm"),
}
_LONG = 400
"""A difference of more lines is closed at first."""


def range_diff_page(comparison: RangeDiff) -> bytes:
    """The page: counts, a table of all patches, then the difference of each pair that changed."""
    signs = [entry.sign for entry in comparison.entries]
    verdicts = {
        sign: _Verdict(sign, words, tone, signs.count(sign)) for sign, (words, tone) in _VERDICTS.items()
    }
    entries = [
        {
            "place": place,
            "before": entry.before,
            "after": entry.after,
            "subject": entry.subject,
            "verdict": verdicts[entry.sign],
            "open": len(entry.lines) <= _LONG,
            "added": sum(line.startswith("+") for line in entry.lines),
            "removed": sum(line.startswith("-") for line in entry.lines),
            "lines": [
                {"kind": line_kind(line), "outer": line[:1].strip(), "text": line[1:]} for line in entry.lines
            ],
        }
        for place, entry in enumerate(comparison.entries, 1)
    ]
    return render(
        "range-diff",
        before=comparison.before,
        after=comparison.after,
        verdicts=list(verdicts.values()),
        entries=entries,
    )
