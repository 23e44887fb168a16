"""Unified and git diffs, parsed as bytes: no text decoding, no git, no files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyggml.errors import PyggmlError

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_MODE_LINE = re.compile(rb"(?:old mode|new mode|deleted file mode|new file mode) (\d{6})")


@dataclass(frozen=True)
class Hunk:
    """One hunk.

    Attributes:
        old_start: first line of the old side, from 1 (0 for an empty old side, as in the header).
        section: what follows the second `@@`, normally the enclosing function.
        lines: body lines, each with its leading character and its newline.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]

    def old_lines(self) -> list[bytes]:
        """The lines that the old file must have, without their leading character."""
        return self._side(b" -")

    def new_lines(self) -> list[bytes]:
        """The lines that take their place."""
        return self._side(b" +")

    def _side(self, kinds: bytes) -> list[bytes]:
        side: list[bytes] = []
        taken = False
        for line in self.lines:
            kind = line[:1]
            if kind == b"\\":
                if taken:
                    side[-1] = side[-1].removesuffix(b"\n")
                continue
            blank = kind in (b"\n", b"\r")
            taken = blank or kind in kinds
            if taken:
                side.append(line if blank else line[1:])
        return side

    def header(self) -> bytes:
        return b"@@ -%d,%d +%d,%d @@%b" % (
            self.old_start,
            self.old_count,
            self.new_start,
            self.new_count,
            self.section,
        )


@dataclass(frozen=True)
class FileDiff:
    """What a diff does to one file.

    Attributes:
        header: every line before the first hunk, unchanged.
        old: the old path without prefix; None for a file that is created.
        new: the new path; None for a file that is removed.
        modes: every file mode named in the header, e.g. `b"120000"`.
        tail: what follows the hunks (the body of a binary patch).
    """

    header: tuple[bytes, ...]
    old: bytes | None
    new: bytes | None
    hunks: tuple[Hunk, ...]
    modes: tuple[bytes, ...] = ()
    tail: tuple[bytes, ...] = ()

    @property
    def path(self) -> bytes:
        return self.new if self.new is not None else self.old or b""

    @property
    def old_path(self) -> str:
        """Where the file is before the patch; a created file's path is the new one."""
        return path_text(self.new if self.old is None else self.old)

    def lines(self) -> list[bytes]:
        """The diff of this file, line by line."""
        hunks = [line for hunk in self.hunks for line in (hunk.header(), *hunk.lines)]
        return [*self.header, *hunks, *self.tail]


