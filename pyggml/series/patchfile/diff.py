"""Unified and git diffs, parsed as bytes: no text decoding, no git, no files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.upstream.fast_import import quoted

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_MODE_LINE = re.compile(rb"(?:old mode|new mode|deleted file mode|new file mode) (\d{6})")
_GIT_HEADER = re.compile(
    rb"(?:old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|"
    rb"similarity index|dissimilarity index|index) "
)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"(?=\s|$)')
_UNREAD = re.compile(rb"^(?:diff --(?:cc|combined) |@@@+ -|\*{15}\s*$)", re.MULTILINE)
_CLOCK = rb"\d\d?:\d\d(?::\d\d)?"
_STAMP = re.compile(rb"[ \t]+(?:\d{4}-\d\d-\d\d|[A-Z][a-z][a-z] [A-Z][a-z][a-z] [ \d]?\d) " + _CLOCK + rb".*")
# The epoch in any time zone: the last hours of 1969 or the first of 1970.
_NO_FILE = re.compile(
    rb".*[ \t](?:(?:1970-01-01|1969-12-31) .*|[A-Z][a-z][a-z] Jan  ?1 .*\b1970|[A-Z][a-z][a-z] Dec 31 .*\b1969|"
    rb"\((?:nonexistent|revision 0|\.\.\./.*\(nonexistent\))\))\s*"
)
# What other tools write between the files of a diff.
_FURNITURE = re.compile(
    rb"\s*$|Index: |={4,}\s*$|diff -|[Oo]nly in |Binary files |Files .* differ|Common subdirectories: |RCS file: |"
    rb"retrieving revision |Property changes on: |_{20,}\s*$|(?:Added|Modified|Deleted): svn|\\ No newline|# ?|"
    rb"File .* is a "
)


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
        tail: what follows the hunks (the body of a binary patch, or text).
        git: the header begins with `diff --git`.
    """

    header: tuple[bytes, ...]
    old: bytes | None
    new: bytes | None
    hunks: tuple[Hunk, ...]
    modes: tuple[bytes, ...] = ()
    tail: tuple[bytes, ...] = ()
    git: bool = True

    @property
    def path(self) -> bytes:
        return self.new if self.new is not None else self.old or b""

    @property
    def copies(self) -> bool:
        """The old file stays as it is."""
        return self.git and any(line.startswith(b"copy from ") for line in self.header)

    @property
    def old_path(self) -> str:
        """Where the file is before the patch; a created file's path is the new one."""
        return path_text(self.new if self.old is None else self.old)

    def under(self, prefix: bytes) -> FileDiff:
        """The same with `prefix` in front of its paths; only `exact_lines` has it, the header stays."""
        old, new = (None if path is None else prefix + path for path in (self.old, self.new))
        return replace(self, old=old, new=new)

    def lines(self) -> list[bytes]:
        """The diff of this file, line by line."""
        hunks = [line for hunk in self.hunks for line in (hunk.header(), *hunk.lines)]
        return [*self.header, *hunks, *self.tail]

    def exact_lines(self) -> list[bytes]:
        """The diff of this file in git's own form, with the prefixes `a/` and `b/` and nothing between.

        What git applies is then what was checked here, whatever else the header says.
        """
        old, new = (self.new if self.old is None else self.old), (self.old if self.new is None else self.new)
        left, right = quoted(b"a/" + (old or b"")), quoted(b"b/" + (new or b""))
        out: list[bytes] = []
        if self.git:
            out.append(b"diff --git %b %b\n" % (left, right))
            for line in self.header:
                if match := re.match(rb"(rename|copy) (from|to) ", line):
                    name = quoted((old if match[2] == b"from" else new) or b"")
                    out.append(match[0] + name + b"\n")
                elif _GIT_HEADER.match(line):
                    out.append(line)
        if self.hunks:
            out.append(b"--- " + (b"/dev/null" if self.old is None else left) + b"\n")
            out.append(b"+++ " + (b"/dev/null" if self.new is None else right) + b"\n")
        hunks = [line for hunk in self.hunks for line in (hunk.header(), *hunk.lines)]
        body = (
            self.tail if self.tail[:1] and self.tail[0].startswith((b"GIT binary", b"Binary files")) else ()
        )
        return [*out, *hunks, *body]


@dataclass(frozen=True)
class HeaderNames:
    """The names in the header of one file, with whatever prefix they have.

    Attributes:
        old, new: of the lines `---` and `+++`; None for /dev/null, and for both where these lines are missing.
        both: the two names of the line `diff --git`; None for a plain diff. For a line that can be read in
            several ways, the first one.
        moved: the names of `rename` or `copy` lines, which never have a prefix.
        creates: a file that was not there before is made.
    """

    old: bytes | None
    new: bytes | None
    both: tuple[bytes, bytes] | None
    moved: tuple[bytes, bytes] | None
    creates: bool


