"""What is run and what is compared with what."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyggml.errors import UsageError
from pyggml.verify.cases import Case, Grid, Work, expand

A, B = Path("a.gguf"), Path("b.gguf")


def told(cases: tuple[Case, ...]) -> list[str]:
    return [f"{case.run.name} {case.run.configuration()}" for case in cases]


def test_the_default_is_two_devices_and_both_caches() -> None:
    cases = expand(Grid("this"), [A, B])
    assert told(cases) == [
        "a cpu f16", "a tensor 2 device f16", "a tensor 2 host f16",
        "b cpu f16", "b tensor 2 device f16", "b tensor 2 host f16",
    ]  # fmt: skip
    cpu, device, host = cases[:3]
    assert (cpu.cpu, cpu.twin) == (None, None)
    assert (device.cpu, device.twin) == (cpu.run, None)
    assert (host.cpu, host.twin) == (cpu.run, device.run)
    assert all(case.judged for case in cases)


def test_references_are_shared() -> None:
    cases = expand(Grid("this", devices=(1, 2, 3), split_modes=("layer", "tensor")), [A])
    assert len({case.cpu for case in cases} - {None}) == 1
    assert len(cases) == 1 + 3 * 2 * 2


def test_host_alone_needs_the_devices_but_does_not_judge_them() -> None:
    cases = expand(Grid("this", kv=("host",)), [A])
    assert [(case.run.kv, case.judged) for case in cases[1:]] == [("device", False), ("host", True)]


def test_device_alone_runs_nothing_on_the_host() -> None:
    assert told(expand(Grid("this", kv=("device",)), [A])) == ["a cpu f16", "a tensor 2 device f16"]


def test_unified_and_not_are_the_same_with_one_sequence() -> None:
    cases = expand(Grid("this", kv=("device",), streams=(1, 2), unified=(True, False)), [A])
    assert told(cases) == [
        "a cpu f16", "a tensor 2 device f16",
        "a cpu f16 2 unified", "a tensor 2 device f16 2 unified",
        "a cpu f16 2 streams", "a tensor 2 device f16 2 streams",
    ]  # fmt: skip


def test_splits_decide_how_many_devices() -> None:
    cases = expand(Grid("this", splits=((55, 45), (1, 2, 3)), kv=("device",)), [A])
    assert told(cases) == ["a cpu f16", "a tensor 2 55:45 device f16", "a tensor 3 1:2:3 device f16"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": (0,)}, "1 to 16"),
        ({"devices": (17,)}, "1 to 16"),
        ({"devices": (2, 3), "splits": ((1, 1),)}, "no --tensor-split has 3 shares"),
        ({"devices": (2,), "splits": ((1, 1), (1, 1, 1))}, "--devices has no 3"),
        ({"splits": ((0, 0),)}, "not all 0"),
        ({"splits": ((1, float("nan")),)}, "0 or more"),
        ({"splits": ((1, -1),)}, "0 or more"),
        ({"streams": (0,)}, "1 to 256"),
        ({"streams": (257,)}, "1 to 256"),
        ({"streams": (4,), "work": Work(batch=3)}, "no room for a token of each of 4"),
        ({"bound": float("nan")}, "--bound is nan"),
        ({"against": "this"}, "is the build itself"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Grid("this", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": 0}, "--prompt is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"prompt": 8, "shift": 8}, "leaves nothing"),
        ({"steps": 0, "shift": 1}, "seen only by the steps"),
    ],
)
def test_work_that_cannot_be(options: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Work(**options)


def test_prompts_have_different_lengths_and_none_is_empty() -> None:
    assert [Work(prompt=32).length(seq) for seq in range(4)] == [32, 28, 24, 20]
    for prompt in (1, 2, 3, 7, 32):
        assert all(1 <= Work(prompt=prompt).length(seq) <= prompt for seq in range(256))


@pytest.mark.parametrize("batch", [None, 1, 3, 5, 7, 100])
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_batches_hold_every_token_once_and_in_order(batch: int | None, streams: int) -> None:
    work = Work(prompt=8, batch=batch)
    batches = work.batches(streams)
    found = [(seq, token) for one in batches for seq, first, end in one for token in range(first, end)]
    assert found == [(seq, token) for seq in range(streams) for token in range(work.length(seq))]
    sizes = [sum(end - first for _, first, end in one) for one in batches]
    if batch is None:
        assert len(batches) == 1
    else:
        # All are full but the last.
        assert all(size == batch for size in sizes[:-1]) and 0 < sizes[-1] <= batch


def test_rows_name_step_sequence_and_token() -> None:
    work = Work(prompt=3, steps=2)
    assert [work.length(seq) for seq in range(2)] == [3, 2]
    assert work.rows(2) == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1),
        (1, 0, 3), (1, 1, 2), (2, 0, 4), (2, 1, 3),
    ]  # fmt: skip


def test_the_same_case_of_another_build_refers_to_that_build_only() -> None:
    host = expand(Grid("this"), [A])[2].elsewhere("other")
    assert {run.build for run in host.runs()} == {"other"}
