"""The worst first, exit codes, and the document for programs."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pyggml.matrix.cases import Case, Grid
from pyggml.matrix.report import document, exit_code, ordered, print_result, shown, summary
from pyggml.matrix.run import MatrixResult
from pyggml.matrix.verdict import BAD, VERDICTS, MatrixRow, RowCheck

from .conftest import ON_DEVICES, REFERENCE


def row(verdict: str, name: str = "llama-dense", case: Case = ON_DEVICES, **options: object) -> MatrixRow:
    model = Path(f"{name}.gguf")
    run = replace(case.run, model=model)
    cpu = None if case.cpu is None else replace(case.cpu, model=model)
    reason = str(options.pop("reason", f"because {verdict}" if verdict in BAD else ""))
    return MatrixRow(Case(run, cpu, None, case.judged), verdict, reason, (), 0.1, **options)  # type: ignore[arg-type]


def printed(*records: MatrixRow, everything: bool = False) -> str:
    console = Console(file=io.StringIO(), width=500)
    with console.capture() as captured:
        print_result(MatrixResult(Grid("this"), records, len(records), 1.0), console, everything)
    return captured.get()


def test_the_worst_comes_first() -> None:
    rows = [row(verdict) for verdict in (*VERDICTS[1::2], *VERDICTS[::2])]
    assert [record.verdict for record in ordered(rows)] == list(VERDICTS)
    assert VERDICTS[: len(BAD)] == BAD


def test_rows_of_one_kind_keep_their_order() -> None:
    rows = [row("died", "b"), row("within", "c"), row("died", "a")]
    assert [record.case.run.name for record in ordered(rows)] == ["b", "a", "c"]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_exit_code(verdict: str) -> None:
    assert exit_code([row("identical"), row(verdict)]) == int(verdict in BAD)
    assert exit_code([row(verdict, case=replace(ON_DEVICES, judged=False))]) == 0


def test_only_what_is_wrong_is_listed_unless_all_is_asked_for() -> None:
    rows = [row(verdict, f"model-{verdict}") for verdict in VERDICTS]
    assert [record.verdict for record in shown(rows, False)] == list(BAD)
    assert len(shown(rows, True)) == len(VERDICTS)
    text = printed(*rows)
    assert "model-died" in text and "model-identical" not in text
    assert "1 died" in text and "1 identical" in text
    assert "model-identical" in printed(*rows, everything=True)


def test_what_fails_on_the_cpu_already_is_one_row() -> None:
    rows = [row("failed", case=REFERENCE, reason="damaged"), row("failed", reason="damaged")]
    assert [record.case.run.devices for record in shown(rows, False)] == [0]
    assert exit_code(rows[1:]) == 1
    rows[1] = replace(rows[1], reason="another")
    assert len(shown(rows, False)) == 2


def test_unsupported_ones_are_grouped_by_reason() -> None:
    rows = [
        row("unsupported", f"{name}-dense", reason=f"not implemented for architecture '{name}'")
        for name in ("mamba", "grok")
    ]
    assert "2 unsupported: not implemented for architecture: mamba-dense, grok-dense" in printed(*rows)


def test_models_that_do_not_look_at_their_cache_are_named() -> None:
    text = printed(row("within", "dull", sensitivity=1e-14), row("within", "fine", sensitivity=0.1))
    assert "1 model hardly depends on earlier tokens" in text
    assert "dull" in text.partition("hardly")[2] and "fine" not in text.partition("hardly")[2]


def test_refused_layouts_are_grouped_and_pairs_that_cannot_be_are_told() -> None:
    grid = Grid("this", streams=(2, 4), unified=(True, False), layouts=("one", "per-stream"))
    record = row("refused", "deepseek4-moe", reason="llama_kv_cache_dsv4 has no kv_per_stream layout")
    console = Console(file=io.StringIO(), width=500)
    with console.capture() as captured:
        print_result(MatrixResult(grid, (record,), 1, 1.0), console)
    assert "1 refused: llama_kv_cache_dsv4 has no kv_per_stream layout: deepseek4-moe" in captured.get()
    assert (
        "not run: per-stream with a unified cache of 2, 4 sequences, which has one stream" in captured.get()
    )
    assert exit_code([record]) == 0


def test_reasons_are_counted_when_there_are_many() -> None:
    rows = [row("died", f"m{number}", reason="a.cpp:1: GGML_ASSERT(x) failed") for number in range(6)]
    assert "6 times a.cpp:1: GGML_ASSERT(x) failed" in printed(*rows)


def test_brackets_in_reasons_are_text() -> None:
    assert "GGML_ASSERT(a[i] == [/b]) failed" in printed(
        row("died", reason="GGML_ASSERT(a[i] == [/b]) failed")
    )


def test_the_last_line() -> None:
    def last(*records: MatrixRow) -> str:
        return summary(MatrixResult(Grid("this"), records, 2, 61.0))

    assert last(row("reference", case=REFERENCE), row("within")).endswith(
        "1 row, 2 runs in 61 s: nothing is wrong"
    )
    assert last(row("died"), row("within")).endswith("1 bad row")
    assert last(row("unsupported")).endswith("nothing could be compared")


def test_the_document_is_json_whatever_happened() -> None:
    endless = replace(row("over"), checks=(RowCheck("cpu", "over", nmse=float("inf")),))
    rows = [row("identical"), endless, row("died", case=replace(ON_DEVICES, judged=False))]
    found = json.loads(json.dumps(document(MatrixResult(Grid("this"), tuple(rows), 3, 1.0)), allow_nan=False))
    assert not found["ok"]
    assert found["counts"] == {"over": 1, "identical": 1}
    assert [case["verdict"] for case in found["cases"]] == ["died", "over", "identical"]
    assert found["cases"][1]["checks"][0]["nmse"] is None
    for case in found["cases"]:
        assert (case["devices"], case["split_mode"], case["kv"], case["kv_type"]) == (
            2,
            "tensor",
            "device",
            "f16",
        )


def test_every_verdict_can_be_printed_beside_another_build() -> None:
    for verdict, checked in itertools.product(VERDICTS, VERDICTS):
        record = replace(row(verdict), checks=(RowCheck("other", checked),))
        console = Console(file=io.StringIO(), width=500)
        grid = Grid("this", against="other")
        print_result(MatrixResult(grid, (record,), 1, 1.0), console, everything=True)
        assert f"{verdict} " in console.file.getvalue()  # type: ignore[attr-defined]
