"""The ABI description and the differences between two of them, through the command line too."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyggml.builder.record import Build
from pyggml.cli.abi import abi
from pyggml.errors import UsageError
from pyggml.native.abi import AbiChange, describe, diff_abi, read_abi
from pyggml.native.declarations import declare
from pyggml.native.preprocess import Line, Preprocessed

HEADER = """\
enum kind { KIND_A = 1, KIND_B, KIND_C };
struct thing { int32_t a; int64_t b; char c; };
struct flags { unsigned x : 3; unsigned y : 5; };
union both { int32_t i; double d; };
struct dev_i { int (*open)(int); void *data; void (*close)(struct thing *t); };
typedef bool (*callback_t)(int n, void *data);
int f(int a, struct thing *t);
void g(const char name[64]);
"""


def described(text: str = HEADER, **macros: str) -> dict[str, Any]:
    lines = tuple(Line("h.h", line) for line in text.splitlines())
    return describe(declare(Preprocessed(lines, macros)), "v", "p")


def changes(before: str, after: str) -> list[AbiChange]:
    assert before in HEADER
    return list(diff_abi(described(), described(HEADER.replace(before, after))))


def test_description_holds_sizes_offsets_slots_and_values() -> None:
    made = described(LIMIT="4 * 4")
    assert made["structs"]["struct thing"] == {
        "size": 24,
        "align": 8,
        "fields": [
            {"name": "a", "offset": 0, "type": "int32_t"},
            {"name": "b", "offset": 8, "type": "int64_t"},
            {"name": "c", "offset": 16, "type": "char"},
        ],
    }
    assert made["structs"]["union both"]["size"] == 8
    assert made["structs"]["struct flags"]["fields"][1]["bits"] == [3, 5]
    assert made["vtables"] == {"struct dev_i": ["open", "close"]}
    assert made["enums"]["enum kind"] == {"KIND_A": 1, "KIND_B": 2, "KIND_C": 3}
    assert made["functions"]["f"] == {"header": "h.h", "type": "int (int, struct thing *)"}
    assert made["constants"] == {"LIMIT": 16}


def test_the_same_has_no_difference() -> None:
    assert diff_abi(described(), described()) == ()


def test_renamed_parameters_and_moved_declarations_are_no_difference() -> None:
    assert changes("int f(int a, struct thing *t);", "int f(int other, struct thing *that);") == []


def test_a_new_field_shows_both_offsets_of_what_it_moves() -> None:
    assert changes("int64_t b; char c;", "int64_t n; int64_t b; char c;") == [
        AbiChange("struct", "struct thing", "changed", "b", "offset 8, int64_t", "offset 16, int64_t"),
        AbiChange("struct", "struct thing", "changed", "c", "offset 16, char", "offset 24, char"),
        AbiChange("struct", "struct thing", "added", "n", None, "offset 8, int64_t"),
        AbiChange("struct", "struct thing", "changed", None, "24 bytes in all", "32 bytes in all"),
    ]


def test_a_type_of_the_same_size_is_a_difference() -> None:
    assert [(one.member, one.after) for one in changes("int64_t b;", "uint64_t b;")] == [
        ("b", "offset 8, uint64_t")
    ]


def test_a_new_slot_moves_the_slots_after_it() -> None:
    found = [
        one
        for one in changes("void *data; void (*close)", "int (*flush)(int); void *data; void (*close)")
        if one.section == "vtable"
    ]
    assert found == [
        AbiChange("vtable", "struct dev_i", "changed", "close", "slot 1", "slot 2"),
        AbiChange("vtable", "struct dev_i", "added", "flush", None, "slot 1"),
    ]


def test_a_new_enumerator_shows_the_values_it_moves() -> None:
    found = [(one.member, one.before, one.after) for one in changes("KIND_B,", "KIND_X, KIND_B,")]
    assert found == [("KIND_B", "2", "3"), ("KIND_C", "3", "4"), ("KIND_X", None, "2")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("void g(const char name[64]);", "", ("function", "g", "removed")),
        ("int f(int a,", "long f(int a,", ("function", "f", "changed")),
        ("void g(const", "int h(void);\nvoid g(const", ("function", "h", "added")),
        ("callback_t)(int n,", "callback_t)(long n,", ("typedef", "callback_t", "changed")),
        ("union both { int32_t i; double d; };", "", ("struct", "union both", "removed")),
    ],
)
def test_functions_typedefs_and_structs_as_a_whole(
    before: str, after: str, expected: tuple[str, str, str]
) -> None:
    (found,) = changes(before, after)
    assert (found.section, found.name, found.what) == expected


def test_the_description_agrees_with_the_compiler(tiny: Build) -> None:
    made = read_abi(tiny.directory)
    assert made["structs"]["struct ggml_backend_meta_split_state"]["size"] == 8 + 8 * 256 + 4 * 16 + 8
    assert made["vtables"]["struct ggml_backend_i"] == ["get_name", "free", "synchronize"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe"])
def test_a_file_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "abi.json").write_bytes(content)
    with pytest.raises(UsageError, match="not an ABI description"):
        read_abi(tmp_path / "abi.json")


def test_a_build_without_one_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_abi(tmp_path)
    assert "pyggml build" in str(caught.value)


def test_cli_diff_lists_and_exits_as_diff_does(tiny: Build, tmp_path: Path) -> None:
    same = CliRunner().invoke(abi, ["diff", str(tiny.directory), str(tiny.directory)])
    assert (same.exit_code, same.output) == (0, "no difference\n")
    changed = copy.deepcopy(read_abi(tiny.directory))
    changed["structs"]["struct ggml_tensor"]["fields"][1]["offset"] = 16
    del changed["functions"]["ggml_old"]
    (tmp_path / "b.json").write_text(json.dumps(changed))
    different = CliRunner().invoke(abi, ["diff", str(tiny.directory), str(tmp_path / "b.json")])
    assert different.exit_code == 1
    assert different.output.splitlines() == [
        "- function ggml_old: int (void)",
        "~ struct ggml_tensor: ne: offset 8, int64_t[4] -> offset 16, int64_t[4]",
    ]
    document = json.loads(
        CliRunner().invoke(abi, ["diff", str(tiny.directory), str(tmp_path / "b.json"), "--json"]).stdout
    )
    assert [one["member"] for one in document["changes"]] == [None, "ne"]


def test_cli_show(tiny: Build) -> None:
    shown = CliRunner().invoke(abi, ["show", str(tiny.directory)])
    assert shown.exit_code == 0
    assert f"struct ggml_tensor: {8 + 32 + 64 + 8 + 64} bytes" in shown.output
    assert "left out: function ggml_inline" in shown.output
    document = json.loads(CliRunner().invoke(abi, ["show", os.fspath(tiny.directory), "--json"]).stdout)
    assert document["enums"]["enum ggml_log_level"]["GGML_LOG_LEVEL_CONT"] == 5
