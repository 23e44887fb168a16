"""The three-way merge of series.toml: which entries come out, in which order, and what is a conflict."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.series.stack.series_merge import merge_series

HEAD = '# The patches.\npin = "one"\nbase = "b"\n'


def entry(name: str, number: int, **keys: str) -> str:
    said = "".join(f'{key} = "{value}"\n' for key, value in ({"purpose": "", "drop-when": ""} | keys).items())
    tree = f"{abs(hash((name, number))):040x}"[:40]
    return f'\n[[patch]]\nname = "{name}"\nfile = "{number:04d}-{name}.patch"\n{said}tree = "{tree}"\n'


def series(names: str, head: str = HEAD, **keys: dict[str, str]) -> str:
    """A series of patches with names of one letter."""
    return head + "".join(entry(name, n, **keys.get(name, {})) for n, name in enumerate(names, 1))


def names(text: str) -> str:
    return "".join(patch["name"] for patch in tomllib.loads(text).get("patch", []))


def clean(base: str, ours: str, theirs: str) -> str:
    merged = merge_series(base, ours, theirs)
    assert not merged.conflict, merged.text
    return merged.text


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "wanted"),
    [
        ("abc", "abc", "abc", "abc"),
        ("abc", "abcx", "abc", "abcx"),
        ("abc", "abcx", "abcy", "abcxy"),
        ("abc", "abcxw", "abcyz", "abcxwyz"),
        ("abc", "xabc", "yabc", "xyabc"),
        ("abc", "axbc", "abyc", "axbyc"),
        ("abc", "axbc", "aybc", "axybc"),
        ("abc", "ac", "abcy", "acy"),
        ("abc", "ac", "abyc", "ayc"),
        ("abc", "ac", "ab", "a"),
        ("abc", "", "abc", ""),
        ("abc", "cab", "abc", "cab"),
        ("abc", "abc", "acb", "acb"),
        ("abcd", "bacd", "abdc", "badc"),
        ("abcd", "bacd", "bacd", "bacd"),
        ("abcd", "dabc", "abcdy", "dabcy"),
        ("abc", "bca", "cab", "cba"),
        ("abcd", "acbd", "ab", "ab"),
        ("", "x", "y", "xy"),
    ],
)  # fmt: skip
def test_the_order(base: str, ours: str, theirs: str, wanted: str) -> None:
    assert names(clean(series(base), series(ours), series(theirs)) if wanted else "patch = []") == wanted
    text = clean(series(base), series(ours), series(theirs))
    assert text.startswith(HEAD) and text.endswith("\n") and text.count("[[patch]]") == len(wanted)


def test_each_key_by_itself() -> None:
    base = series("ab", a={"purpose": "p", "drop-when": "d"})
    text = clean(
        base, series("ab", a={"purpose": "P", "drop-when": "d"}), series("ab", a={"purpose": "p", "drop-when": "D"})
    )  # fmt: skip
    assert text == series("ab", a={"purpose": "P", "drop-when": "D"})
    more = series("ab", a={"purpose": "p", "drop-when": "d", "fails-with": "x"})
    text = clean(base, series("ab", a={"purpose": "P", "drop-when": "d"}), more)
    assert tomllib.loads(text)["patch"][0]["fails-with"] == "x"
    assert tomllib.loads(text)["patch"][0]["purpose"] == "P"


def test_a_conflict_is_marked_where_it_is() -> None:
    base = series("abc")
    ours, theirs = series("abcx", b={"purpose": "mine"}), series("abcy", b={"purpose": "yours"})
    merged = merge_series(base, ours, theirs)
    assert merged.conflict and merged.text.count("<<<<<<< ours") == 1
    before, rest = merged.text.split("<<<<<<< ours\n")
    mine, rest = rest.split("=======\n")
    yours, after = rest.split(">>>>>>> theirs\n")
    assert names(before) == "a" and names(after) == "cxy"
    assert '"mine"' in mine and '"yours"' in yours
    # Either side alone gives a valid file.
    assert names(before + mine + after) == names(before + yours + after) == "abcxy"


def test_removed_on_one_side_and_changed_on_the_other() -> None:
    base, changed = series("abc"), series("abc", b={"purpose": "new"})
    for ours, theirs in ((series("ac"), changed), (changed, series("ac"))):
        merged = merge_series(base, ours, theirs)
        assert merged.conflict and 'name = "b"' in merged.text
        left = [line for line in merged.text.splitlines() if not line.startswith(("<<<", "===", ">>>"))]
        assert names("\n".join(left)) == "abc"


def test_orders_that_do_not_go_together() -> None:
    """Patch b moves up on one side and down on the other."""
    merged = merge_series(series("zabcy"), series("zbacy"), series("zacby"))
    assert merged.conflict
    before, rest = merged.text.split("<<<<<<< ours\n")
    mine, rest = rest.split("=======\n")
    yours, after = rest.split(">>>>>>> theirs\n")
    assert names(before + mine + after) == "zbacy" and names(before + yours + after) == "zacby"


def test_two_patches_that_both_sides_call_the_same() -> None:
    base, ours = series("a"), series("ax")
    other = series("ab") + entry("x", 3, purpose="another")
    text = clean(base, ours, other)
    assert names(text) == "axbx"
    assert [p["file"] for p in tomllib.loads(text)["patch"]][1::2] == ["0002-x.patch", "0003-x.patch"]
    assert merge_series(base, ours, series("ax", x={"purpose": "another"})).conflict
    assert clean(base, ours, series("ax")) == series("ax")


def test_comments_stay_with_their_entries() -> None:
    ours = series("ab").replace('[[patch]]\nname = "b"', '# why b\n[[patch]]  # here\nname = "b"')
    theirs = series("ab", b={"purpose": "new"}).replace("# The patches.", "# Our patches.")
    text = clean(series("ab"), ours, theirs)
    assert "# why b\n[[patch]]  # here\nname" in text and text.startswith("# Our patches.\n")
    assert tomllib.loads(text)["patch"][1]["purpose"] == "new"
    assert clean(series("ab"), theirs, ours) == text
    other = series("ab").replace('[[patch]]\nname = "b"', '# because\n[[patch]]\nname = "b"')
    assert merge_series(series("ab"), ours, other).conflict


def test_the_head_of_the_file() -> None:
    closed = HEAD + 'closed = "done"\n'
    assert clean(series("a"), series("ab"), series("a", closed)) == series("ab", closed)
    merged = merge_series(series("a"), series("ab", HEAD.replace('"b"', '"c"')), series("a", closed))
    assert merged.conflict and names(merged.text.split(">>>>>>> theirs\n")[1]) == "ab"


def test_line_ends_are_those_of_ours() -> None:
    dos = series("abx").replace("\n", "\r\n")
    wanted = series("abxy")
    text = clean(series("ab"), dos, series("aby"))
    assert text == text.replace("\r\n", "\n").replace("\n", "\r\n")
    assert names(text) == names(wanted)
    assert "\r" not in clean(series("ab"), series("abx"), series("aby").replace("\n", "\r\n"))


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< ours\n" + series("a"),
        HEAD + 'patch = [{name = "a"}]\n',
        series("a", head='text = """\n[[patch]]\n"""\n'),
        series("a") + "[other]\nkey = 1\n",
        HEAD + "[[patch]]\nname = 1\n",
    ],
)
def test_what_cannot_be_taken_apart(text: str) -> None:
    with pytest.raises(ValueError):
        merge_series(text, series("a"), series("b"))


def sides(added: str) -> st.SearchStrategy[str]:
    """What one side makes of the patches abcde: some removed, some moved, some of its own anywhere."""
    return st.lists(st.sampled_from("abcde" + added), unique=True).map("".join)


@settings(max_examples=60, deadline=None)
@given(ours=sides("xyz"), theirs=sides("uvw"))
def test_any_two_sides(ours: str, theirs: str) -> None:
    base = "abcde"
    merged = merge_series(series(base), series(ours), series(theirs))
    text = merged.text
    assert merge_series(series(base), series(ours), series(base)).text == (series(ours) if ours else HEAD)
    assert merge_series(series(base), series(base), series(theirs)).text == (
        series(theirs) if theirs else HEAD
    )
    wanted = {name for name in ours + theirs if name not in base or (name in ours and name in theirs)}
    if merged.conflict:
        before, rest = text.split("<<<<<<< ours\n")
        mine, rest = rest.split("=======\n")
        yours, after = rest.split(">>>>>>> theirs\n")
        results = [names(before + mine + after), names(before + yours + after)]
        assert results[0] != results[1]
    else:
        results = [names(text)]
    for result in results:
        assert len(result) == len(wanted) and set(result) == wanted
        for one in wanted:
            for two in wanted - {one}:
                said = {
                    side.index(one) < side.index(two)
                    for side in (ours, theirs)
                    if one in side and two in side
                }
                if said == {True} and one in base and two in base:
                    assert result.index(one) < result.index(two)
                if said == {True} and two not in base:  # an addition is above all that it was made on
                    assert result.index(one) < result.index(two)
