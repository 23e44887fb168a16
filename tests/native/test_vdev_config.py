"""Describing virtual devices in Python and handing them to programs by environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyggml.errors import PyggmlError, UsageError
from pyggml.native.device_traits import parse_size, parse_traits
from pyggml.native.vdev_config import (
    VirtualDeviceConfig,
    devices_from_environment,
    program_environment,
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "0 virtual devices asked for; 1 to 16 are possible"),
        ({"count": 17}, "17 virtual devices asked for"),
        ({"count": -1}, "-1 virtual devices asked for"),
        ({"count": 3, "names": ("A", "B")}, "2 names given for 3 virtual devices"),
        ({"names": ("A", "a")}, "two devices are named a"),
        ({"names": ("A", "")}, "must have 1 to 255 bytes"),
        ({"names": ("é" * 128,)}, "must have 1 to 255 bytes"),
        ({"names": ("A,B",)}, "comma or a control character"),
        ({"names": ("A\n",)}, "comma or a control character"),
        ({"memory": 0}, "a device memory of 0 bytes"),
        ({"alignment": 8}, "alignment of 8 bytes"),
        ({"alignment": 96}, "alignment of 96 bytes"),
        ({"alignment": 4 << 20}, "alignment of 4194304 bytes"),
        ({"max_buffer": 0}, "largest buffer of 0 bytes"),
        ({"threads": 0}, "0 threads per device"),
        ({"offload_batch": -1}, "offload batch of -1"),
        ({"schedule": "soon"}, "'soon' is not a schedule"),
        ({"schedule": "random"}, "'random' is not a schedule"),
        ({"schedule": "late/copies=never"}, "has no option 'copies=never'"),
        ({"faults": ("melt:nth=1",)}, "unknown fault 'melt:nth=1'"),
        ({"faults": ("set;get",)}, "unknown fault 'set;get'"),
    ],
)
def test_impossible_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VirtualDeviceConfig(**values)


def test_the_number_of_names_is_the_number_of_devices() -> None:
    assert VirtualDeviceConfig(names=("A", "B", "C")).count == 3
    assert VirtualDeviceConfig().count == 2
    assert VirtualDeviceConfig(count=16, names=tuple("ABCDEFGHIJKLMNOP")).count == 16


def test_the_environment_reads_back_as_the_same_devices(tmp_path: Path) -> None:
    devices = VirtualDeviceConfig(
        names=("A", "b c"), memory=512 << 20, alignment=256, max_buffer=1 << 20, native_2d=False,
        traits=parse_traits("1:memory=1048576,in-use=4096,alignment=64,max-buffer=4096,pad=512,2d=on,async=on,"
                            "events=off,refuse=MUL_MAT/q4_0+GELU;*:pad=256"),
        host_buffer=True, asynchronous=False, poison=False, strict=False, threads=3, offload_batch=0,
        schedule="random:7/copies=both/host=pageable", races=True, ledger=tmp_path / "l", timeline=tmp_path / "t",
        faults=("alloc:nth=3", "get:tensor=x*"),
    )  # fmt: skip
    assert devices_from_environment(devices.environment()) == devices
    assert devices_from_environment(VirtualDeviceConfig(count=5).environment()) == VirtualDeviceConfig(
        count=5
    )
    assert devices_from_environment({}) == VirtualDeviceConfig()


def test_what_is_given_wins_over_variables_that_would_contradict_it() -> None:
    env = {"PYGGML_VDEV_DEVICES": "2", "PYGGML_VDEV_NAMES": "A,B", "PYGGML_VDEV_MEMORY": "1G"}
    assert devices_from_environment(env, count=3, memory=5) == VirtualDeviceConfig(count=3, memory=5)
    assert devices_from_environment(env, count=2).names == ("A", "B")
    assert devices_from_environment(env, names=("X",)) == VirtualDeviceConfig(names=("X",), memory=1 << 30)
    # A variable that is not used need not be readable.
    assert devices_from_environment({"PYGGML_VDEV_MEMORY": "junk"}, memory=5).memory == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [("DEVICES", "two"), ("DEVICES", "1.5"), ("MEMORY", "512X"), ("POISON", "maybe"), ("THREADS", "-1")],
)
def test_unreadable_variables_are_named(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"PYGGML_VDEV_{name} is '{text}'"):
        devices_from_environment({f"PYGGML_VDEV_{name}": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1k", 1024),
        ("512M", 512 << 20),
        ("2GiB", 2 << 30),
        ("1tb", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "1 000", "9" * 19, "1PB", "1MM", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_a_programs_environment_adds_to_what_is_there() -> None:
    base = {"LD_PRELOAD": "/x.so", "PYGGML_VDEV_FAULT": "alloc", "HOME": "/h", "GGML_NO_BACKTRACE": "0"}
    env = program_environment(Path("/b/python/libpyggml-vdev.so"), VirtualDeviceConfig(count=4), base)
    assert env["LD_PRELOAD"] == "/b/python/libpyggml-vdev.so:/x.so"
    assert env["GGML_BACKEND_PATH"] == "/b/python/libpyggml-vdev.so"
    assert (env["PYGGML_VDEV_DEVICES"], env["PYGGML_VDEV_FAULT"], env["HOME"]) == ("4", "", "/h")
    assert env["GGML_NO_BACKTRACE"] == "0"
    assert base["LD_PRELOAD"] == "/x.so"


def test_a_path_with_a_space_goes_by_the_library_path() -> None:
    env = program_environment(
        Path("/a b/libpyggml-vdev.so"), VirtualDeviceConfig(), {"LD_LIBRARY_PATH": "/l"}
    )
    assert env["LD_PRELOAD"] == "libpyggml-vdev.so"
    assert env["LD_LIBRARY_PATH"] == "/a b:/l"


def test_a_path_that_the_linker_would_cut_is_refused() -> None:
    with pytest.raises(PyggmlError, match="the path holds a colon"):
        program_environment(Path("/a:b/libpyggml-vdev.so"), VirtualDeviceConfig(), {})


def test_a_relative_ledger_is_where_the_caller_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert VirtualDeviceConfig(ledger=Path("l")).environment()["PYGGML_VDEV_LEDGER"] == str(tmp_path / "l")
    assert VirtualDeviceConfig(ledger=Path("-")).environment()["PYGGML_VDEV_LEDGER"] == "-"
