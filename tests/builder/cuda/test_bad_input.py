"""What goes wrong before the first compile, each told in one or two lines that say what to do."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver
from pyggml.builder.cuda.options import CudaOptions, parse_archs
from pyggml.builder.cuda.setup import check_space, set_up
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.cuda.wheels import Wheels, find_wheels
from pyggml.builder.tool_environment import tool_environment
from pyggml.builder.toolchain import Toolchain, find_toolchain
from pyggml.errors import PyggmlError
from pyggml.processes import run_lines
from tests.builder.cuda.conftest import H200, NO_DRIVER, gpu, make_toolkit, make_wheels, script

NO_WHEELS = Wheels(None, {}, ("nvidia-cublas",))


@dataclass
class Machine:
    """A machine with nothing but what a test puts there."""

    place: Path
    monkeypatch: pytest.MonkeyPatch

    def tools(self, gcc: int = 12) -> Toolchain:
        cxx = script(self.place / "bin" / "c++", f"print('#define __GNUC__ {gcc}')")
        return Toolchain(Path("/c"), "3.25.1", Path("/n"), "1.11", cxx, "12", cxx, "12")

    def toolkit(self, version: str = "13.0.88", driver: Driver = NO_DRIVER, **options: object) -> Toolkit:
        root = make_toolkit(self.place / "cuda", version, (75, 80, 90, 100), **options)  # type: ignore[arg-type]
        return choose_toolkit(None, driver, roots=[root], wheels=NO_WHEELS)

    def decide(self, driver: Driver = NO_DRIVER, gcc: int = 12, archs: str | None = None) -> None:
        options, env = CudaOptions(parse_archs(archs)), {"PATH": str(self.place / "bin")}
        set_up(options, self.tools(gcc), lambda _: None, env=env, driver=driver, toolkit=self.toolkit())


def no_space(machine: Machine) -> None:
    usage = namedtuple("usage", "total used free")
    machine.monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1 << 20))
    check_space(machine.place)


def no_compiler(machine: Machine) -> None:
    script(machine.place / "bin" / "cc", "print('cc 12')")
    find_toolchain("x86_64", lambda _: None, {"PATH": str(machine.place / "bin")}, machine.place / "cache")


def mixed_wheels(machine: Machine) -> None:
    find_wheels([str(make_wheels(machine.place / "site", {"nvidia-nvvm": "13.1.80"}))])


def interrupted(machine: Machine) -> None:
    def stop(_line: str) -> None:
        raise KeyboardInterrupt

    run_lines(["echo", "[1/2] nvcc"], stop, tool_environment())


OLD_DRIVER = Driver("ready", (12, 2), "535.54.03", (H200,))
CASES: dict[str, tuple[Callable[[Machine], object], str, str]] = {
    "no space": (no_space, "0.0 GiB free in .* a CUDA build needs about 3.0 GiB", "Make room"),
    "no C++ compiler": (no_compiler, r"C\+\+ compiler", "apt install"),
    "toolkit too old": (
        lambda machine: machine.toolkit("11.4.152"),
        "CUDA 11.4.152 is older than the sources need",
        "pip install",
    ),
    "toolkit incomplete": (
        lambda machine: machine.toolkit(without=["cublas"]),
        "CUDA 13.0.88 has no cuBLAS",
        "pip install",
    ),
    "mixed wheels": (mixed_wheels, "different CUDA versions: .*nvidia-nvvm 13.1.80", "Install them together"),
    "driver too old": (
        lambda machine: machine.toolkit(driver=OLD_DRIVER),
        "CUDA 13.0.88 is too new for driver 535.54.03, which runs CUDA up to 12.2",
        "Update the driver",
    ),
    "host compiler too new": (
        lambda machine: machine.decide(gcc=99),
        r"nvcc 13.0.88 refuses c\+\+ \(gcc 99\)",
        "apt install",
    ),
    "GPU too old": (
        lambda machine: machine.decide(Driver("ready", (13, 0), "580", (gpu("Tesla P4", 6, 1),))),
        r"no longer compiles for Tesla P4 \(6.1\)",
        "--toolkit",
    ),
    "GPU too new": (
        lambda machine: machine.decide(Driver("ready", (13, 0), "580", (gpu("Next", 13, 0),))),
        r"does not know Next \(13.0\)",
        "--arch 100-virtual",
    ),
    "unknown architecture": (
        lambda machine: machine.decide(archs="91"),
        "CUDA 13.0.88 does not compile for architecture 91",
        "75, 80, 90, 100",
    ),
    "interrupted": (interrupted, "stopped", "continues where it stopped"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_or_two_lines_that_say_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provoke, message, advice = CASES[name]
    with pytest.raises(PyggmlError, match=message) as caught:
        provoke(Machine(tmp_path, monkeypatch))
    assert advice in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) == 2
