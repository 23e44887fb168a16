"""A draft model that attends to the cache of its target: the Gemma 4 assistant, which has no K or V of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model
from pyggml.native.load import load
from pyggml.testing import assert_identical

from .conftest import nmse

pytestmark = [pytest.mark.native, pytest.mark.isolated]
Floats = npt.NDArray[np.float32]
SHAPE = {"heads": 4, "kv_heads": 2, "k_size": 16, "embd": 64, "ff": 96, "vocab": 300}
EMBD, LAYERS = 48, 2


def write_assistant(path: Path) -> Path:
    """A layer with full attention, which reads the target's last layer, and one with a sliding window."""
    import gguf

    rng, size, wide = np.random.default_rng(3), SHAPE["k_size"], SHAPE["heads"] * SHAPE["k_size"]
    writer = gguf.GGUFWriter(str(path), "gemma4-assistant")
    writer.add_context_length(512)
    writer.add_embedding_length(EMBD)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(SHAPE["ff"])
    writer.add_head_count(SHAPE["heads"])
    writer.add_head_count_kv(SHAPE["kv_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(1 << 20)
    writer.add_sliding_window_pattern([False, True])
    writer.add_vocab_size(SHAPE["vocab"])
    writer.add_tokenizer_model("none")
    for key, value in (
        ("attention.key_length_swa", size),
        ("attention.value_length_swa", size),
        ("rope.dimension_count_swa", size),
        ("nextn_predict_layers", LAYERS),
        ("embedding_length_out", SHAPE["embd"]),
    ):
        writer.add_uint32(f"gemma4-assistant.{key}", value)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (SHAPE["vocab"], EMBD),
        "output_norm": (EMBD,),
        "nextn.pre_projection": (EMBD, 2 * SHAPE["embd"]),
        "nextn.post_projection": (SHAPE["embd"], EMBD),
        "rope_freqs": (size // 2,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (EMBD,),
            f"blk.{layer}.attn_q": (wide, EMBD),
            f"blk.{layer}.attn_q_norm": (size,),
            f"blk.{layer}.attn_output": (EMBD, wide),
            f"blk.{layer}.post_attention_norm": (EMBD,),
            f"blk.{layer}.layer_output_scale": (1,),
            f"blk.{layer}.ffn_norm": (EMBD,),
            f"blk.{layer}.ffn_gate": (SHAPE["ff"], EMBD),
            f"blk.{layer}.ffn_up": (SHAPE["ff"], EMBD),
            f"blk.{layer}.ffn_down": (EMBD, SHAPE["ff"]),
            f"blk.{layer}.post_ffw_norm": (EMBD,),
        }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", 0.2 * rng.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def draft(target: LlamaContext, assistant: Model, host: bool) -> Floats:
    """The assistant's logits of one token after the target's three."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    target.decode([1, 2, 3])
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, 64, 64
    params.flash_attn_type, params.offload_kqv = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, not host
    params.ctx_other, params.ctx_type = target.pointer, lib.LLAMA_CONTEXT_TYPE_MTP
    context = lib.llama_init_from_model(assistant.pointer, params)
    assert context != ffi.NULL
    batch = lib.llama_batch_ext_init(context)
    index = lib.llama_batch_ext_add_token(batch, 0, 7)
    data = ffi.new("float[]", np.linspace(-1, 1, SHAPE["embd"]).tolist())
    state = ffi.new("struct llama_embd *", {"data": data, "n_rows": 1, "n_embd": SHAPE["embd"]})
    assert lib.llama_batch_ext_set_embd_state(batch, index, state[0])
    assert lib.llama_batch_ext_set_output_logits(batch, index, True)
    assert lib.llama_batch_ext_set_pos(batch, index, ffi.new("llama_pos[]", [3]))
    assert lib.llama_process(context, lib.LLAMA_PROCESS_TYPE_DECODE, batch) == 0
    logits = np.frombuffer(ffi.buffer(lib.llama_get_logits(context), SHAPE["vocab"] * 4), np.float32).copy()
    lib.llama_batch_ext_free(batch)
    lib.llama_free(context)
    return logits


@pytest.mark.parametrize("count", [2, 3])
def test_a_cache_on_the_host_is_split_for_the_model_that_reads_it(
    made: Callable[..., Path], tmp_path: Path, count: int
) -> None:
    target, assistant = made(**SHAPE, arch="mimo2", layers=3), write_assistant(tmp_path / "assistant.gguf")
    results = {}
    with VirtualDevices(count) as devices:
        # On the devices the cache is split like the target's layers, which fits the assistant's only with two of them.
        for place in ("cpu", "device", "host") if count == 2 else ("cpu", "host"):
            where = {} if place == "cpu" else {"split_mode": "tensor"}
            names = () if place == "cpu" else devices.names
            with (
                Model.load(target, devices=names, **where) as model,
                Model.load(assistant, devices=names, **where) as other,
                LlamaContext(
                    model, n_ctx=256, flash_attn=True, threads=1, offload_kqv=place != "host"
                ) as context,
            ):
                results[place] = draft(context, other, place == "host")
    assert nmse(results["cpu"], results["host"]) < 1e-4
    if count == 2:
        assert_identical(results["host"], results["device"])