def path_text(path: bytes | None) -> str:
    """A path as text that becomes the same bytes again; empty for None."""
    return (path or b"").decode("utf-8", "surrogateescape")


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newlines; only `\\n` ends a line."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


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
    return tuple(_parse_file(lines, start, end, strip) for start, end in _files(lines))


def header_names(data: bytes) -> tuple[HeaderNames, ...]:
    """The names in the header of every file of a diff.

    Raises:
        PyggmlError: as `parse_diff`.
    """
    lines = split_lines(data)
    return tuple(_header_names(lines[start:end]) for start, end in _files(lines))


def text_between(data: bytes) -> tuple[bytes, ...]:
    """The lines between the diffs of two files that are no part of a diff, without those that diff tools write.

    Raises:
        PyggmlError: as `parse_diff`.
    """
    lines = split_lines(data)
    text: list[bytes] = []
    for start, end in _files(lines)[:-1]:
        index, git = start, lines[start].startswith(b"diff --git ")
        while index < end and not lines[index].startswith(b"GIT binary patch"):
            if match := _HUNK.fullmatch(lines[index]):
                index = _hunk_end(lines, index, match)
                continue
            if not (index == start or (git and _GIT_HEADER.match(lines[index]))):
                text.append(lines[index])
            index += 1
    return tuple(
        line for line in text if not re.match(rb"(---|\+\+\+) \S", line) and not _FURNITURE.match(line)
    )


def unread_diff(data: bytes) -> str:
    """The kind of diff that is among the lines outside of all hunks, and that nothing here reads; empty if none is.

    Raises:
        PyggmlError: as `parse_diff`.
    """
    if not _UNREAD.search(data):
        return ""
    lines, index = split_lines(data), 0
    while index < len(lines):
        if match := _HUNK.fullmatch(lines[index]):
            index = _hunk_end(lines, index, match)
            continue
        if _UNREAD.match(lines[index]):
            return "a context diff" if lines[index].startswith(b"*") else "the combined diff of a merge"
        index += 1
    return ""


