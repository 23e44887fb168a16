"""Fixtures: a build or a reason, and what works on the build of this project if there is one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.testing.conftest import Inner

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


def project_build() -> str:
    """The directory of this project's build, or a skip that says why there is none."""
    from pyggml.errors import PyggmlError
    from pyggml.native.load import active_build

    try:
        return str(active_build(ROOT).directory)
    except PyggmlError as error:
        pytest.skip(f"needs the build of this project: {error}")


def test_without_a_project_the_test_is_skipped_with_the_reason(inner: Inner) -> None:
    result = inner("def test_it(pyggml_build): pass\n", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no pyggml project in*pyggml init*"])


def test_a_build_that_is_not_finished_is_skipped(
    inner: Inner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def test_it(pyggml_build): pass\n"
    monkeypatch.setenv("PYGGML_BUILD", str(tmp_path))

    def run(state: str) -> pytest.RunResult:
        record = {
            "format": 1,
            "variant": "p1-cpu",
            "pin": "p1",
            "state": state,
            "head": "a" * 40,
            "tree": "b" * 40,
            "dirty": False,
            "fingerprint": "",
            "arch": os.uname().machine,
            "features": [],
            "options": {},
            "targets": [],
            "tools": {},
        }
        (tmp_path / "pyggml-build.json").write_text(json.dumps(record))
        # The fixture of `inner` has taken it away from the outer run.
        monkeypatch.setenv("PYGGML_BUILD", str(tmp_path))
        return inner(source, "-rs")

    result = run("building")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*the build p1-cpu is not finished*pyggml build*"])
    run("done").assert_outcomes(passed=1)


@pytest.mark.native
def test_a_real_assertion_of_ggml(inner: Inner) -> None:
    library = Path(project_build()) / "bin" / "libggml-base.so"
    result = inner(
        f"""
class Params(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

@pytest.mark.isolated
def test_shapes():
    ggml = ctypes.CDLL({str(library)!r})
    for name in ("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat"):
        getattr(ggml, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(ggml.ggml_init(Params(1 << 20, None, True)))
    shapes = ((4, 2), (3, 2))
    a, b = (
        ctypes.c_void_p(ggml.ggml_new_tensor_2d(context, 0, ctypes.c_int64(x), ctypes.c_int64(y)))
        for x, y in shapes
    )
    ggml.ggml_mul_mat(context, a, b)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r">       ggml\.ggml_mul_mat\(context, a, b\)",
            r"E   .*ggml\.c:\d+: GGML_ASSERT\(ggml_can_mul_mat\(a, b\)\) failed",
            r"E   the process was killed by SIGABRT \(aborted\)",
            r"test_inner.py:18: SIGABRT",
        ]
    )


@pytest.mark.native
def test_a_real_assertion_through_the_bindings(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = project_build()
    if not (Path(directory) / "python").is_dir():
        pytest.skip(f"{directory} has no Python side. Make it with: pyggml build")
    monkeypatch.setenv("PYGGML_BUILD", directory)
    result = inner(
        """
from pyggml.testing import expects_abort

@pytest.fixture
def ggml(pyggml_build):
    from pyggml.native.load import load
    return load(pyggml_build)

def write(ggml):
    context = ggml.lib.ggml_init(ggml.ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20})[0])
    tensor = ggml.lib.ggml_new_tensor_1d(context, ggml.lib.GGML_TYPE_F32, 4)
    ggml.lib.ggml_backend_tensor_set(tensor, ggml.ffi.new("float[4]"), 0, 16)

@pytest.mark.isolated
def test_shapes(ggml, capfd):
    write(ggml)

@pytest.mark.isolated
def test_expected(ggml):
    with expects_abort(match="tensor buffer not set"):
        write(ggml)

@pytest.mark.isolated
def test_program(ggml):
    import subprocess, sys
    code = "from pyggml.native.load import load; load()"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.isolated
def test_devices(ggml, virtual_devices):
    virtual_devices(3, memory=1 << 20)
    assert ggml.lib.pyggml_vdev_count() == 3
    assert ggml.lib.pyggml_vdev_ledger_enabled()
    virtual_devices(names=("A", "B"), faults=("alloc:nth=1",))
    assert ggml.lib.pyggml_vdev_count() == 2
"""
    )
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.re_match_lines(
        [
            r">       ggml\.lib\.ggml_backend_tensor_set\(tensor, ggml\.ffi\.new\(\"float\[4\]\"\), 0, 16\)",
            r"E   .*ggml-backend\.cpp:\d+: GGML_ASSERT\(buf != NULL && \"tensor buffer not set\"\) failed",
        ]
    )


def test_a_race_between_queues_fails_the_test(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    build = project_build()
    monkeypatch.setenv("PYGGML_BUILD", build)
    result = inner("""
import numpy as np, pytest

@pytest.mark.isolated
@pytest.mark.parametrize("wait", [True, False])
def test_sum(virtual_devices, wait):
    virtual_devices(1, races=True)
    from pyggml.ggml import Context, Device
    from pyggml.native.load import load
    lib = load().lib
    device = Device(lib.pyggml_vdev_device(0))
    backend, context = device.backend(), Context("c")
    x = context.tensor("f32", (4,), "x").mark_input()
    y = context.ops.scale(x, 2.0).mark_output()
    graph = context.graph(y)
    context.allocate(backend)
    x.set(np.ones(4, np.float32))
    lib.ggml_backend_graph_compute_async(backend.raw, graph.raw)
    if wait:
        lib.ggml_backend_synchronize(backend.raw)
    y.numpy()
""")  # fmt: skip
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*race: get * by the host (reads) is not ordered after SCALE * in the queue of VDEV0*"]
    )
