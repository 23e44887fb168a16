"""What single patches of the series mend, seen on whole models; each fails on the build of the patch's parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.matrix.run import MatrixResult
from pyggml.matrix.verdict import MatrixRow
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape

from .grouped import with_grouped_v_heads

pytestmark = pytest.mark.native

Lively = Callable[[str], Path]
Matrix = Callable[..., MatrixResult]


def rows(result: MatrixResult) -> dict[str, MatrixRow]:
    """Each by its configuration; of one model."""
    return {record.case.run.configuration(): record for record in result.records}


@pytest.mark.patch("name-truncation", "head-split-leaves", "strided-readback")
@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize("splits", [(), ((55.0, 45.0),)], ids=["even", "uneven"])
def test_k_and_v_heads_of_different_widths(
    tmp_path: Path, matrix: Matrix, fused: bool, splits: tuple[tuple[float, ...], ...]
) -> None:
    """v-head-size: K heads of 192 and V heads of 128, as MiMo-V2 has them."""
    shape = ModelShape(
        heads=8, kv_heads=4, k_size=192, v_size=128, embd=64, ff=96, vocab=300, fused_qkv=fused
    )
    model = make_llama(shape, tmp_path / "wide-k.gguf")
    found = rows(matrix(model, splits=splits))
    tensor = {
        record.case.run.kv: record for record in found.values() if record.case.run.split_mode == "tensor"
    }
    assert tensor["device"].verdict == "within", tensor["device"].reason
    assert tensor["host"].verdict == "identical", tensor["host"].reason


@pytest.mark.parametrize("splits", [(), ((55.0, 45.0),)], ids=["even", "uneven"])
def test_a_fused_qkv_of_different_widths_on_the_devices(
    tmp_path: Path, matrix: Matrix, splits: tuple[tuple[float, ...], ...]
) -> None:
    """v-head-size alone: a cache on the host would read the fused K and V back, which is strided-readback's."""
    shape = ModelShape(heads=8, kv_heads=4, k_size=192, v_size=128, embd=64, ff=96, vocab=300, fused_qkv=True)
    found = rows(matrix(make_llama(shape, tmp_path / "fused.gguf"), splits=splits, kv=("device",)))
    (record,) = (r for r in found.values() if r.case.run.split_mode == "tensor")
    assert record.verdict == "within", record.reason


def test_shares_that_are_not_exact(tmp_path: Path, matrix: Matrix) -> None:
    """split-rounding: as a float 1/1.2 of the width of Q is below 5 of 6 heads, and that of K is not."""
    shape = ModelShape(heads=18, kv_heads=6, k_size=128, embd=64, ff=96, vocab=300)
    found = rows(matrix(make_llama(shape, tmp_path / "wide.gguf"), splits=((1.0, 0.2),)))
    tensor = {r.case.run.kv: r for r in found.values() if r.case.run.split_mode == "tensor"}
    assert tensor["device"].verdict == "within", tensor["device"].reason
    assert tensor["host"].verdict == "identical", tensor["host"].reason


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_qwen3next_on_three_devices(lively: Lively, matrix: Matrix, tmp_path: Path, grouped: bool) -> None:
    """qwen3next-heads: three devices do not divide its heads as two do.

    Newer trees split the conv state in segments; then only V heads in groups, as in all real models, show it.
    """
    model = lively("qwen3next")
    if grouped:
        model = with_grouped_v_heads(model, tmp_path / "grouped.gguf")
    record = rows(matrix(model, devices=(3,), kv=("device",)))["tensor 3 device f16"]
    assert record.verdict == "within", record.reason


@pytest.mark.parametrize("arch", ["gpt2", "falcon"])
def test_a_fused_qkv_is_read_back_from_the_devices(lively: Lively, matrix: Matrix, arch: str) -> None:
    """strided-readback: K and V of a fused QKV are strided views that go to the host."""
    record = rows(matrix(lively(arch)))["tensor 2 host f16"]
    assert record.verdict == "identical", record.reason


@pytest.mark.parametrize("arch", ["qwen35", "qwen3next"])
def test_the_recurrent_state_stays_on_the_devices(lively: Lively, matrix: Matrix, arch: str) -> None:
    """recurrent-placement: with the state on the host a linear attention cannot be split."""
    record = rows(matrix(lively(arch)))["tensor 2 host f16"]
    assert record.verdict == "identical", record.reason


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "streams"])
def test_several_sequences_with_the_cache_on_the_host(lively: Lively, matrix: Matrix, unified: bool) -> None:
    """host-view-graph-end: streams that are not unified end a graph in a view of the host's cache."""
    found = rows(matrix(lively("llama"), streams=(3,), unified=(unified,)))
    (record,) = (r for r in found.values() if (r.case.run.split_mode, r.case.run.kv) == ("tensor", "host"))
    assert record.verdict == "identical", record.reason


@pytest.mark.parametrize("devices", [3, 4, 8])
def test_more_devices_than_heads_in_poisoned_memory(lively: Lively, matrix: Matrix, devices: int) -> None:
    """nan-without-work: devices without heads add zero, whatever their memory holds."""
    found = rows(matrix(lively("llama"), devices=(devices,)))
    for kv, verdict in (("device", "within"), ("host", "identical")):
        record = found[f"tensor {devices} {kv} f16"]
        assert record.verdict == verdict, record.reason


def test_a_split_by_tensor_does_not_depend_on_the_schedule(lively: Lively, matrix: Matrix) -> None:
    """reduction-temporaries: a device that is ahead sends its next summand before the last one is added."""
    result = matrix(lively("llama"), kv=("device",), devices=(2, 3), schedules=("late", "random:1"))
    found = [record for record in result.records if record.case.at_once is not None]
    assert len(found) == 4
    assert {record.verdict for record in found} == {"identical"}


def test_a_reduction_has_no_race(lively: Lively, matrix: Matrix) -> None:
    """reduction-temporaries: with six devices the fold-in and the butterfly shared a temporary as well."""
    result = matrix(lively("llama"), kv=("device",), devices=(2, 6), races=True)
    found = {record.case.run.devices: record for record in result.records}
    for devices in (2, 6):
        assert found[devices].verdict == "within", found[devices].reason