def path_text(path: bytes | None) -> str:
    """A path as text that becomes the same bytes again; empty for None."""
    return (path or b"").decode("utf-8", "surrogateescape")


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newlines; only `\\n` ends a line."""
    return [line for line in re.split(rb"(?<=\n)", data) if line]


def parse_diff(data: bytes, strip: int = 1) -> tuple[FileDiff, ...]:
    """Parse a diff.

    Args:
        data: the diff; text before the first file header is skipped.
        strip: leading path components to drop, as `patch -p`.

    Raises:
        PyggmlError: a hunk is truncated or malformed, the diff's own lines end in CRLF, or a path leaves
            the tree.
    """
    lines = split_lines(data)
    starts = _file_starts(lines)
    if not starts:
        return ()
    files = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        files.append(_parse_file(lines, start, end, strip))
    return tuple(files)


def _file_starts(lines: list[bytes]) -> list[int]:
    starts: list[int] = []
    index, in_git = 0, False
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"diff --git "):
            starts.append(index)
            in_git = True
        elif _is_plain_header(lines, index):
            if not (in_git and starts and _only_header(lines, starts[-1], index)):
                starts.append(index)
                in_git = False
            index += 2
            continue
        elif match := _HUNK.fullmatch(line):
            index = _hunk_end(lines, index, match)
            continue
        index += 1
    return starts


def _is_plain_header(lines: list[bytes], index: int) -> bool:
    return (
        lines[index].startswith(b"--- ")
        and index + 2 < len(lines)
        and lines[index + 1].startswith(b"+++ ")
        and lines[index + 2].startswith(b"@@ -")
    )


def _only_header(lines: list[bytes], start: int, end: int) -> bool:
    return not any(line.startswith((b"@@ -", b"GIT binary patch")) for line in lines[start:end])


def _hunk_end(lines: list[bytes], index: int, match: re.Match[bytes]) -> int:
    """The index after the hunk whose header is at `index`."""
    old = int(match[2]) if match[2] is not None else 1
    new = int(match[4]) if match[4] is not None else 1
    where = index + 1
    index += 1
    while old > 0 or new > 0:
        if index >= len(lines):
            raise PyggmlError(
                f"the hunk at line {where} of the diff is cut off: {old} old and {new} new lines are missing",
                "The file is truncated or was edited by hand: restore it.",
            )
        kind = lines[index][:1]
        if kind in (b" ", b"\n", b"\r"):
            old, new = old - 1, new - 1
        elif kind == b"-":
            old -= 1
        elif kind == b"+":
            new -= 1
        elif kind != b"\\":
            raise PyggmlError(
                f"line {index + 1} of the diff belongs to no hunk: {lines[index][:60]!r}",
                "The file is truncated or was edited by hand: restore it.",
            )
        index += 1
    if old < 0 or new < 0:
        raise PyggmlError(
            f"the hunk at line {where} of the diff has more lines than its header says",
            "The file was edited by hand: restore it, or correct the line counts.",
        )
    while index < len(lines) and lines[index].startswith(b"\\ "):
        index += 1
    return index


def _parse_file(lines: list[bytes], start: int, end: int, strip: int) -> FileDiff:
    index = start
    header: list[bytes] = []
    hunks: list[Hunk] = []
    modes: list[bytes] = []
    old: bytes | None = None
    new: bytes | None = None
    named = False
    git = lines[start].startswith(b"diff --git ")
    created = removed = False
    while index < end and not _HUNK.fullmatch(lines[index]):
        line = lines[index]
        if line.startswith((b"GIT binary patch", b"Binary files ")):
            break
        header.append(line)
        if line.startswith((b"diff --git ", b"--- ", b"+++ ")) and line.endswith(b"\r\n"):
            raise PyggmlError(
                "the diff's own lines end in CRLF: the file was converted",
                "Restore it from git with core.autocrlf=false, or convert it back with dos2unix.",
            )
        if line.startswith(b"--- "):
            old, named = _side_path(line[4:], strip), True
        elif line.startswith(b"+++ "):
            new = _side_path(line[4:], strip)
        elif git and (match := _MODE_LINE.match(line)):
            modes.append(match[1])
            created |= line.startswith(b"new file")
            removed |= line.startswith(b"deleted file")
        elif git and line.startswith((b"rename from ", b"copy from ")):
            old, named = _unquote(line.split(b" from ", 1)[1].rstrip(b"\n")), True
        elif git and line.startswith((b"rename to ", b"copy to ")):
            new = _unquote(line.split(b" to ", 1)[1].rstrip(b"\n"))
        index += 1
    if git and not named:
        both = _git_header_path(lines[start], strip)
        old, new = (None if created else both), (None if removed else both)
    while index < end and (match := _HUNK.fullmatch(lines[index])):
        stop = _hunk_end(lines, index, match)
        hunks.append(
            Hunk(
                int(match[1]),
                int(match[2]) if match[2] is not None else 1,
                int(match[3]),
                int(match[4]) if match[4] is not None else 1,
                match[5].rstrip(b"\n") + b"\n",
                tuple(lines[index + 1 : stop]),
            )
        )
        index = stop
    for path in (old, new):
        if path is not None:
            check_path(path)
    _check_modes(modes, new)
    return FileDiff(tuple(header), old, new, tuple(hunks), tuple(modes), tuple(lines[index:end]))


def _side_path(text: bytes, strip: int) -> bytes | None:
    text = text.rstrip(b"\n")
    path = _unquote(text) if text.startswith(b'"') else text
    if path == text and b"\t" in text:
        path = text.split(b"\t", 1)[0].rstrip(b" ")
    if path == b"/dev/null":
        return None
    return _strip(path, strip)


def _strip(path: bytes, strip: int) -> bytes:
    parts = path.split(b"/", strip)
    if path.startswith(b"/") or len(parts) <= strip:
        raise PyggmlError(
            f"the diff names {_printable(path)}, which with -p{strip} is no path inside the tree",
            "Paths must look like a/dir/file and b/dir/file.",
        )
    return parts[strip]


def _git_header_path(line: bytes, strip: int) -> bytes:
    """The path of a `diff --git a/X b/X` line: both names are the same if no other line of the header names them."""
    rest = line.removeprefix(b"diff --git ").rstrip(b"\n")
    if rest.startswith(b'"'):
        return _strip(_unquote(rest[: len(rest) // 2]), strip)
    half = (len(rest) - 1) // 2
    left, right = _strip(rest[:half], strip), _strip(rest[half + 1 :], strip)
    if left != right:
        raise PyggmlError(f"cannot read the paths of {_printable(line)}", "Export the patch again with git.")
    return left


def _unquote(text: bytes) -> bytes:
    """Undo git's C quoting (`core.quotePath`); unquoted text is returned unchanged."""
    text = text.strip()
    if not (text.startswith(b'"') and text.endswith(b'"') and len(text) > 1):
        return text

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([_ESCAPES[escape] if escape in _ESCAPES else int(escape, 8) & 0xFF])

    return re.sub(rb'\\([abtnvfr"\\]|[0-7]{3})', unescape, text[1:-1])


def check_path(path: bytes) -> None:
    """Refuse a path that leaves the tree or enters a `.git`.

    Raises:
        PyggmlError: it does.
    """
    parts = path.split(b"/")
    if path.startswith(b"/") or b".." in parts or b"" in parts or b"." in parts or b"\0" in path:
        raise PyggmlError(
            f"the patch reaches outside the tree: {_printable(path)}",
            "Do not apply it: the patch is malformed or hostile.",
        )
    if any(re.fullmatch(rb"(\.git|git~1)[. ]*", part, re.IGNORECASE) for part in parts):
        raise PyggmlError(
            f"the patch reaches into a .git directory: {_printable(path)}",
            "Do not apply it: the patch is malformed or hostile.",
        )


def _check_modes(modes: list[bytes], new: bytes | None) -> None:
    if b"160000" in modes:
        raise PyggmlError(
            f"the patch changes a submodule: {_printable(new or b'')}",
            "Submodules are not part of a snapshot.",
        )


def _printable(path: bytes) -> str:
    return repr(path.decode("utf-8", "backslashreplace"))
