"""What is known not to be right: read strictly, matched exactly, red when it is no longer so."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.matrix.cases import Case, Grid, Run
from pyggml.matrix.expectations import NOT_EXPLAINED, Expectations, read_expectations
from pyggml.matrix.report import document, exit_code, summary
from pyggml.matrix.run import MatrixResult
from pyggml.matrix.run_outcome import Assertion
from pyggml.matrix.verdict import ExpectedVerdict, MatrixRow
from pyggml.matrix.workload import Workload
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.project import Project

from .conftest import CPU
from .test_report import printed

ROOT = Path(__file__).parent.parent.parent
ENTRY = """
[[expected]]
models = ["llama-dense"]
devices = 2
kv = "device"
verdict = "died"
reason = "because"
"""
RUN = replace(CPU, devices=2, split_mode="tensor", kv="device", flash_attn="on", work=Workload())


def read(tmp_path: Path, text: str) -> Expectations:
    path = tmp_path / "matrix.toml"
    path.write_text(text, "utf-8")
    return read_expectations(path)


def row(verdict: str, run: Run = RUN, reason: str = "", expected: ExpectedVerdict | None = None) -> MatrixRow:
    return MatrixRow(Case(run, CPU), verdict, reason, (), 0.1, expected=expected)


def test_an_entry_names_its_rows_exactly(tmp_path: Path) -> None:
    known = read(tmp_path, ENTRY)
    assert known.of(RUN) == ExpectedVerdict("died", "because")
    for other in (
        replace(RUN, model=Path("llama-moe.gguf")),
        replace(RUN, devices=3),
        replace(RUN, split=(1.0, 1.0)),
        replace(RUN, kv="host"),
        replace(RUN, streams=2),
        replace(RUN, schedule="late"),
        replace(RUN, traits="1:pad=512"),
        replace(RUN, races=True),
        replace(RUN, cuda=True),
        replace(RUN, poison=False),
        replace(RUN, work=Workload(prompt=33)),
        replace(RUN, work=Workload(batch=8)),
    ):
        assert known.of(other) is None, other
    assert replace(known, weights="upstream").of(RUN) is None
    assert replace(known, bound=0.1).of(RUN) is None


def test_lists_are_products(tmp_path: Path) -> None:
    text = ENTRY.replace('"llama-dense"', '"a", "b"').replace(
        "2", '[2, 3]\ntensor-split = ["55,45", "1,0.2"]'
    )
    known = read(tmp_path, text + "streams = [1, 4]\nbatch = [0, 16]\n")
    assert len(known.rows) == 2 * 4 * 2 * 2
    for model, split, streams, batch in itertools.product(
        "ab", (None, (55, 45), (1, 0.2)), (1, 4), (None, 16)
    ):
        run = replace(
            RUN, model=Path(f"{model}.gguf"), split=split, streams=streams, work=Workload(batch=batch)
        )
        assert known.of(run) is not None


def test_without_a_file_nothing_is_expected(tmp_path: Path) -> None:
    assert read_expectations(tmp_path / "matrix.toml").of(RUN) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[[", "x = 1\n[["), "unknown key 'x'"),
        (("[[expected]]", "[expected]"), "'expected' must be a list of tables"),
        (("[[expected]]", "[[expected"), "not valid TOML"),
        (("devices", "device"), "entry 1: unknown key 'device'"),
        (('"llama-dense"', '"*"'), "entry 1: models '*' does not name one"),
        (('"llama-dense"', ""), "entry 1: 'models' is empty or names one twice"),
        (('"llama-dense"', '"a", "a"'), "entry 1: 'models' is empty or names one twice"),
        (("models", "#"), "entry 1: 'models' is missing"),
        (("devices = 2", ""), "entry 1: 'devices' is missing"),
        (("devices = 2", 'devices = "2"'), "entry 1: devices '2' is not a whole number"),
        (("devices = 2", "devices = true"), "entry 1: devices True is not a whole number"),
        (("devices = 2", 'tensor-split = "1;2"'), "entry 1: tensor-split '1;2' is not a list of shares"),
        (('kv = "device"', ""), "entry 1: 'kv' is missing"),
        (('kv = "device"', 'kv = "both"'), "entry 1: kv 'both' is unknown"),
        (("devices = 2", "devices = 2\nunified = 1"), "entry 1: unified 1 is not true or false"),
        (('"died"', '"identical"'), "entry 1: 'identical' cannot be expected"),
        (('"because"', '" "'), "entry 1: 'reason' must be a text"),
        (
            ('"because"', f'"because"\n{ENTRY}'),
            "entries 1 and 2 both name llama-dense with split-mode tensor",
        ),
    ],
)
def test_strict(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(PyggmlError) as raised:
        read(tmp_path, ENTRY.replace(*change, 1))
    assert message in raised.value.message
    assert str(tmp_path / "matrix.toml") in raised.value.message
    assert raised.value.hint


def test_models_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    known = read(tmp_path, ENTRY)
    known.check_models(["llama-dense", "llama-moe"])
    with pytest.raises(PyggmlError, match="no model 'llama-dense'\nSimilar: lama-dense"):
        known.check_models(["lama-dense"])


def test_green_as_known_and_red_otherwise() -> None:
    known = ExpectedVerdict("died", "one head", says="GGML_ASSERT(a)")
    as_known = row("died", reason="a.cpp:1: GGML_ASSERT(a) failed", expected=known)
    assert (as_known.bad, as_known.why) == (False, as_known.reason)
    elsewhere = row("died", reason="GGML_ASSERT(b) failed", expected=known)
    assert elsewhere.why == 'GGML_ASSERT(b) failed, but "died" is expected with "GGML_ASSERT(a)": one head'
    for verdict in ("identical", "within"):
        assert row(verdict, expected=known).why == 'right, but "died" is expected: one head'
    for wrong in (elsewhere, *(row(verdict, expected=known) for verdict in ("identical", "refused", "over"))):
        assert wrong.bad and exit_code([as_known, wrong]) == 1
        assert "is expected" in printed(as_known, wrong)
    assert not replace(elsewhere, case=replace(elsewhere.case, judged=False)).bad


def test_what_is_as_expected_is_counted_with_its_reason_once() -> None:
    known = ExpectedVerdict("over", "slopes", at="ops.cpp:7")
    rows = [row("over", replace(RUN, kv=kv), expected=known) for kv in ("device", "host")]
    assert "2 over the bound as expected: slopes (ops.cpp:7): llama-dense\n" in printed(*rows)
    result = MatrixResult(Grid("this"), (*rows, row("within")), 3, 1.0)
    assert summary(result).endswith("2 rows as expected, nothing else is wrong")
    told = document(result)
    assert told["ok"]
    expected = {"verdict": "over", "reason": "slopes", "at": "ops.cpp:7", "says": ""}
    assert told["expected"] == [{**expected, "rows": 2}]
    assert [case["expected"] for case in told["cases"]] == [expected, expected, None]


def test_what_is_written_is_what_was_found(tmp_path: Path) -> None:
    known = read(tmp_path, ENTRY.replace("2", "[2, 3, 4]"))
    expected = known.of(RUN)
    other, gone, new = (replace(RUN, devices=devices) for devices in (3, 4, 5))
    assertion = Assertion("a.cpp", 1, "GGML_ASSERT(x) failed")
    died = replace(row("died", new, "a.cpp:1: GGML_ASSERT(x) failed"), assertion=assertion)
    records = [
        row("died", expected=expected),
        row("over", other, "NMSE 3e-2", expected=expected),
        row("within", gone, expected=expected),
        died,
        replace(row("died", replace(RUN, devices=6)), case=Case(replace(RUN, devices=6), CPU, judged=False)),
        row("unsupported", replace(RUN, devices=7)),
    ]
    after = known.after(records)
    written = read(tmp_path, after.text().decode())
    assert written.rows == after.rows
    assert written.of(RUN) == expected
    assert written.of(other) == ExpectedVerdict("over", NOT_EXPLAINED)
    assert written.of(gone) is None
    assert written.of(new) == ExpectedVerdict(
        "died", f"{NOT_EXPLAINED}: {died.reason}", says="GGML_ASSERT(x) failed"
    )
    assert len(written.rows) == 3
    # Nothing that did not run is forgotten, and a second time nothing changes.
    assert known.after([]).rows == known.rows
    again = [replace(record, expected=written.of(record.case.run)) for record in records]
    assert written.after(again).text() == after.text()


def entries(rows: Sequence[Run], tmp_path: Path) -> list[str]:
    after = read(tmp_path, "").after([row("over", run) for run in rows])
    text = after.text().decode()
    assert read(tmp_path, text).rows == after.rows
    return text.split("[[expected]]\n")[1:]


def test_the_file_is_short(tmp_path: Path) -> None:
    models = [replace(RUN, model=Path(f"{name}.gguf")) for name in ("a", "b")]
    every = [
        replace(run, split=split, devices=devices, kv=kv, work=Workload(prompt=prompt))
        for run in models
        for split, devices in ((None, 2), (None, 3), ((4.0, 1.0), 2), ((0.2, 0.65, 0.15), 3))
        for kv in ("device", "host")
        for prompt in (32, 64)
    ]
    assert entries(every, tmp_path) == [
        'models = ["a", "b"]\nsplit-mode = "tensor"\ndevices = [2, 3]\ntensor-split = ["4,1", "0.2,0.65,0.15"]\n'
        'kv = ["device", "host"]\nkv-type = "f16"\nprompt = [32, 64]\nverdict = "over"\n'
        f'reason = "{NOT_EXPLAINED}"\n'
    ]
    assert len(entries(every[:-1], tmp_path)) in (2, 3, 4)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("patches/*/matrix.toml")), ids=lambda path: path.parent.name
)
def test_the_projects_own_files_are_valid_and_explained(path: Path) -> None:
    known = read_expectations(path)
    assert not [one for one in known.rows.values() if one.reason.startswith(NOT_EXPLAINED)]


@pytest.mark.native
def test_the_command(pyggml_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml.cli import matrix

    shape = ModelShape(embd=64, k_size=16, ff=96, vocab=300)
    good, bad = (make_llama(shape, tmp_path / f"{name}-dense.gguf") for name in ("good", "bad"))
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    file = tmp_path / "patches" / pyggml_build.record.pin / "matrix.toml"
    monkeypatch.setattr(matrix, "current_project", lambda: Project(tmp_path))
    monkeypatch.setattr(matrix, "_builds", lambda *options: (pyggml_build, None))
    monkeypatch.setattr(matrix, "_tiny", lambda *options: [good, bad])

    def run(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(matrix.matrix, ["--jobs", "1", "--kv", "device", *options])
        return done.exit_code, done.output

    assert run("--expect", "write")[0] == 1
    assert file.read_text("utf-8").count("[[expected]]") == 2
    status, output = run()
    assert (status, "2 rows as expected, nothing else is wrong" in output) == (0, True), output
    assert run("--expect", "ignore")[0] == 1
    bad.write_bytes(whole)
    status, output = run("--expect", "write")
    assert (status, 'right, but "failed" is expected' in output) == (1, True), output
    assert "[[expected]]" not in file.read_text("utf-8")
    file.write_text(ENTRY, "utf-8")
    assert "no model 'llama-dense'" in str(CliRunner().invoke(matrix.matrix).exception)
    assert "exclude each other" in str(
        CliRunner().invoke(matrix.matrix, ["--model", str(bad), "--expect", "write"]).exception
    )
