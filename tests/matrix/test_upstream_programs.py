"""What patch upstream-tests adds to upstream's test programs, seen by running them."""

from __future__ import annotations

import re
import subprocess

import pytest

from pyggml.native.load import active_build
from pyggml.native.programs import find_program
from pyggml.native.vdev_config import VirtualDeviceConfig, program_environment
from pyggml.native.vdev_library import find_vdev

pytestmark = pytest.mark.native

ANSI = re.compile(r"\x1b\[[0-9;]*m")
ROWS = ("Meta host KV", "Meta 3 seqs", "Meta host KV 3 seqs", "Meta 3 streams", "Meta host KV 3 streams")
NAN_AT_THE_FIRST_CELL = "set:tensor=*kq_mask*,byte=1,mask=126"
"""The mask is f16 under FlashAttention and 0 where a token sees itself: 0x0000 becomes 0x7e00, a NaN."""


def llama_rows(*faults: str) -> tuple[int, dict[str, str]]:
    """The exit status of `test-llama-archs -s 1 -a llama` on two devices, and the verdict cell of each dense row."""
    build = active_build()
    devices = VirtualDeviceConfig(count=2, faults=faults)
    done = subprocess.run(
        [find_program(build, "test-llama-archs"), "-s", "1", "-a", "llama"],
        env=program_environment(find_vdev(build), devices),
        capture_output=True, text=True, errors="replace", timeout=300, check=False,
    )  # fmt: skip
    cells = [[cell.strip() for cell in line.split("|")] for line in ANSI.sub("", done.stdout).splitlines()]
    return done.returncode, {row[2]: row[4] for row in cells if len(row) > 5 and row[3] == "Dense"}


@pytest.mark.parametrize("row", ROWS)
def test_both_cache_places_and_several_sequences_are_rows(row: str) -> None:
    """upstream-tests: the meta configuration runs in all combinations of cache place, sequences and layout."""
    status, rows = llama_rows()
    assert row in rows, f"test-llama-archs has no row {row!r}, only {', '.join(rows)}"
    assert rows[row].startswith("OK"), rows[row]
    assert status == 0


def test_nan_logits_are_a_failure() -> None:
    """upstream-tests: an NMSE that is NaN compares as not above the bound, and was printed as OK."""
    status, rows = llama_rows(NAN_AT_THE_FIRST_CELL)
    assert "nan" in rows["Meta"].lower(), "the fault did not reach the logits"
    assert rows["Meta"].startswith("FAIL"), f"a NaN is reported as {rows['Meta']}"
    assert status == 1


@pytest.mark.parametrize("what", ["F16", "Q8_0", "no 2D"])
def test_the_bytes_of_a_window_over_several_streams_are_counted(what: str) -> None:
    """upstream-tests: test-alloc schedules a copy into real memory, with sentinels between the ranges."""
    build = active_build()
    done = subprocess.run(
        [find_program(build, "test-alloc")], capture_output=True, text=True, timeout=300, check=False
    )
    test = f"test_sched_stream_window({what})"
    assert test in done.stdout, f"test-alloc has no test {test}"
    assert f"{test} PASSED" in done.stdout, done.stderr
    assert done.returncode == 0
