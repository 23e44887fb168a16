"""From headers to declarations: what is in, what is left out and why, and that it is the same each time."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.native.declarations import Declarations, declare, make_declarations
from pyggml.native.preprocess import Compiler, Line, Preprocessed, preprocess, source_of

from .tiny_upstream import write_tree

CC = Compiler(Path("cc"))


def from_text(text: str, exports: frozenset[str] | None = None, **macros: str) -> Declarations:
    lines = tuple(Line("ggml.h", line) for line in text.splitlines())
    return declare(Preprocessed(lines, macros), exports)


def normal(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree") / "a tree, ä")


@pytest.fixture(scope="module")
def tiny_declarations(tree: Path) -> Declarations:
    return make_declarations(CC, tree)


def test_array_sizes_are_numbers(tiny_declarations: Declarations) -> None:
    text = normal(tiny_declarations.text)
    assert "int32_t op_params[16];" in text
    assert "char name[64];" in text
    assert "int64_t ne[256];" in text


def test_enumerators_have_their_values(tiny_declarations: Declarations) -> None:
    enums = {name: dict(values) for name, values in tiny_declarations.enums}
    assert enums["ggml_flag"] == {"GGML_FLAG_A": 1, "GGML_FLAG_B": 8, "GGML_FLAG_C": 9}
    assert "GGML_FLAG_C = 9" in tiny_declarations.text


def test_only_integer_macros_become_constants(tiny_declarations: Declarations) -> None:
    assert dict(tiny_declarations.constants) == {
        "GGML_MAX_DIMS": 4,
        "GGML_MAX_NAME": 64,
        "GGML_NEGATIVE": -1,
        "GGML_SHIFTED": 16,
    }
    assert "#define GGML_NEGATIVE -1\n" in tiny_declarations.text


def test_what_is_left_out_is_listed_with_its_reason(tree: Path) -> None:
    exports = frozenset(re.findall(r"\b(\w+)\(", "ggml_log_set( ggml_say("))
    omitted = {one.name: (one.kind, one.reason) for one in make_declarations(CC, tree, exports).omitted}
    assert omitted["ggml_inline"] == ("function", "its body is in the header (static inline)")
    assert omitted["ggml_never_defined"] == ("function", "no library of the build exports it")
    assert omitted["GGML_TEXT"] == ("macro", 'not an integer: "text"')
    assert "ggml_say" not in omitted


def test_nothing_of_system_headers_attributes_or_cpp_gets_in(tiny_declarations: Declarations) -> None:
    for word in ("__attribute__", "only_in_cpp", "printf", "_IO_FILE", "__u_char", "_Bool", "extern"):
        assert word not in tiny_declarations.text


def test_variadic_and_deprecated_functions_stay(tiny_declarations: Declarations) -> None:
    types = {one.name: one.type for one in tiny_declarations.functions}
    assert types["ggml_format"] == "int (char *, size_t, const char *, ...)"
    assert types["ggml_old"] == "int (void)"
    assert types["ggml_set_abort_callback"] == "ggml_abort_callback_t (ggml_abort_callback_t)"


def test_structs_with_known_fields_are_named_and_opaque_ones_are_not(
    tiny_declarations: Declarations,
) -> None:
    assert set(tiny_declarations.structs) == {
        "struct ggml_tensor",
        "ggml_bf16_t",
        "struct ggml_backend_meta_split_state",
        "struct ggml_backend_i",
    }


def test_the_text_does_not_depend_on_where_the_tree_lies(
    tree: Path, tiny_declarations: Declarations, tmp_path: Path
) -> None:
    elsewhere = write_tree(tmp_path / "elsewhere")
    assert make_declarations(CC, elsewhere).text == tiny_declarations.text
    assert str(tree) not in tiny_declarations.text


def test_the_environment_adds_no_headers(
    tree: Path, tiny_declarations: Declarations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stdint.h").write_text("#error wrong header\n")
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert make_declarations(CC, tree).text == tiny_declarations.text


def test_flags_of_the_build_change_the_structs(tree: Path) -> None:
    header = tree / "ggml" / "include" / "ggml.h"
    text = header.read_text()
    try:
        header.write_text(text.replace("#define GGML_MAX_DIMS 4", "#ifndef GGML_MAX_DIMS\n#error no\n#endif"))
        flagged = make_declarations(Compiler(Path("cc"), ("-DGGML_MAX_DIMS=6",)), tree)
    finally:
        header.write_text(text)
    assert "int64_t ne[6];" in normal(flagged.text)


def test_a_missing_header_is_named(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "ggml" / "include" / "gguf.h").unlink()
    with pytest.raises(PyggmlError, match=r"has no gguf\.h"):
        make_declarations(CC, tree)


def test_a_broken_header_shows_the_compilers_first_error(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "include" / "llama.h").write_text('#include "not-there.h"\n')
    with pytest.raises(PyggmlError, match=r"not-there\.h"):
        make_declarations(CC, tree)


def test_a_missing_compiler_is_named(tree: Path) -> None:
    with pytest.raises(PyggmlError, match="cannot start the build's compiler /no/such/cc"):
        preprocess(Compiler(Path("/no/such/cc")), tree)


def test_cpp_outside_its_section_is_refused_with_its_line() -> None:
    with pytest.raises(PyggmlError, match=r"ggml\.h:2"):
        from_text("int f(void);\nnamespace x { int g(); }\n")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("64 / sizeof(int32_t)", 16),
        ("sizeof(void *) * 2", 16),
        ("sizeof(unsigned long long)", 8),
        ("(3 > 2) ? 5 : 7", 5),
        ("-7 / 2 + 10", 7),
        ("010 + 0x10", 24),
        ("(uint8_t) 257 + 3", 4),
        ("~0 & 15", 15),
        ("'A'", 65),
        ("A << 2", 12),
    ],
)
def test_constant_expressions_as_in_c(expression: str, value: int, tmp_path: Path) -> None:
    program = tmp_path / "value.c"
    program.write_text(
        "#include <stdint.h>\n#include <stdio.h>\nenum e { A = 3 };\n"
        f'int main(void) {{ printf("%d", (int) ({expression})); return 0; }}\n'
    )
    subprocess.run(["cc", "-w", str(program), "-o", str(tmp_path / "value")], check=True)
    computed = subprocess.run([str(tmp_path / "value")], capture_output=True, check=True).stdout
    assert int(computed) == value
    assert f"char x[{value}]" in normal(
        from_text(f"enum e {{ A = 3 }};\nstruct s {{ char x[{expression}]; }};").text
    )


def test_an_array_size_that_only_the_compiler_knows_is_an_error_with_its_header() -> None:
    with pytest.raises(PyggmlError, match=r"ggml\.h: the array size sizeof\(struct a\)"):
        from_text("struct a { int x; };\nstruct b { char x[sizeof(struct a)]; };")


def test_a_name_in_two_headers_is_declared_once() -> None:
    made = from_text("int f(int a);\nint f(int b);\ntypedef int t;\ntypedef int t;\n")
    assert made.text.count("int f(") == 1
    assert made.text.count("typedef") == 1


@pytest.mark.native
def test_every_exported_function_of_the_six_headers_is_declared_or_listed(project_build: Build) -> None:
    source = source_of(project_build)
    named: set[str] = set()
    for header in (
        "ggml/include/ggml.h",
        "ggml/include/ggml-alloc.h",
        "ggml/include/ggml-backend.h",
        "ggml/src/ggml-backend-impl.h",
        "ggml/include/gguf.h",
        "include/llama.h",
    ):
        text = (source / header).read_text("utf-8")
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
        # Directives go, with their continued lines: GGML_API appears in them too.
        text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
        for statement in re.findall(r"\b(?:GGML_API|GGML_BACKEND_API|LLAMA_API)\b([^;]*);", text):
            statement = re.sub(r"GGML_(?:ATTRIBUTE_FORMAT|NORETURN)\s*(?:\([^)]*\))?", "", statement)
            found = re.search(r"\b(\w+)\s*\(", statement.replace("DEPRECATED(", ""))
            assert found, statement
            named.add(found[1])
    assert len(named) > 700
    exported: set[str] = set()
    for library in ("ggml-base", "ggml", "ggml-cpu", "llama"):
        path = project_build.bin_dir / f"lib{library}.so"
        out = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True).stdout
        exported |= {line.split()[-1] for line in out.splitlines() if re.search(r" [TWi] ", line)}
    python = project_build.directory / "python"
    text = (python / "declarations.h").read_text("utf-8")
    declared = set(re.findall(r"(?m)^[^#/\n]*?\b(\w+)\((?!\*)[^\n]*\);$", text))
    left_out = {one["name"] for one in json.loads((python / "omitted.json").read_bytes())}
    assert named & exported - declared == set()
    assert named - declared - left_out == set()
    assert not named & declared - exported
