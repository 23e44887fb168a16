"""What `pyggml build --cuda` has made in this project, where it was run: symbols, places, and what is said."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import read_driver
from pyggml.builder.cuda.loadable import LIBRARY, check_loadable, driver_stub
from pyggml.builder.record import Build, finished_builds
from pyggml.project import Project

ROOT = Path(__file__).parents[3]
BUILDS = [build for build in finished_builds(Project(ROOT)) if (build.bin_dir / LIBRARY).is_file()]
PROGRAMS = ("nm", "ldd", "readelf")
pytestmark = [
    pytest.mark.skipif(
        not BUILDS, reason="this project has no finished build with CUDA: pyggml build --cuda"
    ),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
]


def told(*command: object) -> str:
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env["LC_ALL"] = "C"
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=env).stdout


def defined(library: Path) -> set[str]:
    names = (line.split()[-1] for line in told("nm", "-D", "--defined-only", library).splitlines() if line)
    return {name.partition("@")[0] for name in names}


def undefined(library: Path) -> set[str]:
    """Without the weak ones, which may stay so."""
    lines = (line.split() for line in told("nm", "-D", "--undefined-only", library).splitlines())
    return {words[1].partition("@")[0] for words in lines if words and words[0] == "U"}


def toolkit_of(build: Build) -> Path:
    return Path(build.record.tools["nvcc"]).parents[1]


@pytest.fixture(params=BUILDS, ids=lambda build: build.record.variant)
def build(request: pytest.FixtureRequest) -> Build:
    found: Build = request.param
    return found


def test_no_symbol_but_the_drivers_is_undefined(build: Build) -> None:
    """By nm, independently of the dynamic linker that the build itself asks."""
    library, stub = build.bin_dir / LIBRARY, driver_stub(toolkit_of(build))
    assert stub is not None
    listing = told("ldd", library)
    assert set(re.findall(r"^\s*(\S+) => not found", listing, re.MULTILINE)) <= {"libcuda.so.1"}
    paths = dict(re.findall(r"^\s*(\S+) => (/.+) \(0x", listing, re.MULTILINE))
    paths.pop("libcuda.so.1", None)
    loader = re.findall(r"^\s*(/.+) \(0x", listing, re.MULTILINE)
    known = set[str]().union(*(defined(Path(path)) for path in [*paths.values(), *loader]))
    left = undefined(library) - known
    assert left, "a backend that calls no driver has no VMM"
    assert left <= defined(stub), sorted(left - defined(stub))
    assert {"cuMemCreate", "cuMemMap", "cuMemAddressReserve"} <= left


def test_the_build_itself_finds_the_same(build: Build) -> None:
    check_loadable(build, toolkit_of(build))


def test_libraries_find_the_runtime_by_relative_paths(build: Build) -> None:
    if not build.record.options["PYGGML_CUDA_RPATH"].startswith("$ORIGIN/"):
        pytest.skip(f"{build.record.variant} uses a complete toolkit of the system, which stays where it is")
    dynamic = told("readelf", "-d", build.bin_dir / LIBRARY)
    # An empty place would be the current directory.
    nccl = ":$ORIGIN/../toolkit/nccl/lib" if build.record.options.get("GGML_CUDA_NCCL") == "ON" else ""
    expected = f"$ORIGIN:$ORIGIN/../toolkit/lib{nccl}"
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) == [expected]
    links = toolkit_of(build) / "lib"
    assert not any(link.readlink().is_absolute() for link in links.iterdir() if link.is_symlink())
    # Nothing else is linked to CUDA: everything works without a driver.
    for library in build.bin_dir.glob("*.so"):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", told("readelf", "-d", library))
        assert library.name == LIBRARY or not any(name.startswith("libcu") for name in needed), library


def test_devices_says_why_there_is_no_gpu(build: Build) -> None:
    driver = read_driver()
    if driver.gpus:
        pytest.skip(f"there is one: {driver.describe()}")
    command = [sys.executable, "-m", "pyggml", "devices", "--variant", build.record.variant, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["no_cuda"] == driver.describe()
    assert [one["name"] for one in document["devices"]] == ["CPU"]


def test_bindings_and_virtual_devices_work_beside_it(build: Build) -> None:
    """`import pyggml` on a machine without a driver."""
    code = (
        "import pyggml\nfrom pyggml.ggml import VirtualDevices\n"
        "with VirtualDevices(2) as devices: print(devices.names, pyggml.lib.ggml_backend_dev_count() >= 3)"
    )
    env = {**os.environ, "PYGGML_BUILD": str(build.directory)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "('VDEV0', 'VDEV1') True", done.stderr
