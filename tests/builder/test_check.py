"""The check: what upstream's test programs print, and what becomes of it."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.check import (
    Counts,
    Program,
    check_build,
    parse_test_alloc,
    parse_test_llama_archs,
)
from pyggml.builder.record import Build, read_record, write_record
from pyggml.errors import PyggmlError
from tests.builder.test_record import RECORD

HEAD = """\
main: using seed 1
|     Model arch.|  Device|Config|   NMSE vs. CPU|Roundtrip|
|----------------|--------|------|---------------|---------|
"""
OK, FAIL, SKIP = "\x1b[1;32mOK\x1b[0m", "\x1b[1;31mFAIL\x1b[0m", "\x1b[1;33mSKIP\x1b[0m"


def row(first: str, second: str, config: str = "Dense", device: str = "AMD EPYC 9 (x)") -> str:
    return f"|           llama|{device}|{config:>6}|{first:>15} (0.00e+00)|{second:>20}|\n"


def test_archs_counts_rows() -> None:
    text = HEAD + row(OK, OK) + row(SKIP, SKIP, device="Meta") + row(OK, SKIP, "MoE") + row(OK, FAIL, "MoE")
    assert parse_test_llama_archs(text) == Counts(passed=2, failed=1, skipped=1)


def test_archs_failing_number() -> None:
    assert parse_test_llama_archs(HEAD + row(FAIL, OK)).failed == 1
    toggled = "|llama|CPU| Dense|\x1b[1;31mFAIL\x1b[0m (toggle) (1.0e-9)|\x1b[1;32mOK\x1b[0m|\n"
    assert parse_test_llama_archs(toggled).failed == 1


def test_archs_that_dies_in_a_row_names_it() -> None:
    text = HEAD + row(OK, OK) + "|           llama|    Meta|   MoE|"
    assert parse_test_llama_archs(text) == Counts(passed=1, failed=1, skipped=0, broken="llama MoE on Meta")


def test_archs_header_and_noise_are_no_rows() -> None:
    assert parse_test_llama_archs(HEAD + "load: | x | y |\nSummary: all 2 test(s) passed\n") == Counts()


def test_alloc_counts_and_names_the_one_that_died() -> None:
    text = "test_view_inplace PASSED\ntest_merge_free_block(32) PASSED\ntest_reallocation "
    assert parse_test_alloc(text) == Counts(passed=2, failed=1, broken="test_reallocation")
    assert parse_test_alloc("") == Counts()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    record = replace(RECORD, arch=platform.machine(), features=(), targets=("test-alloc",))
    (tmp_path / "b ü" / "bin").mkdir(parents=True)
    write_record(tmp_path / "b ü", record)
    return Build(tmp_path / "b ü", record)


def prints(build: Build, body: str) -> tuple[Program, ...]:
    path = build.bin_dir / "test-alloc"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(0o755)
    return (Program("test-alloc", (), parse_test_alloc),)


PASSES = "print('test_a PASSED'); print('test_b PASSED')"


def test_passing_check_is_remembered_for_these_binaries(build: Build) -> None:
    programs = prints(build, PASSES)
    first = check_build(build, programs=programs)
    assert (first.ok, first.passed, first.failed, first.remembered) == (True, 2, 0, False)
    record = read_record(build.directory)
    assert record is not None
    second = check_build(Build(build.directory, record), programs=prints(build, "sys.exit(1)"))
    assert (second.ok, second.passed, second.remembered, second.tree) == (True, 2, True, "b" * 40)
    again = check_build(Build(build.directory, record), programs=programs, again=True)
    assert not again.ok


def test_check_of_an_edited_tree_is_not_remembered(build: Build) -> None:
    edited = Build(build.directory, replace(build.record, dirty=True))
    write_record(build.directory, edited.record)
    assert check_build(edited, programs=prints(build, PASSES)).ok
    record = read_record(build.directory)
    assert record is not None
    assert record.check is None


@pytest.mark.parametrize(
    ("body", "outcome", "detail"),
    [
        (PASSES + "; sys.exit(3)", "failed", "exit status 3"),
        ("print('test_a PASSED'); print('test_b ', end='', flush=True); "
         "print('x.cpp:7: GGML_ASSERT(n == 1) failed', file=sys.stderr, flush=True); os.abort()",
         "crashed", "signal 6 in test_b: GGML_ASSERT(n == 1) failed"),
        ("pass", "nothing", "it ran no test"),
        ("print('test_a ', end='', flush=True); time.sleep(60)", "timeout", "in test_a"),
    ],
)  # fmt: skip
def test_what_can_go_wrong(build: Build, body: str, outcome: str, detail: str) -> None:
    check = check_build(build, programs=prints(build, body), limit=1.0)
    assert not check.ok
    assert check.programs[0].outcome == outcome
    assert detail in check.programs[0].detail
    assert "\n" not in check.programs[0].detail
    assert Path(check.log).is_file()


LOSES = (
    "runs = os.path.dirname(__file__) + '/runs'; open(runs, 'a').write('x'); number = os.path.getsize(runs)\n"
)
"""Knows which run of the program it is."""


@pytest.mark.parametrize(
    "lost", ["print('test_a PASSED'); print('test_b ', end='')", "print('test_a PASSED'); sys.exit() # Summary: "]
)  # fmt: skip
def test_lost_output_is_no_crash_and_the_program_runs_again(build: Build, lost: str) -> None:
    whole = "print('test_a PASSED'); print('test_b PASSED'); print('Summary: 2')"
    said: list[str] = []
    (program,) = prints(build, f"{LOSES}if number < 3:\n    {lost}\nelse:\n    {whole}")
    check = check_build(build, programs=(replace(program, last="Summary: "),), say=said.append)
    assert (check.ok, check.passed, check.failed) == (True, 2, 0)
    again = "test-alloc exited with 0, but part of its output was lost; running it again"
    assert said == ["running test-alloc", again, again]
    assert Path(check.log).read_text().count("$ ") == 3


def test_output_that_is_lost_each_time_is_said_plainly(build: Build) -> None:
    programs = prints(build, f"{LOSES}print('test_a PASSED'); print('test_b ', end='')")
    check = check_build(build, programs=programs)
    assert not check.ok
    assert (check.programs[0].outcome, check.passed, check.failed) == ("incomplete", 1, 0)
    assert check.programs[0].detail == (
        "exit status 0 in each of 4 runs, but part of the output was lost in test_b"
    )


def test_what_cannot_be_started_is_said(build: Build) -> None:
    programs = prints(build, PASSES)
    (build.bin_dir / "test-alloc").write_text("#!/nonexistent/interpreter\n")
    program = check_build(build, programs=programs).programs[0]
    assert (program.outcome, "cannot start" in program.detail) == ("crashed", True)


def test_programs_get_their_own_libraries_and_short_aborts(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    monkeypatch.setenv("GGML_BACKEND_PATH", "/elsewhere/x.so")
    body = (
        "good = (os.environ['LD_LIBRARY_PATH'] == os.path.dirname(__file__) + ':/elsewhere'"
        " and os.environ['GGML_NO_BACKTRACE'] == '1' and 'GGML_BACKEND_PATH' not in os.environ)\n"
        "print('test_a', 'PASSED' if good else '')"
    )
    assert check_build(build, programs=prints(build, body)).ok


def test_missing_program_fails_and_an_unbuilt_target_is_an_error(build: Build) -> None:
    programs = (Program("test-alloc", (), parse_test_alloc),)
    assert check_build(build, programs=programs).programs[0].outcome == "missing"
    with pytest.raises(PyggmlError, match="to check it with"):
        check_build(Build(build.directory, replace(build.record, targets=("ggml",))), programs=programs)


def test_build_for_another_processor_is_not_started(build: Build) -> None:
    foreign = Build(build.directory, replace(build.record, arch="pdp11"))
    with pytest.raises(PyggmlError, match="pdp11"):
        check_build(foreign, programs=prints(build, PASSES))
