"""Which function a line of C, C++ or Python lies in, judged by what begins in column 0.

git's own hunk headings do not serve: between two functions they name the upper one, and inside a class the last
label, such as `public:`. On this project's series they differ from the rule here for one run of lines in five.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_STARTS = re.compile(rb"[A-Za-z_$]")
_OPENS = re.compile(rb"[({]|(class|struct|enum|union|namespace|def)\b")
_LABEL = re.compile(rb"[A-Za-z_]\w*:\s*(//.*|/\*.*)?$")
_CALLED = re.compile(rb"([A-Za-z_$~][\w:~$]*)\s*\(")
_SOURCES = re.compile(
    r"\.(c|h|cc|hh|cpp|hpp|cxx|hxx|cu|cuh|m|mm|metal|cl|comp|glsl|java|go|rs|js|ts|py)$", re.IGNORECASE
)
_ATTRIBUTES = (b"__attribute__", b"alignas", b"decltype")


def has_functions(path: str) -> bool:
    """Whether the file is in a language to which the rule of `enclosing_function` applies."""
    return _SOURCES.search(path) is not None


def enclosing_function(lines: Sequence[bytes], at: int) -> str:
    """The name of the function (or the first line of another block) that line `at` (from 0) lies in; empty for none.

    A function begins with a line that starts in column 0, as in git's hunk headings (xdiff's xemit.c, `def_ff`),
    and ends at a `}` in column 0.
    """
    for index in range(min(at, len(lines) - 1), -1, -1):
        line = lines[index].rstrip()
        if index < at and line.startswith(b"}"):
            return ""
        if _STARTS.match(line) and _OPENS.search(line) and not _LABEL.match(line):
            # A declaration, or a whole function on one line, encloses nothing below it.
            if index < at and line.endswith((b";", b"}")):
                return ""
            return _name(line)
    return ""


def _name(line: bytes) -> str:
    for match in _CALLED.finditer(line):
        if match[1] not in _ATTRIBUTES:
            return match[1].decode("utf-8", "replace")
    return line.rstrip(b" {").decode("utf-8", "replace")
