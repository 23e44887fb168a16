"""A patch adds a block that upstream has at another place by now: the merge is clean, and the block stands twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from rebase_helpers import LINES, OLD, make_two_pins

from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.rebasing.repeated_blocks import repeated_blocks

FUNCTION = "static int helper(int x) {\n    int y = x + 1;\n\n    y *= 2;\n    return y;\n}\n\n"
ONTO = ("patch", "rebase", "--onto", "two")


def at(line: int, block: str) -> str:
    return "".join([*LINES[:line], block, *LINES[line:]])


def test_a_function_that_stands_twice_is_reported(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, {**OLD, "a.c": at(35, FUNCTION)})
    box.write("a.c", at(5, FUNCTION))
    box.ok("patch", "new", "helper", "-m", "helper : add")
    box.write("README.md", "mine\n")
    box.ok("patch", "new", "other", "-m", "other : change")
    told = box.ok(*ONTO).out
    assert (box.tree / "a.c").read_text().count("static int helper") == 2
    assert "look: adds 4 lines that a.c has already, at line 36: static int helper(int x) {" in told
    box.ok("undo")
    helper, other = box.ok(*ONTO, "--json").json["patches"]
    assert helper["verdict"] == "merged" and other["verdict"] == "clean"
    (block,) = helper["repeated_blocks"]
    assert (block["path"], block["line"], block["count"]) == ("a.c", 36, 4)
    assert other["repeated_blocks"] == []


def blocks(old: str, new: str, now: str, result: str, renames: dict[str, str] | None = None) -> list[int]:
    """The lines that are reported for the patch `now` to `result`; the old one was `old` to `new`."""
    import difflib

    path = "b.c" if renames else "a.c"
    lines = [text.splitlines(keepends=True) for text in (now, result)]
    diff = "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}")).encode()
    read_now = lambda name: now.encode() if name == path else None  # noqa: E731
    read_old = lambda name: old.encode() if name == "a.c" else None  # noqa: E731
    return [b.line for b in repeated_blocks(parse_diff(diff), read_old, read_now, renames or {})]


BASE = "".join(LINES)
TAKEN = {
    "word for word": FUNCTION,
    "indented": "".join(f"    {line}\n" for line in FUNCTION.splitlines()),
    "without the blank line": FUNCTION.replace("\n\n", "\n"),
    "one line changed": FUNCTION.replace("y *= 2;", "y *= 3;"),
    "one line more": FUNCTION.replace("    y *= 2;", "    log(x);\n    y *= 2;"),
    "with CRLF": FUNCTION.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_upstream_took(case: str) -> None:
    now = at(35, TAKEN[case])
    result = now.replace("line 6\n", FUNCTION + "line 6\n")
    assert blocks(BASE, at(5, FUNCTION), now, result) == [36]
    assert blocks(BASE, at(5, FUNCTION), now, result, {"a.c": "b.c"}) == [36]


def test_what_is_no_repetition() -> None:
    # Upstream has nothing of it.
    now = at(35, "something else\n")
    assert blocks(BASE, at(5, FUNCTION), now, now.replace("line 6\n", FUNCTION + "line 6\n")) == []
    # It stood twice when the patch was made: the patch means it.
    old, now = at(35, FUNCTION), "new\n" + at(35, FUNCTION)
    both = now.replace("line 6\n", FUNCTION + "line 6\n")
    assert blocks(old, old.replace("line 6\n", FUNCTION + "line 6\n"), now, both) == []
    # Two lines, or braces and blank lines, are no block.
    for small in ("    int y;\n    return y;\n", "{\n}\n\n}\n{\n};\n"):
        now = at(35, small)
        assert blocks(BASE, at(5, small), now, now.replace("line 6\n", small + "line 6\n")) == []
    # The patch rewrites it where it stands.
    now = at(35, FUNCTION)
    assert blocks(BASE, BASE, now, now.replace(FUNCTION, FUNCTION.replace("    ", "\t"))) == []
