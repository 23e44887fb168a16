"""An inner pytest run with the plugin, and a C library that dies in every way."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

SOURCE = """\
#include <stdio.h>
#include <stdlib.h>

#define ASSERT(x) if (!(x)) { \\
    fflush(stdout); fprintf(stderr, "%s:%d: GGML_ASSERT(%s) failed\\n", __FILE__, __LINE__, #x); abort(); }

void check(int rows) {
    ASSERT(rows == 4)
}
int divide(int a, int b) { return a / b; }
void spin(void) { for (volatile int i = 0; ; i = 1) {} }
void say(const char * text) { printf("%s", text); }
"""
ASSERT_LINE = 8


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library: check(rows) asserts that rows is 4, divide(a, b), spin() for ever, say(text)."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc) on PATH")
    directory = tmp_path_factory.mktemp("broken")
    (directory / "broken.c").write_text(SOURCE, "utf-8")
    library = directory / "broken.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "broken.c"], cwd=directory, check=True)
    return library


Inner = Callable[..., pytest.RunResult]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """`inner(source, *arguments, apart=False)`: a pytest run of one test file, `apart` in its own process."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYGGML_BUILD"):
        monkeypatch.delenv(name, raising=False)
    installed = any(each.value == "pyggml.testing.plugin" for each in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "pyggml.testing.plugin")

    def run(source: str, *arguments: str, apart: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_inner="import ctypes, os, time\nimport pytest\n" + source)
        start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        return start(*plugin, *arguments)

    return run
