"""The ledger in Python: lines and arrays in, filtered, summed and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.native.ledger import KINDS, REFUSED, Ledger, LedgerDifference, LedgerRecord, record_dtype

HEADER = {"pyggml_vdev_ledger": 1, "devices": ["A", "B"]}


def line(kind: str, tensor: str = "", device: str = "A", **more: Any) -> dict[str, Any]:
    base = {"sequence": 0, "bytes": 0, "rows": 1, "offset": 0, "stride": 0, "split": 0, "flags": 0}
    return {"kind": kind, "tensor": tensor, "device": device, **base, **more}


def write(path: Path, *entries: dict[str, Any], end: bytes = b"\n") -> Path:
    path.write_bytes(b"\n".join(json.dumps(e, ensure_ascii=False).encode() for e in entries) + end)
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.read(
        write(
            tmp_path / "l",
            HEADER,
            line("alloc", bytes=1000, sequence=0),
            line("set", "blk.0.w", bytes=10, sequence=1),
            line("set", "blk.1.w", "B", bytes=20, sequence=2, flags=1),
            line("set_2d", "cache_k_l1", "B", bytes=64, rows=4, offset=8, stride=32, sequence=3),
            line("compute", "out", "B", rows=9, sequence=4),
            line("cpy", "out", "A", peer="B", bytes=5, sequence=5, split=1),
            line("cpy", "out", "A", peer="B", bytes=500, sequence=6, split=1, flags=REFUSED),
        )
    )


def test_a_line_becomes_a_record_with_every_field(ledger: Ledger) -> None:
    assert ledger.devices == ("A", "B")
    assert len(ledger) == 7
    assert ledger.records()[3] == LedgerRecord(
        3, "set_2d", "B", None, "cache_k_l1", 64, 4, 8, 32, 0, False, False, False
    )
    assert ledger.records()[5].peer == "B"
    assert ledger.records()[2].asynchronous
    assert [r.refused for r in ledger] == [False] * 6 + [True]


def test_filters_combine(ledger: Ledger) -> None:
    assert ledger.filter(kind="set").column("sequence").tolist() == [1, 2]
    assert ledger.filter(kind=("set", "set_2d"), device="B").column("sequence").tolist() == [2, 3]
    assert ledger.filter(device=1, name=r"^cache_[kv]").column("sequence").tolist() == [3]
    assert ledger.filter(name="w$").filter(device="A").tensors.tolist() == ["blk.0.w"]
    assert ledger.filter(split=1, refused=False).column("bytes").tolist() == [5]
    assert len(ledger.filter(name="nothing like it")) == 0
    assert len(ledger.filter(kind="free").filter(name="x")) == 0


def test_sums_leave_out_what_did_not_happen(ledger: Ledger) -> None:
    assert ledger.bytes == 1000 + 10 + 20 + 64 + 5
    assert ledger.transfers().bytes == 99
    assert ledger.sums("kind") == {"alloc": 1000, "set": 30, "set_2d": 64, "compute": 0, "cpy": 5}
    assert ledger.sums("device", "kind", of="count")[("A", "cpy")] == 1
    assert ledger.sums("device", of="rows") == {"A": 3, "B": 14}
    assert ledger.sums("peer") == {None: 1094, "B": 5}
    assert ledger.sums("split") == {0: 1094, 1: 5}


def test_diff_names_only_what_differs(tmp_path: Path, ledger: Ledger) -> None:
    other = Ledger.read(
        write(
            tmp_path / "o",
            HEADER,
            line("alloc", bytes=1000),
            line("set", "blk.0.w", bytes=4),
            line("set", "blk.0.w", bytes=6),
            line("set_2d", "cache_k_l1", "B", bytes=64, rows=2),
            line("compute", "out", "B", rows=9),
            line("cpy", "out", "A", peer="B", bytes=5),
            line("get", "new", bytes=3),
        )
    )
    assert ledger.diff(other) == [
        LedgerDifference("set", "A", "blk.0.w", (1, 2), (10, 10)),
        LedgerDifference("set", "B", "blk.1.w", (1, 0), (20, 0)),
        LedgerDifference("get", "A", "new", (0, 1), (0, 3)),
    ]
    assert ledger.diff(ledger) == []


def test_the_array_is_read_only_and_the_callers_stays_writable() -> None:
    array = np.zeros(2, record_dtype())
    ledger = Ledger(array, ("A",))
    with pytest.raises(ValueError, match="read-only"):
        ledger.column("bytes")[0] = 1
    array["bytes"][1] = 7
    assert ledger.bytes == 7


def test_an_array_of_something_else_is_refused() -> None:
    with pytest.raises(PyggmlError, match="not an array of ledger records"):
        Ledger(np.zeros(2, np.float32), ("A",))


def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "l", HEADER, line("set", bytes=1), end=b'\n{"kind":"set","ten')
    assert len(Ledger.read(path)) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b'{"pyggml_vdev_ledger": 1, "devices": []}\n'])
def test_an_empty_file_or_one_without_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "l"
    path.write_bytes(content)
    if content == b"\n":
        with pytest.raises(PyggmlError, match="line 1 is not a line of a ledger"):
            Ledger.read(path)
    else:
        empty = Ledger.read(path)
        assert (len(empty), empty.bytes, empty.records()) == (0, 0, [])
        assert empty.summary().count("\n") == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"text\n",
        b"[1]\n",
        b'{"pyggml_vdev_ledger": 2, "devices": []}\n',
        json.dumps(HEADER).encode() + b'\n{"kind": "teleport"}\n',
        json.dumps(HEADER).encode() + b"\n" + json.dumps(line("set", device="Z")).encode() + b"\n",
        json.dumps(HEADER).encode() + b"\n" + json.dumps(line("set", bytes=-1)).encode() + b"\n",
        json.dumps(HEADER).encode() + b"\n" + json.dumps(line("set", split="x")).encode() + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_a_file_of_something_else_is_refused_by_line(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "l"
    path.write_bytes(bad)
    with pytest.raises(PyggmlError, match=r"line [12] is not a line of a ledger|not a ledger"):
        Ledger.read(path)


def test_a_missing_file_and_unknown_names_say_so(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(PyggmlError, match="cannot read the ledger"):
        Ledger.read(tmp_path / "none")
    with pytest.raises(PyggmlError, match="no kind 'teleport'; there are alloc"):
        ledger.filter(kind="teleport")
    with pytest.raises(PyggmlError, match="no device 'Z'; the ledger has A, B"):
        ledger.filter(device="Z")
    with pytest.raises(PyggmlError, match="not a regular expression"):
        ledger.filter(name="(")
    with pytest.raises(PyggmlError, match="no column 'colour'"):
        ledger.column("colour")


def test_odd_tensor_names_survive(tmp_path: Path) -> None:
    raw = json.dumps(line("set", "NAME")).encode()
    path = tmp_path / "l"
    path.write_bytes(
        json.dumps(HEADER).encode() + b"\n"
        + raw.replace(b"NAME", 'q"\\'.replace("\\", "\\\\").replace('"', '\\"').encode()) + b"\n"
        + raw.replace(b"NAME", b"cut \xc3") + b"\n"
    )  # fmt: skip
    assert Ledger.read(path).tensors.tolist() == ['q"\\', "cut �"]


def test_the_summary_lists_devices_and_kinds_in_order(ledger: Ledger) -> None:
    lines = ledger.summary().splitlines()
    assert [tuple(text.split()[:2]) for text in lines[1:-1]] == [
        ("A", "alloc"), ("A", "set"), ("A", "cpy"), ("B", "set"), ("B", "set_2d"), ("B", "compute"),
    ]  # fmt: skip
    assert lines[-1] == "refused or failed: 1"


def test_kinds_and_layout_are_those_of_the_c_header() -> None:
    header = (Path(__file__).parents[2] / "pyggml/native/vdev/pyggml-vdev.h").read_text("utf-8")
    for number, kind in enumerate(KINDS):
        assert f"PYGGML_VDEV_{kind.upper()}" in header
        assert any(
            text.split(",")[0].split()[-1] == str(number)
            for text in header.splitlines()
            if f" PYGGML_VDEV_{kind.upper()} " in f"{text} "
        )
    assert record_dtype().itemsize == 5 * 8 + 6 * 4 + 64
