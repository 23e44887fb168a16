"""A comparison of two series as one HTML page without any other file."""

from __future__ import annotations

from html import escape

from pyggml.series.exchange.range_diff import PatchPair, RangeDiff, line_kind

_STYLE = """
:root { color-scheme: light dark; --add: #d7f5dd; --del: #fbdcdc; --hunk: #e3ecfb; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --add: #12391d; --del: #471c1c; --hunk: #1c2c47; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
details { border: 1px solid var(--line); border-radius: .3rem; margin: 1rem 0; }
summary { cursor: pointer; padding: .5rem .8rem; font-weight: 600; }
pre { margin: 0; overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; padding: .5rem 0; }
pre span { display: block; padding: 0 .8rem; min-height: 1.45em; }
.added { background: var(--add); } .removed { background: var(--del); } .hunk { background: var(--hunk); }
"""
MEANING = {"=": "the same", "!": "changed", "<": "only before", ">": "only after"}


def page(comparison: RangeDiff) -> bytes:
    """The page: a table of all patches, then the difference for each pair that changed."""
    title = f"{escape(comparison.before)} → {escape(comparison.after)}"
    rows = "\n".join(_row(number, entry) for number, entry in enumerate(comparison.entries))
    parts = "\n".join(_part(number, entry) for number, entry in enumerate(comparison.entries) if entry.lines)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<table>
<tr><th>before</th><th>after</th><th></th><th>patch</th></tr>
{rows}
</table>
<p>In a difference, the first column says what changed between the series, the second what the patch does.</p>
{parts}
</html>
""".encode()


def _row(number: int, entry: PatchPair) -> str:
    subject = escape(entry.subject)
    if entry.lines:
        subject = f'<a href="#patch{number}">{subject}</a>'
    sides = "".join(f"<td>{side or ''}</td>" for side in (entry.before, entry.after))
    return f"<tr>{sides}<td>{MEANING[entry.sign]}</td><td>{subject}</td></tr>"


def _part(number: int, entry: PatchPair) -> str:
    lines = "".join(f'<span class="{line_kind(line)}">{escape(line)}</span>' for line in entry.lines)
    return (
        f'<details open id="patch{number}"><summary>{escape(entry.subject)}</summary>'
        f"<pre>{lines}</pre></details>"
    )
