"""Verdicts: of a case alone, and beside another build."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from pyggml.matrix.cases import Case
from pyggml.matrix.verdict import MatrixRow, judge
from pyggml.native.races import Race, RacingOperation

from .conftest import (
    CPU,
    DEVICE,
    HOST,
    LOGITS,
    ON_DEVICES,
    ON_HOST,
    OWN_DEVICE,
    OWN_HOST,
    OWN_ON_DEVICES,
    OWN_ON_HOST,
    REFERENCE,
    Stage,
)  # fmt: skip


def verdict(case: Case, stage: Stage, against: str | None = None) -> tuple[str, str]:
    record = judge(case, stage.outcomes, stage.load, against)
    return record.verdict, record.reason


def off(index: int, by: float) -> np.ndarray:
    array = LOGITS.copy()
    array.flat[index] += by
    return array


@pytest.fixture
def other(stage: Stage) -> Stage:
    """Everything works here and in the other build."""
    for run in (CPU, DEVICE, HOST):
        stage.done(run)
        stage.done(replace(run, build="other"))
    return stage


def test_all_as_it_should_be(stage: Stage) -> None:
    for run in (CPU, DEVICE, HOST):
        stage.done(run)
    assert verdict(REFERENCE, stage) == ("reference", "")
    assert verdict(ON_DEVICES, stage) == ("within", "")
    assert verdict(ON_HOST, stage) == ("identical", "")


def test_beyond_the_bound(stage: Stage) -> None:
    stage.done(CPU)
    stage.done(DEVICE, off(0, 1.0))
    kind, reason = verdict(ON_DEVICES, stage)
    assert kind == "over"
    assert "NMSE 1.1e-02 against the CPU, 0.0001 allowed" in reason
    # 1 squared over 1 + 4 + ... + 36.
    for bound, expected in ((0.9 / 91, "over"), (1.1 / 91, "within")):
        assert judge(ON_DEVICES, stage.outcomes, stage.load, bound=bound).verdict == expected


def test_bits_that_differ_say_where(stage: Stage) -> None:
    stage.done(CPU)
    stage.done(DEVICE)
    stage.done(HOST, off(5, 1e-6))
    record = judge(ON_HOST, stage.outcomes, stage.load)
    assert record.verdict == "differs"
    check = record.check("device")
    assert check is not None and check.first is not None
    assert (check.first.step, check.first.sequence, check.first.token, check.first.logit) == (1, 0, 2, 1)
    assert "step 1, sequence 0, token 2" in record.reason
    # Within the bound of the CPU is not good enough.
    cpu = record.check("cpu")
    assert cpu is not None and cpu.verdict == "within"


def test_a_nan_is_never_right_not_even_the_same_one(stage: Stage) -> None:
    for run in (CPU, DEVICE, HOST):
        stage.done(run, off(2, float("nan")))
    for case in (REFERENCE, ON_DEVICES, ON_HOST):
        kind, reason = verdict(case, stage)
        assert kind == "nan"
        assert "1 of 6 logits are NaN, the first at step 0, sequence 0, token 1" in reason


@pytest.mark.parametrize("kind", ["died", "hung", "failed"])
def test_what_ends_is_told(stage: Stage, kind: str) -> None:
    stage.done(CPU)
    stage.done(DEVICE)
    stage.ended(HOST, kind, "SIGFPE")
    record = judge(ON_HOST, stage.outcomes, stage.load)
    assert (record.verdict, record.reason, record.phase) == (kind, "SIGFPE", "step 1 of 1")


def test_what_the_model_cannot_is_unsupported(stage: Stage) -> None:
    stage.done(CPU)
    for run in (DEVICE, HOST):
        stage.ended(run, "refused", "not implemented for architecture 'mamba'", supported=False)
    assert verdict(ON_DEVICES, stage)[0] == verdict(ON_HOST, stage)[0] == "unsupported"


def test_a_refusal_of_the_host_where_the_devices_work_is_a_failure(stage: Stage) -> None:
    stage.done(CPU)
    stage.done(DEVICE)
    stage.ended(HOST, "refused", "requires flash_attn", supported=False)
    assert verdict(ON_HOST, stage)[0] == "failed"


def test_an_unknown_refusal_is_a_failure(stage: Stage) -> None:
    stage.done(CPU)
    stage.ended(DEVICE, "refused", "unable to allocate VDEV0 buffer")
    assert verdict(ON_DEVICES, stage) == ("failed", "unable to allocate VDEV0 buffer")


def test_without_a_reference_nothing_is_right(stage: Stage) -> None:
    stage.ended(CPU, "died", "SIGSEGV")
    stage.done(DEVICE)
    kind, reason = verdict(ON_DEVICES, stage)
    assert kind == "failed"
    assert "nothing to compare with: cpu: SIGSEGV" in reason


def test_host_where_the_devices_died_is_held_to_the_bound(stage: Stage) -> None:
    stage.done(CPU)
    stage.ended(DEVICE, "died", "SIGFPE")
    stage.done(HOST)
    assert verdict(ON_HOST, stage)[0] == "within"
    stage.done(HOST, off(0, 1.0))
    assert verdict(ON_HOST, stage)[0] == "over"


def test_a_layout_is_held_to_the_bits_of_the_one_tensor(stage: Stage) -> None:
    for run in (CPU, DEVICE, HOST, OWN_DEVICE):
        stage.done(run, off(0, 1e-6) if run is OWN_DEVICE else LOGITS)
    stage.done(OWN_HOST)
    assert verdict(OWN_ON_DEVICES, stage)[0] == "differs"
    assert "against one" in verdict(OWN_ON_DEVICES, stage)[1]
    # Its own twin on the devices differs, which must not be hidden by the one tensor on the host.
    assert verdict(OWN_ON_HOST, stage)[0] == "differs"
    stage.done(OWN_DEVICE)
    assert verdict(OWN_ON_DEVICES, stage) == verdict(OWN_ON_HOST, stage) == ("identical", "")


def test_a_layout_where_the_one_tensor_died_is_held_to_the_bound(stage: Stage) -> None:
    stage.done(CPU)
    stage.ended(DEVICE, "died", "SIGFPE")
    stage.done(OWN_DEVICE)
    assert verdict(OWN_ON_DEVICES, stage)[0] == "within"
    stage.done(OWN_DEVICE, off(0, 1.0))
    assert verdict(OWN_ON_DEVICES, stage)[0] == "over"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("llama_kv_cache_dsa does not support kv_per_stream", "refused"),
        ("V is transposed, which a cache per stream cannot be", "refused"),
        ("the build 4df29be4f-cpu has no kv_per_stream", "unsupported"),
        ("unable to allocate VDEV0 buffer", "failed"),
    ],
)
def test_a_layout_that_is_refused(other: Stage, reason: str, expected: str) -> None:
    for run in (OWN_DEVICE, OWN_HOST):
        other.ended(run, "refused", reason)
    for case in (OWN_ON_DEVICES, OWN_ON_HOST):
        assert verdict(case, other) == (expected, reason)
        assert judge(case, other.outcomes, other.load).bad == (expected == "failed")
        # The other build may be one without the patch: its one tensor works.
        assert verdict(case, other, "other")[0] == expected


def test_a_layout_beside_the_one_tensor_of_the_other_build(other: Stage) -> None:
    other.done(OWN_DEVICE)
    assert verdict(OWN_ON_DEVICES, other, "other") == ("identical", "")
    other.done(OWN_DEVICE, off(0, 1e-6))
    record = judge(OWN_ON_DEVICES, other.outcomes, other.load, "other")
    assert [check.verdict for check in record.checks] == ["within", "differs", "differs"]


def test_a_case_that_is_not_judged_is_not_bad(stage: Stage) -> None:
    stage.done(CPU)
    stage.ended(DEVICE, "died", "SIGFPE")
    assert judge(ON_DEVICES, stage.outcomes, stage.load).bad
    assert not judge(replace(ON_DEVICES, judged=False), stage.outcomes, stage.load).bad


@pytest.mark.parametrize("case", [REFERENCE, ON_DEVICES, ON_HOST])
def test_identical_to_the_other_build(other: Stage, case: Case) -> None:
    assert verdict(case, other, "other") == ("identical", "")


def test_a_bit_off_the_other_build(other: Stage) -> None:
    for run in (DEVICE, HOST):
        other.done(run, off(0, 1e-6))
    kind, reason = verdict(ON_DEVICES, other, "other")
    assert kind == "differs"
    assert "against other" in reason
    assert verdict(ON_HOST, other, "other")[0] == "differs"


@pytest.mark.parametrize("kind", ["died", "hung"])
def test_what_did_not_work_there_is_fixed(other: Stage, kind: str) -> None:
    other.ended(replace(HOST, build="other"), kind, "SIGFPE")
    assert verdict(ON_HOST, other, "other") == ("fixed", f"{kind} in other: SIGFPE")


def test_what_was_wrong_there_may_differ(other: Stage) -> None:
    other.done(replace(HOST, build="other"), off(0, 0.5))
    kind, reason = verdict(ON_HOST, other, "other")
    assert kind == "fixed"
    assert "differs in other" in reason


def test_what_worked_there_and_not_here(other: Stage) -> None:
    other.ended(HOST, "died", "SIGFPE")
    record = judge(ON_HOST, other.outcomes, other.load, "other")
    assert (record.verdict, record.reason) == ("died", "SIGFPE")
    check = record.check("other")
    assert check is not None and check.verdict == "failed"
    assert "works in other, and here: SIGFPE" in check.reason


def test_an_architecture_that_lost_its_support(other: Stage) -> None:
    other.ended(DEVICE, "refused", "not implemented for architecture", supported=False)
    assert verdict(ON_DEVICES, other, "other")[0] == "failed"


def test_unsupported_in_both_builds(other: Stage) -> None:
    for run in (DEVICE, replace(DEVICE, build="other")):
        other.ended(run, "refused", "not implemented for architecture", supported=False)
    assert verdict(ON_DEVICES, other, "other")[0] == "unsupported"


def test_wrong_in_both_builds_is_still_wrong(other: Stage) -> None:
    for run in (DEVICE, replace(DEVICE, build="other")):
        other.done(run, off(0, 1.0))
    assert verdict(ON_DEVICES, other, "other")[0] == "over"


def test_sensitivity_comes_from_the_reference(stage: Stage) -> None:
    stage.done(CPU, sensitivity=0.25)
    stage.done(DEVICE)
    record: MatrixRow = judge(ON_DEVICES, stage.outcomes, stage.load)
    assert record.sensitivity == 0.25


def test_devices_without_heads_are_noted_even_of_what_died(stage: Stage) -> None:
    stage.done(CPU, kv_heads=1)
    stage.ended(DEVICE, "died", "SIGFPE")
    assert judge(ON_DEVICES, stage.outcomes, stage.load).note == "2 devices, 1 KV head"


def test_bits_that_depend_on_the_schedule(stage: Stage) -> None:
    late = replace(DEVICE, schedule="late")
    case = Case(late, cpu=CPU, at_once=DEVICE)
    stage.done(CPU)
    stage.done(DEVICE)
    stage.done(late)
    assert verdict(case, stage) == ("identical", "")
    stage.done(late, off(5, 1e-6))
    kind, reason = verdict(case, stage)
    assert kind == "unordered"
    assert "against at-once; 1 logits, first at step 1" in reason


def test_a_schedule_that_does_not_get_to_the_end_failed(stage: Stage) -> None:
    late = replace(DEVICE, schedule="late")
    stage.done(CPU)
    stage.done(DEVICE)
    stage.ended(late, "refused", "no", supported=False)
    assert verdict(Case(late, cpu=CPU, at_once=DEVICE), stage) == ("failed", "no")


RACE = Race(
    RacingOperation("ADD", "x", "", "VDEV1", "VDEV1", 3, False),
    RacingOperation("cpy", "tmp", "y", "VDEV0", "VDEV1", 4, True),
    16,
    "the queue of VDEV0 does not wait for the queue of VDEV1",
    "cpy of 'y' to 'tmp' is not ordered after ADD 'x'",
)


def test_a_race_makes_a_good_row_bad(stage: Stage) -> None:
    stage.done(CPU)
    stage.done(DEVICE, races=[asdict(RACE), asdict(RACE)])
    record = judge(ON_DEVICES, stage.outcomes, stage.load)
    assert (record.verdict, record.reason) == ("race", f"{RACE.text} (and 1 more)")
    assert record.races == (RACE, RACE)
    stage.done(DEVICE, races=[])
    assert verdict(ON_DEVICES, stage) == ("within", "")


def test_other_bits_are_worse_than_a_race_and_the_bound_is_not(stage: Stage) -> None:
    stage.done(CPU)
    stage.done(DEVICE, off(0, 1.0), races=[asdict(RACE)])
    assert verdict(ON_DEVICES, stage)[0] == "race"
    stage.done(HOST, races=[asdict(RACE)])
    assert verdict(ON_HOST, stage)[0] == "differs"
