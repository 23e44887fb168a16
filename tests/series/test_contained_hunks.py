"""Which hunks a newer file has already: the quick check before a merge never changes the answer."""

from __future__ import annotations

import difflib
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.placement import patched
from pyggml.series.rebasing.contained_hunks import contained_hunks, merge_contents

LINE = st.sampled_from(["a\n", "b\n", "c\n", "}\n", "\n"])
BASE = [f"line {n}\n" for n in range(12)]


@st.composite
def edited(draw: st.DrawFn) -> list[str]:
    lines = list(BASE)
    for at in draw(st.lists(st.sampled_from([2, 8]), unique=True)):
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
    return lines


@given(edited(), edited())
@settings(max_examples=40, deadline=None)
def test_a_hunk_is_there_if_merging_it_alone_changes_nothing(ours: list[str], theirs: list[str]) -> None:
    old, now = "".join(BASE).encode(), "".join(ours).encode()
    diffs = parse_diff("".join(difflib.unified_diff(BASE, theirs, "a/f", "b/f", n=1)).encode())
    hunks = [(diff, hunk) for diff in diffs for hunk in diff.hunks]
    wanted = tuple(
        number
        for number, (diff, hunk) in enumerate(hunks, 1)
        if old != now and (merge_contents(old, now, patched(replace(diff, hunks=(hunk,)), old)) == now)
    )
    assert contained_hunks(diffs, lambda path: old, lambda path: now, {}) == wanted
