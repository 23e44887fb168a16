"""The checks on machines that lack something; nothing here uses the network."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyggml.builder.cuda.driver import Driver, Gpu
from pyggml.builder.record import BuildRecord, write_record
from pyggml.cli.main import cli
from pyggml.doctor import packages
from pyggml.doctor.cuda import cuda_rows
from pyggml.doctor.packages import package_rows, registry_rows
from pyggml.doctor.project import project_rows
from pyggml.doctor.report import STATES, DoctorReport, Row
from pyggml.doctor.tools import tool_rows
from pyggml.project import Project
from pyggml.upstream.pip_config import PackageSources
from tests.builder.cuda.conftest import make_toolkit, make_wheels

PINS = """\
upstream = "up"
default = "p1"

[pin.p1]
commit = "{0}"
tree = "{0}"
exclude = []

[pin.p1.source]
kind = "sdist"
project = "x"
version = "1"
file = "x-1.tar.gz"
sha256 = "{1}"
subdir = "up"
""".format("a" * 40, "b" * 64)


@pytest.fixture(autouse=True)
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT", "CUDACXX"):
        monkeypatch.delenv(name, raising=False)


def program(directory: Path, name: str, says: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!{sys.executable}\nprint({says!r})\n")
    (directory / name).chmod(0o755)


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    named = {row.name: row for row in rows}
    assert all(row.state in STATES for row in named.values())
    return named


def tools(directory: Path, tmp_path: Path, online: bool = True) -> dict[str, Row]:
    return by_name(tool_rows({"PATH": str(directory)}, online, tmp_path / "cache", tmp_path / "python"))


def test_everything_there(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    for name, says in (
        ("cc", "cc 12.2"), ("c++", "c++ 12.2"), ("cmake", "cmake version 3.30.1"), ("ninja", "1.12.1"),
        ("ccache", "ccache version 4.9"),
    ):  # fmt: skip
        program(directory, name, says)
    rows = tools(directory, tmp_path, online=False)
    assert {row.state for row in rows.values()} == {"ok"}
    assert rows["CMake"].text == f"3.30.1, {directory / 'cmake'}"
    assert "ccache version 4.9" in rows["compiler cache"].text


def test_bare_machine_names_a_command_for_each_thing(tmp_path: Path) -> None:
    rows = tools(tmp_path / "bin", tmp_path, online=False)
    assert rows["compilers"].state == "missing" and "build-essential" in rows["compilers"].fix
    assert rows["CMake"].state == "missing" and "apt install cmake" in rows["CMake"].fix
    assert rows["Ninja"].state == "missing" and "ninja-build" in rows["Ninja"].fix
    assert rows["compiler cache"].state == "optional" and "ccache" in rows["compiler cache"].fix
    assert not DoctorReport(tuple(rows.values())).ok


def test_registry_makes_up_for_cmake_and_ninja(tmp_path: Path) -> None:
    program(tmp_path / "bin", "cmake", "cmake version 3.1.0")
    rows = tools(tmp_path / "bin", tmp_path)
    assert (rows["CMake"].state, rows["Ninja"].state) == ("ok", "ok")
    assert "installs its wheel" in rows["CMake"].text


def test_compiler_that_does_not_run(tmp_path: Path) -> None:
    program(tmp_path / "bin", "cc", "cc 12")
    program(tmp_path / "bin", "c++", "c++ 12")
    (tmp_path / "bin" / "c++").write_text("#!/nonexistent\n")
    assert tools(tmp_path / "bin", tmp_path)["C++ compiler"].state == "missing"


def test_registries_that_answer_and_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    def head(url: str, **options: object) -> object:
        assert options["timeout"] == packages.HEAD_SECONDS
        if "slow" in url:
            raise requests.ConnectTimeout(url)
        if "gone" in url:
            raise requests.ConnectionError(url)
        return namedtuple("answer", "status_code")(405)

    monkeypatch.setattr(requests, "head", head)
    (tmp_path / "wheels").mkdir()
    sources = PackageSources(
        indexes=(
            "https://user:secret@good.example/simple",
            "https://slow.example/simple",
            "https://gone.example",
        ),
        find_links=(str(tmp_path / "wheels"), (tmp_path / "none").as_uri()),
    )
    rows = registry_rows(sources)
    assert [row.state for row in rows] == ["ok", "optional", "optional", "ok", "optional"]
    assert rows[0].text == "good.example answers (405)"
    assert rows[1].text == "slow.example: no answer in time"
    assert not any("secret" in row.text for row in rows)
    assert registry_rows(PackageSources(indexes=()))[0].text == "pip is configured to use none"


def test_requirements_are_compared_with_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = namedtuple("distribution", "version requires")
    wants = ["click>=8", "no-such-package-here>=1", "pytest>=9999", 'nvidia-cublas==13.0.*; extra == "cuda"']
    real = packages.importlib.metadata.distribution
    own = distribution("0.1", wants)
    monkeypatch.setattr(
        packages.importlib.metadata, "distribution", lambda name: own if name == "pyggml" else real(name)
    )
    row = by_name(package_rows())["packages"]
    assert row.state == "missing"
    assert "no-such-package-here is not installed; pytest is " in row.text
    assert "click" not in row.text and "cublas" not in row.text


def test_cuda_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyggml.builder.cuda.system.USUAL", ())
    monkeypatch.setattr("pyggml.builder.cuda.toolkit.system_toolkits", lambda env: [])
    monkeypatch.setattr(sys, "path", [])
    rows = by_name(cuda_rows({"PATH": ""}, Driver("absent")))
    assert {row.state for row in rows.values()} == {"optional"}
    assert "pip install 'pyggml[cuda]'" in rows["toolkit"].fix
    assert "no NVIDIA driver" in rows["driver"].text
    driver = Driver("ready", (13, 0), "580.65.06", (Gpu("NVIDIA H200", (9, 0), 140 << 30),) * 2)
    rows = by_name(cuda_rows({"PATH": ""}, driver))
    assert rows["driver"].text == "driver 580.65.06 for CUDA up to 13.0"
    assert rows["GPU 1"].text == "NVIDIA H200, 140 GiB, capability 9.0"
    broken = by_name(
        cuda_rows({"PATH": ""}, Driver("broken", (12, 2), "535.54.03", problem="cuInit: error 803"))
    )
    assert "error 803" in broken["driver"].text


def test_toolkit_completed_by_wheels_and_a_refused_host_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyggml.builder.cuda.system.USUAL", ())
    make_wheels(tmp_path / "site", {"nvidia-cuda-nvcc": ""})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    root = make_toolkit(tmp_path / "cuda", "13.0.88", without=["cublas"])
    path = tmp_path / "bin"
    for name in ("cc", "c++"):
        program(path, name, "#define __GNUC__ 99")
    rows = by_name(cuda_rows({"PATH": str(path), "CUDA_HOME": str(root)}, Driver("absent")))
    assert rows["toolkit"].text.endswith("completed by the wheels nvidia-cublas 13.0.2.14")
    assert rows["host compiler"].state == "optional"
    assert "refuses c++ (gcc 99)" in rows["host compiler"].text
    assert "CUDAHOSTCXX" in rows["host compiler"].fix
    # Another compiler that nvcc accepts is found by its name.
    program(path, "g++-12", "#define __GNUC__ 12")
    rows = by_name(cuda_rows({"PATH": str(path), "CUDA_HOME": str(root)}, Driver("absent")))
    assert rows["host compiler"].text == f"{path / 'g++-12'} (gcc 12), not {path / 'c++'}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "pro ject"
    (root / "patches").mkdir(parents=True)
    (root / "vendor").mkdir()
    (root / "vendor" / "pins.toml").write_text(PINS)
    return Project(root)


def test_no_project_is_not_an_error(tmp_path: Path) -> None:
    rows = by_name(project_rows(None, tmp_path, online=True))
    assert (rows["project"].state, rows["disk space"].state) == ("optional", "ok")
    assert "pyggml up" in rows["project"].fix


def test_unfetched_pin_needs_a_network(project: Project) -> None:
    online = by_name(project_rows(project, project.root, online=True))
    assert online["pin"].text == "p1, not fetched, the default"
    assert (online["pin"].state, online["pin"].fix) == ("optional", "pyggml vendor fetch p1")
    assert by_name(project_rows(project, project.root, online=False))["pin"].state == "missing"


def test_broken_pins_file_is_reported(project: Project) -> None:
    project.pins_file.write_text("upstream = ")
    assert by_name(project_rows(project, project.root, online=True))["pins"].state == "missing"


def test_unfinished_build_names_the_command_that_finishes_it(project: Project) -> None:
    tools = {"command": "pyggml build --cuda --arch 90 --minimal", "cuda_version": "13.0.88"}
    record = BuildRecord("p1-cuda", "p1", "building", "h", "t", False, "f", "x86_64", (), {}, (), tools)
    (project.build_dir / "p1-cuda").mkdir(parents=True)
    write_record(project.build_dir / "p1-cuda", record)
    rows = by_name(project_rows(project, project.root, online=True))
    assert (rows["build"].state, rows["build"].fix) == ("optional", tools["command"])


def test_builds_are_listed_with_cuda_and_check(project: Project) -> None:
    record = BuildRecord(
        "p1-cuda", "p1", "done", "h", "t", False, "f", "x86_64", (), {}, (),
        {"cuda_version": "13.0.88", "cuda_architectures": "80;90"}, check={"ok": True},
    )  # fmt: skip
    (project.build_dir / "p1-cuda").mkdir(parents=True)
    write_record(project.build_dir / "p1-cuda", record)
    (project.build_dir / "rubbish").mkdir()
    row = by_name(project_rows(project, project.root, online=True))["build"]
    assert row.text == "p1-cuda, done, CUDA 13.0.88 for 80;90, check passed"


def test_full_disk(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, 1 << 20))
    rows = by_name(project_rows(project, project.root, online=True))
    assert rows["disk space"].state == "missing"
    assert not DoctorReport(tuple(rows.values())).ok


def test_command_prints_one_screen_or_json_and_an_exit_code(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--project", str(project.root), "doctor", "--offline"]
    shown = CliRunner().invoke(cli, arguments)
    # Without a network, a pin that is not fetched is missing.
    assert shown.exit_code == 1
    assert "-> pyggml vendor fetch p1" in shown.output
    assert len(shown.output.splitlines()) <= 40
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert document["ok"] is False
    assert {"group", "name", "state", "text", "fix"} == document["rows"][0].keys()
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["--project", str(tmp_path / "none"), "doctor", "--offline"]).exception
