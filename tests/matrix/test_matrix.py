"""The whole matrix on a few small models of the project's build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.matrix.run import MatrixResult
from pyggml.matrix.verdict import MatrixRow
from pyggml.matrix.workload import Workload
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape

pytestmark = pytest.mark.native

Lively = Callable[[str], Path]
Matrix = Callable[..., MatrixResult]


def rows(result: MatrixResult) -> dict[str, MatrixRow]:
    """Each by its configuration; of one model."""
    return {record.case.run.configuration(): record for record in result.records}


def shaped(path: Path, **shape: int) -> Path:
    return make_llama(ModelShape(**{"embd": 64, "k_size": 16, "ff": 96, "vocab": 300, **shape}), path)  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_split_by_layer_gives_the_bits_of_the_cpu(lively: Lively, matrix: Matrix, arch: str) -> None:
    found = rows(matrix(lively(arch), split_modes=("layer",)))
    for kv in ("device", "host"):
        check = found[f"layer 2 {kv} f16"].check("cpu")
        assert check is not None and check.differing == 0
    assert found["layer 2 host f16"].verdict == "identical"


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen35"])
def test_split_by_tensor_is_within_the_bound(lively: Lively, matrix: Matrix, arch: str) -> None:
    found = rows(matrix(lively(arch), kv=("device",), streams=(1, 3), unified=(True, False)))
    for configuration in ("", " 3 unified", " 3 streams"):
        record = found[f"tensor 2 device f16{configuration}"]
        assert record.verdict == "within", record.reason
        # Otherwise the bound would mean nothing.
        assert record.sensitivity is not None and record.sensitivity > 1e-3


def test_a_split_by_layer_does_not_depend_on_the_schedule(lively: Lively, matrix: Matrix) -> None:
    schedules = ("late", "random:1", "late/host=pageable")
    result = matrix(lively("llama"), split_modes=("layer",), schedules=schedules, streams=(2,))
    found = [record for record in result.records if record.case.at_once is not None]
    assert len(found) == 6
    assert {record.verdict for record in found} == {"identical"}


@pytest.mark.slow
def test_unequal_devices_are_identical_and_what_upstream_cannot_do_is_a_row(
    lively: Lively, matrix: Matrix
) -> None:
    equal, unequal = "0:alignment=4096,pad=512,2d=off;1:async=off", "1:refuse=SET_ROWS"
    found = rows(matrix(lively("llama"), kv_types=("q8_0",), traits=(equal, unequal)))
    assert found[f"tensor 2 host q8_0 [{equal}]"].verdict == "identical"
    refused = found[f"tensor 2 device q8_0 [{unequal}]"]
    assert (refused.verdict, refused.phase) == ("died", "making the context")
    assert "cannot run the operation (SET_ROWS)" in refused.reason
    by_layer = rows(matrix(lively("llama"), split_modes=("layer",), traits=(unequal,)))
    assert by_layer[f"layer 2 host f16 [{unequal}]"].verdict == "identical"


@pytest.mark.patch("reduction-temporaries")
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_no_operations_race(lively: Lively, matrix: Matrix, mode: str) -> None:
    result = matrix(lively("llama"), split_modes=(mode,), devices=(3,), races=True)
    assert {record.verdict for record in result.records} <= {"reference", "within", "identical"}


def test_a_copy_that_waits_on_both_sides_orders_the_reduction(lively: Lively, matrix: Matrix) -> None:
    found = rows(matrix(lively("llama"), kv=("device",), schedules=("late/copies=both",), devices=(3,)))
    assert found["tensor 3 device f16 late/copies=both"].verdict == "identical"


@pytest.mark.patch("name-truncation", "head-split-leaves")
def test_host_resident_cache_is_identical(lively: Lively, matrix: Matrix) -> None:
    found = rows(matrix(lively("llama")))
    assert found["tensor 2 host f16"].verdict == "identical"


@pytest.mark.patch("nan-without-work")
def test_poisoned_memory_of_a_device_without_heads_is_not_read(lively: Lively, matrix: Matrix) -> None:
    record = rows(matrix(lively("llama"), devices=(3,), kv=("device",)))["tensor 3 device f16"]
    assert record.verdict == "within"


def test_batches_shift_and_quantised_cache(lively: Lively, matrix: Matrix) -> None:
    work = Workload(prompt=40, batch=16, shift=8)
    found = rows(matrix(lively("llama"), kv=("device",), kv_types=("f16", "q8_0"), streams=(2,), work=work))
    for kv_type in ("f16", "q8_0"):
        assert found[f"tensor 2 device {kv_type} 2 streams shift 8"].verdict == "within"
    # The cache types make a difference, so the option arrives.
    assert found["cpu q8_0 2 streams shift 8"].sensitivity != found["cpu f16 2 streams shift 8"].sensitivity


def test_k_and_v_of_different_types(lively: Lively, matrix: Matrix) -> None:
    found = rows(matrix(lively("llama"), kv=("device",), kv_types=("q8_0", "q8_0/f16", "f16/q8_0", "f16")))
    sensitivities = {found[f"cpu {types}"].sensitivity for types in ("q8_0", "q8_0/f16", "f16/q8_0", "f16")}
    assert len(sensitivities) == 4
    assert {record.verdict for record in found.values()} == {"reference", "within"}


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_a_cache_per_stream_has_the_bits_of_the_one_tensor(lively: Lively, matrix: Matrix, arch: str) -> None:
    work = Workload(shift=3)
    result = matrix(
        lively(arch), streams=(3,), layouts=("one", "per-stream"), split_modes=("layer", "tensor"), work=work
    )
    own = [record for record in result.records if record.case.one is not None]
    assert len(own) == 5
    if "has no kv_per_stream" in own[0].reason:
        assert {record.verdict for record in own} == {"unsupported"}
        pytest.skip(own[0].reason)
    assert {record.verdict for record in own} == {"identical"}, [record.reason for record in own]
    # Otherwise equal bits would mean nothing.
    assert own[0].sensitivity is not None and own[0].sensitivity > 1e-3


@pytest.mark.patch("per-stream-tensors")
def test_a_model_that_reserves_for_one_sequence_has_a_cache_per_stream(
    lively: Lively, matrix: Matrix
) -> None:
    # On 0c1e57098 llama_context::sched_reserve takes a single sequence for the worst case of Kimi Linear.
    result = matrix(
        lively("kimi-linear"),
        streams=(2,),
        layouts=("one", "per-stream"),
        split_modes=("layer",),
        kv=("device",),
    )
    own = [record for record in result.records if record.case.one is not None]
    assert [record.verdict for record in own] == ["identical"] * 2, [record.reason for record in own]


def test_a_hybrid_split_by_layer_computes_the_same_sums_with_the_cache_on_the_host(
    lively: Lively, matrix: Matrix
) -> None:
    # With flash attention left to llama.cpp it does not: resolve_fused_ops in llama-context.cpp compares the
    # attention's device with the layer's, and its own TODO says that this is wrong for --no-kv-offload.
    result = matrix(lively("jamba"), split_modes=("layer",))
    assert [record.verdict for record in result.records] == ["reference", "within", "identical"]


def test_rows_with_a_reason_instead_of_a_crash(lively: Lively, matrix: Matrix, tmp_path: Path) -> None:
    small = shaped(tmp_path / "small.gguf")
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(small.read_bytes().replace(b"llama", b"zlama"))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(small.read_bytes()[: small.stat().st_size // 2])
    for model, options, words, verdict in (
        (lively("mamba"), {}, "not implemented for architecture 'mamba'", "unsupported"),
        (unknown, {}, "unknown model architecture: 'zlama'", "unsupported"),
        (small, {"kv_types": ("q8_0",)}, "block size 32 does not divide n_embd_head_k=16", "unsupported"),
        (small, {"flash_attn": "off"}, "requires flash_attn", "unsupported"),
        (damaged, {}, "not within the file bounds", "failed"),
    ):
        record = matrix(model, kv=("device",), **options).records[1]
        assert (record.verdict, words in record.reason) == (verdict, True), record.reason


def test_a_device_without_a_share_is_a_row(matrix: Matrix, tmp_path: Path) -> None:
    record = matrix(shaped(tmp_path / "m.gguf"), kv=("device",), splits=((1, 0),)).records[1]
    assert record.note == "a device without a share"
    assert record.verdict in ("within", "nan")


def test_a_hang_costs_only_its_case(matrix: Matrix, tmp_path: Path) -> None:
    result = matrix(
        shaped(tmp_path / "m.gguf"), kv=("device",), timeout=0.001, work=Workload(prompt=4000, steps=0)
    )
    assert {record.verdict for record in result.records} == {"hung"}


@pytest.mark.parametrize(
    ("does", "verdict", "words"),
    [
        ("os.abort()", "died", "SIGABRT"),
        ("os.kill(os.getpid(), 8)", "died", "SIGFPE (division by zero)"),
        ("os.kill(os.getpid(), 9)", "died", "out of memory"),
        ("time.sleep(60)", "hung", "not finished after 2 s"),
        ("{}['a key']", "failed", "KeyError: 'a key'"),
        ("os._exit(5)", "failed", "exit status 5"),
        ("os.kill(os.getppid(), 9)", "failed", "the process that starts the cases ended"),
    ],
)
def test_whatever_a_case_does_is_its_row_alone(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, verdict: str, words: str
) -> None:
    from pyggml.matrix import worker_pool

    only_here = f"if run.devices: {does}"
    changed = (
        "import os, time, pyggml.matrix.model_run as m\n"
        "was = m.compute_logits\n"
        f"def compute_logits(bindings, run, *rest):\n    {only_here}\n    return was(bindings, run, *rest)\n"
        "m.compute_logits = compute_logits\n"
    )
    first, _, last = worker_pool._START.partition("; ")
    load, _, serve = last.partition("; ")
    monkeypatch.setattr(worker_pool, "_START", f"{first}; {load}\n{changed}{serve}")
    a, b = (shaped(tmp_path / f"{name}.gguf") for name in "ab")
    records = matrix(a, b, kv=("device",), timeout=2).records
    # Of both models; the reference after a death is as good as the one before it.
    assert [record.verdict for record in records] == ["reference", verdict, "reference", verdict]
    assert words in records[1].reason


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pyggml", "matrix", *map(str, arguments)]


def test_the_command(lively: Lively, tmp_path: Path) -> None:
    model, file = lively("llama"), tmp_path / "found.json"
    done = subprocess.run(
        command("--model", model, "--split-mode", "layer", "--devices", "1,2", "--json", file),
        capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout
    assert len(json.loads(file.read_text("utf-8"))["cases"]) == 5


def test_the_command_says_no_with_its_exit_code_and_one_document(tmp_path: Path) -> None:
    model = tmp_path / "d.gguf"
    model.write_bytes(shaped(tmp_path / "m.gguf").read_bytes()[:2000])
    done = subprocess.run(
        command("--model", model, "--json", "-"),
        capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert json.loads(done.stdout)["counts"] == {"failed": 3}
    assert "d" in done.stderr and "1 model," in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "x", "--model", "."], "exclude each other"),
        (["--zoo", "--model", "."], "--zoo and --model exclude each other"),
        (["--zoo", "--weights", "upstream"], "--zoo and --weights exclude each other"),
        (["--zoo", "--arch", "no such"], "no model of the zoo matches 'no such'"),
        (["--model", "."], "no GGUF file"),
        (["--kv-type", "q8_0/q9"], "'q9' is unknown; there are: f32"),
        (["--kv-type", "q9"], "'q9' is unknown; there are: f32"),
        (["--unified", "maybe"], "'maybe' is unknown; there are: yes, no"),
        (["--devices", "2,x"], "not a list such as"),
        (["--tensor-split", "a"], "not a list of shares"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        command(*arguments),
        capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr


def test_killed_it_leaves_no_process_and_no_files(lively: Lively, tmp_path: Path) -> None:
    many = command(
        "--model", lively("llama"), "--streams", "1,2,3,4", "--devices", "1,2,3,4", "--prompt", 120
    )
    process = subprocess.Popen(
        many, cwd=Path(__file__).parent, env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def until(wanted: Callable[[], bool]) -> bool:
        end = time.monotonic() + 30
        while not wanted() and time.monotonic() < end:
            time.sleep(0.02)
        return wanted()

    # As soon as a case has written something.
    assert until(lambda: any(tmp_path.glob("pyggml-matrix-*/*.npy")) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert until(lambda: not any(tmp_path.iterdir())), list(tmp_path.iterdir())
