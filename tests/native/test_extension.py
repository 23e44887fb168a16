"""Compiling: when it is done again, what it is linked against, and how its failures read."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.cmake import BuildResult
from pyggml.builder.record import Build
from pyggml.builder.source import Source
from pyggml.errors import PyggmlError
from pyggml.native.declarations import make_declarations
from pyggml.native.extension import Inputs, compile_extension, extension_key
from pyggml.native.preprocess import Compiler, source_of
from pyggml.native.python_side import PythonSide, make_for, make_python_side
from pyggml.native.symbols import build_libraries, exported
from pyggml.project import Project

from .tiny_upstream import link

CC = Compiler(Path("cc"), version="cc 1")


make_side = functools.partial(make_python_side, virtual_devices=False)


def inputs_of(build: Build) -> Inputs:
    source = source_of(build)
    libraries = build_libraries(build.bin_dir)
    return Inputs(CC, source, make_declarations(CC, source, exported(CC, libraries)), libraries)


def files(side: PythonSide) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in side.directory.iterdir()}


def test_nothing_is_done_twice(own_tiny: Build) -> None:
    first = make_side(own_tiny)
    before = {name: when for name, when in files(first).items() if not name.startswith("extension")}
    second = make_side(own_tiny)
    assert not second.compiled
    assert {name: files(second)[name] for name in before} == before


def test_a_changed_header_compiles_again_and_changed_back_finds_what_was_compiled(own_tiny: Build) -> None:
    first = make_side(own_tiny)
    header = source_of(own_tiny) / "include" / "llama.h"
    text = header.read_text()
    header.write_text(text + "\n#define LLAMA_NEW 3\n")
    said: list[str] = []
    second = make_side(own_tiny, say=said.append)
    assert second.compiled
    assert any("compiling the Python bindings (about" in line for line in said)
    assert second.extension.is_file()
    assert json.loads(second.abi.read_bytes())["constants"]["LLAMA_NEW"] == 3
    header.write_text(text)
    third = make_side(own_tiny)
    assert (third.extension, third.compiled) == (first.extension, False)
    assert "LLAMA_NEW" not in json.loads(third.abi.read_bytes())["constants"]
    for number in (4, 5):
        header.write_text(f"{text}\n#define LLAMA_NEW {number}\n")
        make_side(own_tiny)
    assert len(list(first.directory.glob("_pyggml_*"))) == 2


def test_the_key_follows_declarations_compiler_and_libraries_and_not_the_place(own_tiny: Build) -> None:
    inputs = inputs_of(own_tiny)
    key = extension_key(inputs)
    other = [
        dataclasses.replace(inputs, compiler=dataclasses.replace(CC, version="cc 2")),
        dataclasses.replace(inputs, compiler=dataclasses.replace(CC, flags=("-DX",))),
        dataclasses.replace(inputs, libraries=inputs.libraries[1:]),
        dataclasses.replace(
            inputs, declarations=dataclasses.replace(inputs.declarations, text=inputs.declarations.text + " ")
        ),
    ]
    keys = [extension_key(one) for one in other]
    assert len({key, *keys}) == 5
    assert extension_key(dataclasses.replace(inputs, source=Path("/elsewhere"))) == key


def test_a_compilers_refusal_is_one_error_and_leaves_what_was_there(own_tiny: Build) -> None:
    side = make_side(own_tiny)
    before = files(side)
    inputs = inputs_of(own_tiny)
    text = inputs.declarations.text.replace("void *data;", "void *date;")
    wrong = dataclasses.replace(inputs, declarations=dataclasses.replace(inputs.declarations, text=text))
    with pytest.raises(PyggmlError) as caught:
        compile_extension(wrong, side.directory)
    assert "error:" in caught.value.message
    assert "date" in caught.value.message
    assert len(caught.value.message.splitlines()) <= 3
    assert files(side) == before


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("size_t ggml_tensor_overhead(void);", "char *ggml_tensor_overhead(void);"),
        ("void ggml_die(const char *text);", "void ggml_die(long text);"),
        ("void ggml_die(const char *text);", "void ggml_die(struct ggml_tensor *text);"),
    ],
)
def test_a_type_that_is_not_the_headers_is_an_error_not_a_warning(
    own_tiny: Build, right: str, wrong: str
) -> None:
    inputs = inputs_of(own_tiny)
    assert right in inputs.declarations.text
    text = inputs.declarations.text.replace(right, wrong)
    changed = dataclasses.replace(inputs, declarations=dataclasses.replace(inputs.declarations, text=text))
    with pytest.raises(PyggmlError, match="compiling the Python bindings failed"):
        compile_extension(changed, own_tiny.directory / "python")


def test_a_missing_library_is_named(own_tiny: Build) -> None:
    (own_tiny.bin_dir / "libllama.so").unlink()
    with pytest.raises(PyggmlError, match=r"no libllama\.so"):
        make_side(own_tiny)


def test_a_build_without_a_cpu_library_to_link_has_no_cpu_functions(own_tiny: Build) -> None:
    source = source_of(own_tiny)
    (source / "ggml" / "include" / "ggml-cpu.h").write_text("#pragma once\nint ggml_empty_library(void);\n")
    declared = {
        one.name
        for one in make_declarations(CC, source, exported(CC, build_libraries(own_tiny.bin_dir))).functions
    }
    assert "ggml_empty_library" in declared
    for name in ("libggml-cpu.so", "libggml.so"):
        (own_tiny.bin_dir / name).unlink()
    subprocess.run(
        ["cc", "-shared", "-o", str(own_tiny.bin_dir / "libggml.so"), "-x", "c", os.devnull], check=True
    )
    side = make_side(own_tiny)
    left_out = {
        one["name"]: one["reason"] for one in json.loads((side.directory / "omitted.json").read_bytes())
    }
    assert left_out["ggml_empty_library"] == "no library of the build exports it"


def test_killed_while_compiling_nothing_passes_for_finished(own_tiny: Build) -> None:
    side = make_side(own_tiny)
    for path in (*side.directory.glob("_pyggml_*"), *side.directory.glob("extension*")):
        path.unlink()
    # As a kill leaves it: a scratch directory with a half-written extension.
    scratch = side.directory / ".compiling-killed"
    scratch.mkdir()
    (scratch / side.extension.name).write_bytes(b"\x7fELF")
    again = make_side(own_tiny)
    assert again.compiled
    assert again.extension.stat().st_size > 10_000
    assert not scratch.exists()


def test_killed_before_the_description_was_written_it_is_made_again(own_tiny: Build) -> None:
    side = make_side(own_tiny)
    document = json.loads(side.abi.read_bytes())
    side.abi.write_text(json.dumps({**document, "extension": "of an earlier one", "functions": {}}))
    assert not make_side(own_tiny).compiled
    assert json.loads(side.abi.read_bytes()) == document


def test_relinked_libraries_need_no_compiler_and_are_remembered(own_tiny: Build) -> None:
    make_side(own_tiny)
    link(source_of(own_tiny), own_tiny.bin_dir)
    assert not make_side(own_tiny).compiled


def test_a_work_tree_that_moved_since_the_build_is_not_bound(
    tiny: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(_project: Project) -> Source:
        return Source(source_of(tiny), "tiny", "f" * 40, "b" * 40, dirty=False)

    monkeypatch.setattr("pyggml.builder.source.read_source", moved)
    result = BuildResult(tiny, 0, 0.0, configured=False, left_out=())
    with pytest.raises(PyggmlError, match="the work tree was changed"):
        make_for(Project(tmp_path), result)


def test_an_upstream_without_the_headers_is_built_without_python_and_says_so(
    own_tiny: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(own_tiny)
    (source / "ggml" / "src" / "ggml-backend-impl.h").unlink()
    here = Source(source, "tiny", own_tiny.record.head, "b" * 40, dirty=False)
    monkeypatch.setattr("pyggml.builder.source.read_source", lambda _project: here)
    said: list[str] = []
    result = BuildResult(own_tiny, 6, 1.0, configured=True, left_out=())
    assert make_for(Project(tmp_path), result, said.append) is None
    assert said == ["no Python bindings: this upstream has no ggml-backend-impl.h"]
