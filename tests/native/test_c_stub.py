"""The stub that tells mypy what the bindings have."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from pyggml.builder.record import Build
from pyggml.project import Project
from pyggml.upstream.pins import read_pins
from tests.tested_build import remembered

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("c_stub", ROOT / "tools" / "c_stub.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ABI = {
    "typedefs": {"t_ptr": "struct t *", "number_t": "uint32_t", "call_t": "void (*)(int)"},
    "structs": {
        "struct t": {"fields": [{"name": "n", "type": "int64_t"}, {"name": "next", "type": "struct t *"}]}
    },
    "enums": {"enum e": {"A": 1}},
    "constants": {"MOST": 4},
    "functions": {
        name: {"type": kind}
        for name, kind in {
            "make": "t_ptr (struct o *, const struct t *, enum e, float, bool)",
            "value": "number_t (struct t)",
            "text": "const char *(const char *, size_t)",
            "format": "void (char *, const char *, ...)",
            "hook": "call_t (call_t, void (*)(int, int), void *)",
            "nothing": "void (void)",
        }.items()
    },
}


def test_types_of_c_become_pythons(tool: ModuleType) -> None:
    text = tool.stub(ABI)
    for line in (
        "class o: ...",
        "class t:\n    n: int\n    next: t\n",
        "    A: int\n    MOST: int\n",
        "    def make(self, a0: o, a1: t, a2: int, a3: float, a4: bool, /) -> t: ...",
        "    def value(self, a0: Any, /) -> int: ...",
        "    def text(self, a0: Any, a1: int, /) -> Any: ...",
        "    def format(self, *arguments: Any) -> None: ...",
        "    def hook(self, a0: Any, a1: Any, a2: Any, /) -> Any: ...",
        "    def nothing(self, /) -> None: ...",
    ):
        assert line in text


@pytest.mark.native
def test_the_stub_is_that_of_the_default_pin(tool: ModuleType, project_build: Build) -> None:
    pins = read_pins(Project(ROOT))
    if project_build.record.pin != pins.default:
        pytest.skip(f"the stub is made of {pins.default}, and the build is of {project_build.record.pin}")
    tested = remembered()
    if tested is not None and tested.missing:
        pytest.skip(
            f"the stub is that of the whole series, and the build is without {', '.join(tested.missing)}"
        )
    abi = json.loads((project_build.directory / "python" / "abi.json").read_bytes())
    assert tool.STUB.read_text("utf-8") == tool.stub(abi), "make it again: python tools/c_stub.py"
