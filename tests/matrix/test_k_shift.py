"""Moving positions in a quantised K cache, where K has to be rotated back before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.matrix.run import MatrixResult
from pyggml.matrix.workload import Workload
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.testing.fixtures import MakeDevices

pytestmark = pytest.mark.native

DROPPED = 5


def with_partial_rotary(source: Path, target: Path, width: int) -> Path:
    """Write `target`, the model `source` with rotary embedding of the first `width` values of each head."""
    import gguf

    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        value, kind = field.contents(), field.types[0]
        empty = kind.name == "ARRAY" and not len(value)
        if not (field.name.startswith("GGUF.") or field.name == "general.architecture" or empty):
            writer.add_key_value(field.name, value, kind, field.types[-1] if kind.name == "ARRAY" else None)
    writer.add_rope_dimension_count(width)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def shifted_logits(path: Path, type_k: str, **options: Any) -> np.ndarray[Any, Any]:
    """The logits after a prompt whose first tokens were dropped and the others moved to their place."""
    from pyggml.llama import LlamaContext, Model
    from pyggml.native.load import load

    with (
        Model.load(path, **options) as model,
        LlamaContext(model, n_ctx=256, threads=1, flash_attn=True, type_k=type_k) as context,
    ):
        context.decode([*range(1, 33)])
        context.memory.seq_rm(0, 0, DROPPED)
        # pyggml.llama refuses this for the sake of other builds, so ask llama.cpp.
        lib = load().lib
        memory = lib.llama_get_memory(context.pointer)
        assert lib.llama_memory_can_shift(memory)
        lib.llama_memory_seq_add(memory, 0, DROPPED, -1, -DROPPED)
        return context.decode([7])


@pytest.mark.isolated
@pytest.mark.parametrize("devices", [0, 2])
def test_a_partial_rotary_of_quantised_heads(
    devices: int, lively: Callable[[str], Path], tmp_path: Path, virtual_devices: MakeDevices
) -> None:
    """All of a head is rotated before it is quantised, so all of it must be rotated back."""
    path = with_partial_rotary(lively("stablelm"), tmp_path / "partial.gguf", 64)
    options: dict[str, Any] = {"split_mode": "tensor"} if devices else {"devices": ()}
    if devices:
        virtual_devices(devices)
    expected, shifted = (shifted_logits(path, type_k, **options) for type_k in ("f16", "q8_0"))
    nmse = np.square(shifted - expected).sum() / np.square(expected).sum()
    assert nmse < 1e-3, f"NMSE {nmse:.1e} against f16"


def test_quantised_heads_that_are_not_rotated(tmp_path: Path, matrix: Callable[..., MatrixResult]) -> None:
    """Heads of 32 values have no rotation matrix."""
    shape = ModelShape(heads=4, kv_heads=2, k_size=32, embd=64, ff=96, vocab=300)
    model = make_llama(shape, tmp_path / "small.gguf")
    result = matrix(model, kv_types=("f16", "q8_0"), work=Workload(prompt=32, steps=4, shift=DROPPED))
    verdicts = {record.case.run.configuration(): record for record in result.records}
    for kv, verdict in (("device", "within"), ("host", "identical")):
        record = verdicts[f"tensor 2 {kv} q8_0 shift {DROPPED}"]
        assert record.verdict == verdict, record.reason
