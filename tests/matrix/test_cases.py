"""What is run and what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.errors import UsageError
from pyggml.matrix.cases import Case, Grid, expand, zoo_grids
from pyggml.matrix.workload import Workload

from .conftest import CPU

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


def test_every_text_of_traits_is_a_row_with_a_twin_of_the_same_traits() -> None:
    cases = expand(Grid("this", traits=("", "1:pad=512")), [A])
    assert told(cases) == [
        "a cpu f16", "a tensor 2 device f16", "a tensor 2 host f16",
        "a tensor 2 device f16 [1:pad=512]", "a tensor 2 host f16 [1:pad=512]",
    ]  # fmt: skip
    assert cases[4].twin == cases[3].run


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
        ({"streams": (4,), "work": Workload(batch=3)}, "no room for a token of each of 4"),
        ({"bound": float("nan")}, "--bound is nan"),
        ({"against": "this"}, "is the same build"),
        ({"cuda": True, "schedules": ("late",)}, "--schedule is of virtual devices"),
        ({"cuda": True, "traits": ("0:pad=512",)}, "--device-traits is of virtual devices"),
        ({"traits": ("2:pad=512",)}, "there is no device 2"),
        ({"traits": ("0:colour=red",)}, "there is no trait 'colour'"),
        ({"layouts": ("per-stream",), "streams": (2,), "unified": (True,)}, "cannot be laid out per stream"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Grid("this", **options)  # type: ignore[arg-type]


def test_the_same_case_of_another_build_refers_to_that_build_only() -> None:
    host = expand(Grid("this"), [A])[2].elsewhere("other")
    assert {run.build for run in host.runs()} == {"other"}


def test_a_layout_is_compared_with_the_one_tensor_in_the_same_place() -> None:
    grid = Grid("this", streams=(1, 2), layouts=("per-stream", "one"), split_modes=("layer",))
    cases = expand(grid, [A])
    assert told(cases) == [
        "a cpu f16", "a layer 2 device f16", "a layer 2 host f16",
        "a cpu f16 1 per-stream", "a layer 2 device f16 1 per-stream", "a layer 2 host f16 1 per-stream",
        "a cpu f16 2 streams", "a layer 2 device f16 2 streams", "a layer 2 host f16 2 streams",
        "a cpu f16 2 per-stream", "a layer 2 device f16 2 per-stream", "a layer 2 host f16 2 per-stream",
    ]  # fmt: skip
    for one, own in zip(cases[6:9], cases[9:], strict=True):
        assert one.one is None
        assert own.one == one.run
        assert own.cpu == cases[6].run
    assert cases[11].twin == cases[10].run
    assert all(case.judged for case in cases)


def test_a_layout_alone_runs_the_one_tensor_but_does_not_judge_it() -> None:
    cases = expand(Grid("this", streams=(2,), layouts=("per-stream",)), [A])
    assert [case.run.layout for case in cases if case.judged] == ["per-stream"] * 3
    assert {case.run for case in cases} >= {case.one for case in cases} - {None}


def test_a_unified_cache_has_no_streams_to_lay_out() -> None:
    grid = Grid("this", streams=(1, 2, 4), unified=(True, False), layouts=("one", "per-stream"))
    assert grid.left_out == (2, 4)
    assert grid.combinations == (
        (1, False, "one"), (1, False, "per-stream"),
        (2, True, "one"), (2, False, "one"), (2, False, "per-stream"),
        (4, True, "one"), (4, False, "one"), (4, False, "per-stream"),
    )  # fmt: skip
    assert Grid("this", streams=(2,), unified=(True, False)).left_out == ()


def test_another_build_has_the_layout_of_every_build() -> None:
    case = expand(Grid("this", streams=(2,), layouts=("per-stream",)), [A])[-1].elsewhere("other")
    assert {(run.build, run.layout) for run in case.runs()} == {("other", "one")}


def test_every_schedule_is_compared_with_at_once() -> None:
    cases = expand(Grid("this", schedules=("at-once", "late", "random:1"), kv=("host",)), [A])
    assert told(cases) == [
        "a cpu f16", "a tensor 2 device f16",
        "a tensor 2 host f16", "a tensor 2 host f16 late", "a tensor 2 host f16 random:1",
    ]  # fmt: skip
    for case in cases[3:]:
        assert case.at_once == cases[2].run
        assert case.twin is None
    assert [case.judged for case in cases] == [True, False, True, True, True]


def test_a_schedule_alone_runs_at_once_but_does_not_judge_it() -> None:
    cases = expand(Grid("this", schedules=("late",), kv=("device",)), [A])
    assert [case.run.schedule for case in cases if case.judged and case.run.devices] == ["late"]
    assert {case.run for case in cases} >= {case.at_once for case in cases} - {None}


def test_a_schedule_in_another_build_is_compared_there() -> None:
    late = expand(Grid("this", schedules=("late",)), [A])[2]
    assert late.at_once is not None
    there = late.elsewhere("other")
    assert there.run.schedule == "late"
    assert {run.build for run in there.runs()} == {"other"}


def test_the_zoo_runs_each_axis_at_length() -> None:
    cases = expand(zoo_grids(Grid("this", bound=1e-3)), [Path("m.gguf")])
    runs = [case.run for case in cases if case.run.devices]
    assert {run.devices for run in runs if run.split is None} == {2, 3, 4, 6, 8}
    assert {run.split for run in runs} >= {(4, 1), (1, 0), (1, 1, 1), (0.2, 0.65, 0.15), (41, 29, 30)}
    assert len({run.kv_type for run in runs}) == 13
    assert {(run.streams, run.unified, run.layout) for run in runs} >= {
        (2, True, "one"),
        (2, False, "one"),
        (2, False, "per-stream"),
    }
    assert {run.kv_type for run in runs if run.work.shift} == {"f16", "q8_0"}
    assert {run.kv for run in runs} == {"device", "host"}
    # No run twice, although the grids share some.
    assert len(set(cases)) == len(cases) < 80


def test_types_of_k_and_v() -> None:
    assert replace(CPU, kv_type="q8_0/f16").kv_types == ("q8_0", "f16")
    assert CPU.kv_types == ("f16", "f16")
