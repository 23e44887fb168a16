"""Architectures: read, chosen for the GPUs present, and refused before anything is compiled."""

from __future__ import annotations

import pytest

from pyggml.builder.cuda.archs import choose_archs
from pyggml.builder.cuda.driver import Driver
from pyggml.builder.cuda.options import Arch, parse_archs
from pyggml.errors import PyggmlError, UsageError
from tests.builder.cuda.conftest import H200, NO_DRIVER, gpu

KNOWN = (75, 80, 86, 89, 90, 100, 120)


def driver(*gpus: object) -> Driver:
    return Driver("ready", (13, 0), "580.65.06", gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("80,90", "80 90"),
        ("9.0", "90"),
        ("sm_86 compute_75", "75 86"),
        ("90a-real;120", "90a-real 120"),
        ("12.1,90,90", "90 121"),
        ("SM_90", "90"),
    ],
)
def test_ways_to_write_architectures(text: str, read: str) -> None:
    assert " ".join(map(str, parse_archs(text))) == read


@pytest.mark.parametrize("text", ["hopper", "80,x", "9", "90b", "", ",", "8.66", "90-ptx"])
def test_what_is_no_architecture(text: str) -> None:
    with pytest.raises(UsageError, match="architecture"):
        parse_archs(text)


def test_not_asked_is_not_an_empty_list() -> None:
    assert parse_archs(None) == ()


def test_gpus_present_decide() -> None:
    chosen = choose_archs((), driver(H200, gpu("NVIDIA L4", 8, 9), H200), KNOWN, "13.0.88")
    assert chosen.cmake == "89-real;90-real"
    assert chosen.reason == "of NVIDIA H200 (9.0), NVIDIA L4 (8.9)"


def test_default_without_gpu_is_one_that_runs_everywhere_since_8_0() -> None:
    chosen = choose_archs((), NO_DRIVER, KNOWN, "13.0.88")
    assert chosen.cmake == "80"
    assert "without a GPU" in chosen.reason
    assert all(chosen.archs[0].runs_on(capability) for capability in ((8, 0), (8, 9), (9, 0), (12, 1)))


def test_gpu_that_the_toolkit_has_dropped() -> None:
    with pytest.raises(
        PyggmlError, match=r"no longer compiles for GTX 1080 \(6\.1\): it begins at 7\.5"
    ) as caught:
        choose_archs((), driver(gpu("GTX 1080", 6, 1)), KNOWN, "13.0.88")
    assert "CUDA 12" in str(caught.value.hint)


def test_gpu_that_is_newer_than_the_toolkit() -> None:
    with pytest.raises(PyggmlError, match=r"does not know New \(13\.0\)") as caught:
        choose_archs((), driver(gpu("New", 13, 0)), KNOWN, "13.0.88")
    assert "--arch 120-virtual" in str(caught.value.hint)


def test_one_unsupported_gpu_among_others_is_left_out_and_told() -> None:
    chosen = choose_archs((), driver(gpu("GTX 1080", 6, 1), H200), KNOWN, "13.0.88")
    assert chosen.cmake == "90-real"
    assert chosen.notes == ("GTX 1080 (6.1) is left out: CUDA 13.0.88 does not compile for it",)


def test_asked_for_and_unknown_to_the_toolkit() -> None:
    with pytest.raises(UsageError, match="does not compile for architecture 61") as caught:
        choose_archs(parse_archs("61"), NO_DRIVER, KNOWN, "13.0.88")
    assert "75, 80" in str(caught.value.hint)
    with pytest.raises(UsageError, match="suffix a begins with 90"):
        choose_archs(parse_archs("80a"), NO_DRIVER, KNOWN, "13.0.88")
    # An nvcc that lists nothing is not held against the user.
    assert choose_archs(parse_archs("61"), NO_DRIVER, (), "13.0.88").cmake == "61"


def test_asked_for_another_gpu_than_the_one_present_is_told() -> None:
    chosen = choose_archs(parse_archs("120"), driver(H200), KNOWN, "13.0.88")
    assert chosen.notes == ("NVIDIA H200 (9.0) will not run what is compiled for 120",)
    assert choose_archs(parse_archs("80"), driver(H200), KNOWN, "13.0.88").notes == ()


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        (Arch(80), (8, 6), True),
        (Arch(80, kind="-real"), (8, 6), True),
        (Arch(80, kind="-real"), (9, 0), False),
        (Arch(80, kind="-virtual"), (9, 0), True),
        (Arch(86), (8, 0), False),
        (Arch(90, "a"), (9, 0), True),
        (Arch(90, "a"), (10, 0), False),
        (Arch(100, "f"), (10, 3), True),
        (Arch(100, "f"), (12, 0), False),
    ],
)
def test_what_runs_where(arch: Arch, capability: tuple[int, int], runs: bool) -> None:
    assert arch.runs_on(capability) is runs