def _files(lines: list[bytes]) -> list[tuple[int, int]]:
    starts = _file_starts(lines)
    return list(zip(starts, [*starts[1:], len(lines)], strict=False))


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
        if not lines[index].endswith(b"\n"):
            raise PyggmlError(
                f"the hunk at line {where} of the diff is cut off: its last line has no newline",
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
    while index < end and not _HUNK.fullmatch(lines[index]):
        if lines[index].startswith((b"GIT binary patch", b"Binary files ")):
            break
        index += 1
    header = lines[start:index]
    names = _header_names(header)
    git = names.both is not None
    modes = [match[1] for line in header if git and (match := _MODE_LINE.match(line))]
    hunks: list[Hunk] = []
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
    old, new = _git_paths(names, header, strip) if git else _plain_paths(names, header, hunks, strip)
    for path in (old, new):
        if path is not None:
            check_path(path)
    _check_modes(modes, new)
    return FileDiff(tuple(header), old, new, tuple(hunks), tuple(modes), tuple(lines[index:end]), git)


def _git_paths(names: HeaderNames, header: list[bytes], strip: int) -> tuple[bytes | None, bytes | None]:
    assert names.both is not None  # noqa: S101
    if names.moved is not None:
        # git apply drops one component fewer from these names: they have no prefix.
        old, new = (_strip(name, max(strip - 1, 0)) for name in names.moved)
        return old, new
    if names.old is None and names.new is None:
        left, right = (_strip(name, strip) for name in names.both)
        if left != right:
            raise PyggmlError(
                f"cannot read the paths of {_printable(header[0])}", "Export the patch again with git."
            )
        names = replace(names, old=left, new=left)
    else:
        old_name, new_name = (
            (None if name is None else _strip(name, strip)) for name in (names.old, names.new)
        )
        names = replace(names, old=old_name, new=new_name)
    created = any(line.startswith(b"new file mode") for line in header)
    removed = any(line.startswith(b"deleted file mode") for line in header)
    return None if created else names.old, None if removed else names.new


def _plain_paths(
    names: HeaderNames, header: list[bytes], hunks: list[Hunk], strip: int
) -> tuple[bytes | None, bytes | None]:
    """The paths of a diff without `diff --git`.

    It never moves a file: of two names the shorter one counts, since the other may be `file.orig`. A side whose
    date is the epoch is a file that is not there. Source: git's apply.c, `parse_traditional_patch`.
    """
    old, new = ((None if name is None else _strip(name, strip)) for name in (names.old, names.new))
    if old is None or new is None:
        return old, new
    path = old if len(old) < len(new) else new
    if _NO_FILE.fullmatch(header[0]) and all(hunk.old_count == 0 for hunk in hunks):
        return None, path
    if _NO_FILE.fullmatch(header[1]) and all(hunk.new_count == 0 for hunk in hunks):
        return path, None
    return path, path


def _header_names(lines: list[bytes]) -> HeaderNames:
    """The names in the lines of one file, which may go on behind its header."""
    git = lines[0].startswith(b"diff --git ")
    sides: dict[bytes, bytes | None] = {}
    moved: dict[bytes, bytes] = {}
    creates = False
    for line in lines:
        if match := _HUNK.fullmatch(line):
            creates |= not git and match[1] == match[2] == b"0"
            break
        if line.startswith((b"GIT binary patch", b"Binary files ")):
            break
        if line.startswith((b"diff --git ", b"--- ", b"+++ ")) and line.endswith(b"\r\n"):
            raise PyggmlError(
                "the diff's own lines end in CRLF: the file was converted",
                "Restore it from git with core.autocrlf=false, or convert it back with dos2unix.",
            )
        if line.startswith((b"--- ", b"+++ ")):
            sides.setdefault(line[:3], _side_name(line[4:], git))
        elif git and (match := re.match(rb"(?:rename|copy) (from|to) (.*)", line)):
            moved[match[1]] = _unquote(match[2])
        creates |= line.startswith(b"new file mode ")
    old, new = sides.get(b"---"), sides.get(b"+++")
    creates |= b"---" in sides and (old is None or (not git and bool(_NO_FILE.fullmatch(lines[0]))))
    pair = (moved[b"from"], moved[b"to"]) if len(moved) == 2 else None
    both = _git_names(lines[0], pair) if git else None
    return HeaderNames(old, new, both, pair, creates)


def _side_name(text: bytes, git: bool) -> bytes | None:
    text = text.rstrip(b"\n")
    if match := _QUOTED.match(text):
        return _unquote(match[0])
    name, tab, _ = text.partition(b"\t")
    if not git and not tab:
        name = _STAMP.sub(b"", text)
    return None if name == b"/dev/null" else name


def _strip(path: bytes, strip: int) -> bytes:
    parts = path.split(b"/", strip)
    if path.startswith(b"/") or len(parts) <= strip:
        raise PyggmlError(
            f"the diff names {_printable(path)}, which with -p{strip} is no path inside the tree",
            "Paths must look like a/dir/file and b/dir/file.",
        )
    return parts[strip]


def _git_names(line: bytes, moved: tuple[bytes, bytes] | None) -> tuple[bytes, bytes]:
    """The two names of a `diff --git` line.

    They may contain blanks. Which blank is the one between them is known from the names in the `rename` lines, or
    from the two names being the same but for their prefix.
    """
    rest = line.removeprefix(b"diff --git ").rstrip(b"\n")
    if quotes := re.fullmatch(rb'("(?:[^"\\]|\\.)*"|[^ ]*) ("(?:[^"\\]|\\.)*"|.*)', rest):
        first = (_unquote(quotes[1]), _unquote(quotes[2]))
        if b'"' in (quotes[1][:1], quotes[2][:1]):
            return first
    pairs = [(rest[: m.start()], rest[m.end() :]) for m in re.finditer(rb" ", rest)]
    if moved is not None:
        both = [pair for pair in pairs if pair[0].endswith(moved[0]) and pair[1].endswith(moved[1])]
        return both[0] if both else moved
    for strip in (0, 1):
        for left, right in pairs:
            if left.split(b"/", strip)[strip:] == right.split(b"/", strip)[strip:] != []:
                return left, right
    return pairs[0] if pairs else (rest, rest)


def _unquote(text: bytes) -> bytes:
    """Undo the C quoting of git and GNU diff; unquoted text is returned unchanged.

    Raises:
        PyggmlError: there are other escapes in it. Source: git's quote.c, `unquote_c_style`.
    """
    if not (text.startswith(b'"') and text.endswith(b'"') and len(text) > 1):
        return text
    if not re.fullmatch(rb'(?:[^"\\]|\\(?:[abtnvfr"\\]|[0-3][0-7]{2}))*', text[1:-1], re.DOTALL):
        raise PyggmlError(
            f"the diff names {_printable(text)}, which is not quoted as git does it",
            "Make the patch again with git, or correct the name by hand.",
        )

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([_ESCAPES[escape] if escape in _ESCAPES else int(escape, 8)])

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
