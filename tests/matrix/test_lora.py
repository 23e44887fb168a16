"""LoRA adapters on a model that is split by tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.testing import assert_close
from pyggml.testing.fixtures import MakeDevices

pytestmark = [pytest.mark.native, pytest.mark.isolated]

RANK = 4
TOKENS = [*range(1, 25)]

Floats = np.ndarray[Any, Any]
_TARGETS = re.compile(
    r"blk\.\d+\.(attn|ffn)_(q|k|v|qkv|output|up|gate|down|gate_up)(_exps|_shexp)?\.weight|output\.weight"
)


def write_adapter(model: Path, target: Path) -> tuple[str, ...]:
    """Write an adapter of every matrix of `model` that one is usually trained for; returns their names."""
    import gguf

    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    rng = np.random.default_rng(3)
    names = []
    for tensor in reader.tensors:
        if not _TARGETS.fullmatch(tensor.name):
            continue
        names.append(tensor.name)
        # numpy's order, so the width of the input comes last.
        *experts, n_out, n_in = (int(length) for length in reversed(tensor.shape))
        for name, shape, scale in (
            ("lora_a", (*experts, RANK, n_in), 1 / np.sqrt(n_in)),
            ("lora_b", (*experts, n_out, RANK), float(np.std(tensor.data)) * np.sqrt(n_in)),
        ):
            values = scale * rng.standard_normal(shape)
            writer.add_tensor(f"{tensor.name}.{name}", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tuple(names)


def logits(path: Path, adapter: Path | None, **options: Any) -> Floats:
    """Of a prompt and of a step after it."""
    from pyggml.llama import LlamaContext, Model
    from pyggml.native.load import load

    bindings = load()
    lib, ffi = bindings.lib, bindings.ffi
    with (
        Model.load(path, **options) as model,
        LlamaContext(model, n_ctx=256, threads=1, flash_attn=True) as context,
    ):
        if adapter is not None:
            lora = lib.llama_adapter_lora_init(model.pointer, str(adapter).encode())
            assert lora != ffi.NULL
            adapters = ffi.new("struct llama_adapter_lora *[]", [lora])
            assert lib.llama_set_adapters_lora(context.pointer, adapters, 1, ffi.new("float[]", [1.0])) == 0
        return np.concatenate([context.decode(TOKENS, logits="all"), context.decode([7], logits="all")])


@pytest.mark.parametrize(
    ("arch", "devices"),
    [("^llama$", 2), ("^gpt2$", 3), ("^qwen35$", 3)],
    ids=["separate", "fused", "linear attention"],
)
def test_an_adapter_is_split_like_its_weights(
    arch: str, devices: int, lively: Callable[[str], Path], virtual_devices: MakeDevices, tmp_path: Path
) -> None:
    path, adapter = lively(arch), tmp_path / "adapter.gguf"
    assert write_adapter(path, adapter)
    expected = logits(path, adapter, devices=())
    without = logits(path, None, devices=())
    assert np.square(expected - without).sum() > 1e-2 * np.square(without).sum(), (
        "the adapter does not matter"
    )
    virtual_devices(devices)
    assert_close(logits(path, adapter, split_mode="tensor"), expected, nmse=1e-4)


def test_an_adapter_that_cannot_be_split_is_refused(
    lively: Callable[[str], Path], virtual_devices: MakeDevices, tmp_path: Path
) -> None:
    """Each device adds a part of the bias of the experts, to its part of the product."""
    from pyggml.llama import Model
    from pyggml.native.load import load

    path, adapter = lively("^gpt-oss$"), tmp_path / "adapter.gguf"
    assert any("ffn_down_exps" in name for name in write_adapter(path, adapter))
    virtual_devices(2)
    bindings = load()
    with Model.load(path, split_mode="tensor") as model:
        assert bindings.lib.llama_adapter_lora_init(model.pointer, str(adapter).encode()) == bindings.ffi.NULL
