"""How many leading components of a patch's paths are no part of them: the `-p` that it was made for.

`git diff` writes `a/src/x.c b/src/x.c`; with `--no-prefix` it writes `src/x.c src/x.c`, and other tools write
`old/src/x.c` or no prefix. Read with the wrong number, a new file is made in the wrong place without any error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import FileDiff, HeaderNames, header_names, parse_diff, path_text
from pyggml.series.patchfile.mail import NamedPatch

Kind = Callable[[str], str | None]
"""What a path is in the tree that the patch is for: `blob`, `tree`, or None if there is nothing."""


def patch_diffs(patch: NamedPatch, kind: Kind) -> tuple[FileDiff, ...]:
    """The diffs of a patch with the paths that they have in the tree: its prefix taken off, its directory in front.

    Raises:
        PyggmlError: the paths can be read in several ways, or the diff is malformed.
    """
    below = f"{patch.directory}/" if patch.directory else ""
    strip = patch_strip(patch, kind)
    return tuple(diff.under(below.encode()) for diff in parse_diff(patch.mail.diff, strip))


def patch_strip(patch: NamedPatch, kind: Kind) -> int:
    """As `find_strip`, for a patch; what it says itself counts first."""
    if patch.strip is not None:
        return patch.strip
    below = f"{patch.directory}/" if patch.directory else ""
    return find_strip(patch.mail.diff, lambda path: kind(f"{below}{path}"), patch.usual_strip)


def find_strip(diff: bytes, kind: Kind, usual: int | None = None) -> int:
    """The number of leading components to drop, as `patch -p`.

    What the headers say counts first: two names that differ in their first component have a prefix, two equal
    ones in a `diff --git` line have none, and a name without a slash cannot have any. Where they say nothing, the
    files that the tree has decide, if they leave one answer.

    Args:
        usual: taken if neither decides; without it such a patch is refused.

    Raises:
        PyggmlError: the paths can be read in several ways, or the files disagree.
    """
    headers = header_names(diff)
    stated = {strip for names in headers for strip in _stated(names)}
    if len(stated) > 1:
        raise PyggmlError(
            f"some of its paths have a prefix such as a/ and others have none: {_examples(headers)}",
            "Make the patch again with git format-patch, or split the file and import each part with -p N.",
        )
    if stated:
        return stated.pop()
    answers = [answer for names in headers if (answer := _fitting(names, kind)) is not None]
    fitting = set.intersection({0, 1}, *answers)
    if len(fitting) == 1:
        return fitting.pop()
    if usual is not None or not answers or not fitting:
        # If nothing fits, placing the hunks says which file is missing.
        return 1 if usual is None else usual
    raise PyggmlError(
        f"its paths can be read with a prefix and without one: {_examples(headers)}",
        "Say which with -p 1 (the first component is a prefix) or -p 0 (it is not).",
    )


def _stated(names: HeaderNames) -> Iterable[int]:
    """What the header alone says: one number, or none."""
    if names.both is not None and names.moved is not None:
        drops = {_dropped(long, short) for long, short in zip(names.both, names.moved, strict=True)}
        return [strip for strip in drops if strip is not None]
    left, right = names.both or (names.old, names.new)
    known = [name for name in (left, right) if name is not None]
    if any(b"/" not in name for name in known):
        return [0]
    if all(name.startswith(b"./") for name in known):
        return [1]
    if left is None or right is None:
        return []
    if left == right:
        return [0] if names.both is not None else []
    if left.split(b"/", 1)[1] == right.split(b"/", 1)[1]:
        return [1]
    return []


def _dropped(long: bytes, short: bytes) -> int | None:
    """How many components `long` has in front of `short`; None if it is another path."""
    if long == short:
        return 0
    return long.removesuffix(short).count(b"/") if long.endswith(b"/" + short) else None


def _fitting(names: HeaderNames, kind: Kind) -> set[int] | None:
    """The numbers with which the tree has the file that is changed; both for one that is made.

    None if the file is to be changed, but is not there.
    """
    pair = names.both or (names.old, names.new)
    known = [name for name in pair if name is not None]
    paths = [(strip, path) for strip in (0, 1) for name in known if (path := _without(name, strip))]
    there = {strip for strip, path in paths if kind(path_text(path)) == "blob"}
    if there and not (names.creates and names.both):
        return there
    if not names.creates:
        return None
    # A new file can be meant anywhere, unless its directory can only be git's prefix.
    usual = all(name.startswith((b"a/", b"b/")) and kind(path_text(name[:1])) is None for name in known)
    return {1} if usual else {0, 1}


def _without(name: bytes, strip: int) -> bytes | None:
    parts = name.split(b"/", strip)
    return parts[strip] if len(parts) > strip else None


def _examples(headers: Iterable[HeaderNames]) -> str:
    pairs = (names.both or (names.old, names.new) for names in headers)
    seen = dict.fromkeys(name for pair in pairs for name in pair if name is not None)
    return ", ".join(repr(name.decode("utf-8", "backslashreplace")) for name in [*seen][:3])
