"""The build's record, and the instruction set that it asks for."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.machine import Machine, parse_cpuinfo
from pyggml.builder.record import BuildRecord, check_instruction_set, find_build, read_record, write_record
from pyggml.errors import PyggmlError
from pyggml.project import Project

RECORD = BuildRecord(
    variant="p1-cpu",
    pin="p1",
    state="done",
    head="a" * 40,
    tree="b" * 40,
    dirty=False,
    fingerprint="f",
    arch="x86_64",
    features=("avx", "avx2", "avx512f"),
    options={"GGML_AVX2": "ON"},
    targets=("ggml", "übung"),
    tools={"cc": "/usr/bin/cc"},
    steps=3,
    seconds=1.5,
)


def machine(cpuinfo: str, arch: str = "x86_64") -> Machine:
    return Machine("Linux", arch, parse_cpuinfo(cpuinfo), 1, 0)


def test_record_survives_the_disk(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    document = json.loads((tmp_path / "pyggml-build.json").read_text("utf-8"))
    assert (document["format"], document["state"], document["targets"]) == (1, "done", ["ggml", "übung"])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 2}', '{"format": 1, "state": "done"}', '{"format": 1, "state": "x"}'],
)
def test_record_that_is_not_ours_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyggml-build.json").write_text(text)
    assert read_record(tmp_path) is None


def test_same_processor_is_fine() -> None:
    check_instruction_set(RECORD, machine("flags : fpu avx avx2 avx512f\n"))


def test_missing_features_are_named() -> None:
    with pytest.raises(PyggmlError, match="avx2, avx512f") as caught:
        check_instruction_set(RECORD, machine("flags : fpu avx\n"))
    assert "avx," not in caught.value.message
    assert "pyggml build" in str(caught.value.hint)


def test_one_weaker_core_is_enough_to_refuse() -> None:
    with pytest.raises(PyggmlError, match="avx512f"):
        check_instruction_set(RECORD, machine("flags : avx avx2 avx512f\nflags : avx avx2\n"))


def test_other_architecture_is_refused() -> None:
    with pytest.raises(PyggmlError, match="x86_64, and this machine is aarch64"):
        check_instruction_set(RECORD, machine("Features : asimd\n", "aarch64"))


def test_unknown_features_are_not_missing_ones() -> None:
    check_instruction_set(RECORD, machine(""))


def test_find_build_refuses_an_unfinished_one(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with pytest.raises(PyggmlError, match="there is no build p1-cpu"):
        find_build(project, "p1-cpu")
    directory = project.build_dir / "p1-cpu"
    directory.mkdir(parents=True)
    write_record(directory, replace(RECORD, state="building"))
    with pytest.raises(PyggmlError, match="not finished"):
        find_build(project, "p1-cpu")
    write_record(directory, RECORD)
    assert find_build(project, pin="p1").bin_dir == directory / "bin"


def test_what_finishes_a_build_is_what_it_was_made_with(tmp_path: Path) -> None:
    project = Project(tmp_path)
    tools = {"command": "pyggml build --cuda --arch 90"}
    (project.build_dir / "p1-cuda-90").mkdir(parents=True)
    write_record(project.build_dir / "p1-cuda-90", replace(RECORD, state="building", tools=tools))
    with pytest.raises(PyggmlError) as caught:
        find_build(project, "p1-cuda-90")
    assert caught.value.hint == "Finish it with: pyggml build --cuda --arch 90"


def test_without_the_plain_build_the_newest_other_one_is_meant(tmp_path: Path) -> None:
    project = Project(tmp_path)

    def make(variant: str, age: int, **changes: object) -> None:
        directory = project.build_dir / variant
        directory.mkdir(parents=True)
        write_record(directory, replace(RECORD, variant=variant, **changes))  # type: ignore[arg-type]
        os.utime(directory / "pyggml-build.json", (10**9 - age, 10**9 - age))

    make("p1-cuda-80", 2)
    make("p1-cpu-asan", 0, options={"GGML_SANITIZE_ADDRESS": "ON"})
    make("p1-cuda-90", 0, state="building")
    make("p2-cpu", 0, pin="p2")
    assert find_build(project, pin="p1").record.variant == "p1-cuda-80"
    make("p1-cuda", 1)
    assert find_build(project, pin="p1").record.variant == "p1-cuda"
    # The plain one counts even when it is not finished.
    make("p1-cpu", 3, state="failed")
    with pytest.raises(PyggmlError, match="p1-cpu is not finished"):
        find_build(project, pin="p1")
