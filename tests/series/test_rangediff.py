"""Two series side by side: git's pairing, in the terminal, as JSON and as a page."""

from __future__ import annotations

import re
from pathlib import Path

from rebase_helpers import RESOLVED, TwoPins


def rebased(box: TwoPins) -> TwoPins:
    box.pyggml("patch", "rebase", "--onto", "two")
    box.resolve("a.c", RESOLVED)
    box.ok("patch", "rebase", "--continue")
    return box


def test_pairs_and_signs(four: TwoPins) -> None:
    rebased(four)
    four.ok("patch", "drop", "after")
    found = four.ok("patch", "range-diff", "one", "two", "--json").json["entries"]
    assert [(e["before"], e["sign"], e["after"]) for e in found] == [
        (1, "=", 1),
        (2, "=", 2),
        (3, "!", 3),
        (4, "<", None),
    ]
    assert "+-line five upstream" in found[2]["lines"]
    out = four.ok("patch", "range-diff", "one", "two").out
    assert "  3 !   3  conflicts : change a.c" in out


def test_directories_recorded_and_plain_and_an_empty_series(four: TwoPins, tmp_path: Path) -> None:
    four.ok("patch", "export", str(tmp_path / "plain"))
    found = four.ok("patch", "range-diff", "one", str(tmp_path / "plain"), "--json").json["entries"]
    assert [e["sign"] for e in found] == ["="] * 4
    found = four.ok("patch", "range-diff", str(four.patches), "two", "--json").json["entries"]
    assert [e["sign"] for e in found] == ["<"] * 4
    assert "neither a pin nor a directory" in four.refused("patch", "range-diff", "one", "nowhere")
    assert "no is neither a pin nor a directory" in four.refused("patch", "range-diff", "no", "where")
    plain = str(tmp_path / "plain")
    assert "do not say which pin" in four.refused("patch", "range-diff", plain, plain)


def test_the_page_needs_nothing_else_and_quotes_what_it_shows(four: TwoPins, tmp_path: Path) -> None:
    four.pyggml("patch", "rebase", "--onto", "two")
    four.resolve("a.c", RESOLVED.replace("line five of both", "<script>alert('x') & y"))
    four.ok("patch", "rebase", "--continue")
    page = tmp_path / "page.html"
    four.ok("patch", "range-diff", "one", "two", "--html", str(page))
    text = page.read_text()
    assert "&lt;script&gt;alert(&#39;x&#39;) &amp; y" in text and "<script" not in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert text.count("<details") == 1 and text.count("<tr>") == 5
