"""Placement of hunks against an independent computation: difflib makes the diffs, plain lists check them."""

from __future__ import annotations

import contextlib
import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import check_path, parse_diff
from pyggml.series.patchfile.placement import find_places, patched, place

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"}\n", b"    return x;\n"]), max_size=30)


def unified(old: list[bytes], new: list[bytes], context: int = 3) -> bytes:
    text = difflib.unified_diff([x.decode() for x in old], [x.decode() for x in new], "a/f", "b/f", n=context)
    return "".join(text).encode()


@given(LINES, LINES, st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_a_diff_at_its_stated_lines_gives_the_new_file(
    old: list[bytes], new: list[bytes], context: int
) -> None:
    diffs = parse_diff(unified(old, new, context))
    if old == new:
        assert diffs == ()
        return
    exact, where = place(diffs[0], b"".join(old))
    assert patched(exact, b"".join(old)) == b"".join(new)
    assert all(p.offset == 0 for p in where)


@given(LINES, st.integers(0, 29), LINES)
@settings(max_examples=300, deadline=None)
def test_a_moved_hunk_is_placed_only_where_it_is_certain(
    old: list[bytes], at: int, above: list[bytes]
) -> None:
    """Lines inserted above move the hunk: the answer is the true place, or a refusal where there are several."""
    if not old:
        return
    at %= len(old)
    new = [*old[:at], b"changed\n", *old[at + 1 :]]
    (diff,) = parse_diff(unified(old, new))
    moved = [*above, *old]
    wanted = diff.hunks[0].old_lines()
    true = len(above) + diff.hunks[0].old_start - 1
    places = [i for i in range(len(moved) - len(wanted) + 1) if moved[i : i + len(wanted)] == wanted]
    assert find_places(moved, wanted) == places
    stated = diff.hunks[0].old_start - 1
    try:
        exact, where = place(diff, b"".join(moved))
    except PyggmlError as error:
        assert len(places) > 1 and stated not in places
        assert f"fits in {len(places)} places" in error.message
        return
    assert where[0].actual - 1 in places
    if stated not in places:
        assert places == [true]
        assert patched(exact, b"".join(moved)) == b"".join([*above, *new])


def test_a_hunk_behind_one_that_moved_is_not_trusted_by_its_line() -> None:
    """git apply would take the nearest of the twins; after a move the stated line says nothing."""
    old = [b"head\n", *(b"x%d\n" % n for n in range(8)), *[b"t\n"] * 9]
    new = [*old]
    new[4] = b"X\n"
    new[13] = b"T\n"
    (diff,) = parse_diff(unified(old, new, 1))
    assert len(diff.hunks) >= 2
    with pytest.raises(PyggmlError, match=r"hunk 2 .* fits in"):
        place(diff, b"".join([b"new\n", *old]))


def test_hunks_without_newline_at_the_end() -> None:
    no_newline = b"\\ No newline at end of file\n"
    diff = b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n" + no_newline + b"+c\n" + no_newline
    exact, _ = place(parse_diff(diff)[0], b"a\nb")
    assert patched(exact, b"a\nb") == b"a\nc"
    with pytest.raises(PyggmlError, match="the file ends with a newline, and the patch says otherwise"):
        place(parse_diff(diff)[0], b"a\nb\n")


@pytest.mark.parametrize(
    "path",
    [b"/x", b"../x", b"a/../x", b"a//x", b"./x", b".git/x", b"a/.GIT/x", b".git. /x", b"GIT~1/x", b"a\0b"],
)
def test_paths_that_leave_the_tree(path: bytes) -> None:
    with pytest.raises(PyggmlError):
        check_path(path)


@pytest.mark.parametrize(
    "path", [b"a", b"a/b", b".gitignore", b".github/x", b"a b", "ä".encode(), b"..x/y", b"git"]
)
def test_paths_inside_the_tree(path: bytes) -> None:
    check_path(path)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_noise_is_parsed_or_refused_but_never_crashes(noise: bytes) -> None:
    for data in (noise, b"diff --git a/x b/x\n" + noise, b"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n" + noise):
        with contextlib.suppress(PyggmlError):
            parse_diff(data)
