"""The parameters of a context, checked for what llama.cpp aborts on, overflows or silently changes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.llama.arguments import MAX_INT32, checked_choice, checked_int
from pyggml.llama.model import Model
from pyggml.native.callbacks import Callback
from pyggml.native.load import Bindings

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What upstream's programs offer (kv_cache_types, common/arg.cpp); others abort at the first decode."""
POOLINGS = ("none", "mean", "cls", "last", "rank")
_MAX_THREADS = 512
_UNIFIED_HOLDS_ONE = ("deepseek4",)
"""Architectures whose unified cache holds one sequence (llama_dsv4_comp_state asserts on a second)."""


@dataclass(frozen=True)
class ContextOptions:
    """The arguments of LlamaContext, which explains them."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    kv_unified: bool
    kv_per_stream: bool
    offload_kqv: bool
    type_k: str
    type_v: str
    flash_attn: bool | str
    threads: int | None
    threads_batch: int | None
    embeddings: bool
    pooling: str | None
    causal: bool | None
    swa_full: bool
    op_offload: bool
    rope_freq_base: float
    rope_freq_scale: float
    abort: Callable[[], bool] | None
    on_node: Callable[[Any, bool], bool] | None


def context_params(bindings: Bindings, model: Model, options: ContextOptions) -> Any:
    """`struct llama_context_params` for these options, without callbacks.

    Raises:
        UsageError: an invalid value; the message names it and the numbers.
        PyggmlError: the build lacks a patch that an option needs.
    """
    lib = bindings.lib
    params = lib.llama_context_default_params()
    params.n_ctx = checked_int("n_ctx", options.n_ctx, 0, 1 << 30)
    params.n_batch = checked_int("n_batch", options.n_batch, 1, 1 << 24)
    params.n_ubatch = checked_int("n_ubatch", options.n_ubatch, 1, 1 << 24)
    params.n_seq_max = checked_int("n_seq_max", options.n_seq_max, 1, int(lib.llama_max_parallel_sequences()))
    # output_reserve (src/llama-context.cpp) asserts that a batch has room for an output of every sequence.
    batch_tokens = min(params.n_batch, params.n_ctx or model.n_ctx_train)
    if params.n_seq_max > batch_tokens:
        raise UsageError(
            f"n_seq_max is {params.n_seq_max}, more than the {batch_tokens} tokens of a batch",
            f"n_batch ({params.n_batch}) and n_ctx ({params.n_ctx or model.n_ctx_train}) must be at least n_seq_max.",
        )
    params.kv_unified = bool(options.kv_unified)
    if params.kv_unified and params.n_seq_max > 1 and model.architecture in _UNIFIED_HOLDS_ONE:
        raise UsageError(f"{model.architecture} cannot have {params.n_seq_max} sequences with kv_unified")
    _set_kv_per_stream(bindings, params, options)
    params.offload_kqv = bool(options.offload_kqv)
    types = {name: getattr(lib, f"GGML_TYPE_{name.upper()}") for name in CACHE_TYPES}
    params.type_k = checked_choice("type_k", options.type_k, types)
    params.type_v = checked_choice("type_v", options.type_v, types)
    params.flash_attn_type = checked_choice(
        "flash_attn",
        options.flash_attn,
        {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        },
    )
    _check_k_block(bindings, model, options, params)
    threads = options.threads if options.threads is not None else len(os.sched_getaffinity(0))
    params.n_threads = checked_int("threads", threads, 1, _MAX_THREADS)
    threads_batch = options.threads_batch if options.threads_batch is not None else threads
    params.n_threads_batch = checked_int("threads_batch", threads_batch, 1, _MAX_THREADS)
    params.embeddings = bool(options.embeddings)
    if options.pooling is not None:
        known = {name: getattr(lib, f"LLAMA_POOLING_TYPE_{name.upper()}") for name in POOLINGS}
        params.pooling_type = checked_choice("pooling", options.pooling, known)
    if options.causal is not None:
        params.attention_type = (
            lib.LLAMA_ATTENTION_TYPE_CAUSAL if options.causal else lib.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        )
    _check_mean_pooling(model, options, min(batch_tokens, params.n_ubatch), params.n_seq_max)
    params.swa_full = bool(options.swa_full)
    params.op_offload = bool(options.op_offload)
    params.no_perf = False
    params.rope_freq_base = _not_negative("rope_freq_base", options.rope_freq_base)
    params.rope_freq_scale = _not_negative("rope_freq_scale", options.rope_freq_scale)
    return params


def add_callbacks(bindings: Bindings, params: Any, options: ContextOptions) -> list[Callback]:
    """Set the callbacks of these options; the result must be kept as long as the context lives."""
    keep = []
    if options.abort is not None:
        callback = bindings.callbacks.make("abort", options.abort)
        params.abort_callback, params.abort_callback_data = callback.pointer, callback.data
        keep.append(callback)
    if options.on_node is not None:
        callback = bindings.callbacks.make("eval", options.on_node)
        params.cb_eval, params.cb_eval_user_data = callback.pointer, callback.data
        keep.append(callback)
    return keep


def _set_kv_per_stream(bindings: Bindings, params: Any, options: ContextOptions) -> None:
    """The field comes with a patch; contexts that do not use it work with every build."""
    wanted = bool(options.kv_per_stream)
    if hasattr(params, "kv_per_stream"):
        params.kv_per_stream = wanted
    elif wanted:
        raise PyggmlError(
            f"the build {bindings.build.record.variant} has no kv_per_stream",
            "It comes with the patch per-stream-tensors: pyggml patch apply && pyggml build",
        )
    if wanted and params.kv_unified and params.n_seq_max > 1:
        raise UsageError(
            f"kv_unified and kv_per_stream exclude each other: the {params.n_seq_max} sequences share one cache "
            "or have one each"
        )


def _check_k_block(bindings: Bindings, model: Model, options: ContextOptions, params: Any) -> None:
    """llama_init_from_model checks this with flash attention only; without, ggml_row_size asserts."""
    block = int(bindings.lib.ggml_blck_size(params.type_k))
    if options.flash_attn is False and block > 1:
        size = model.head_size
        if size % block:
            raise UsageError(
                f"type_k {options.type_k} packs {block} values at a time, but a K head of this model has {size}"
            )


def _check_mean_pooling(model: Model, options: ContextOptions, at_once: int, sequences: int) -> None:
    """graph_reserve rounds the tokens up to a multiple of the sequences, but not the outputs."""
    by_default = model.metadata.get(f"{model.architecture}.pooling_type") == "1"
    mean = options.pooling == "mean" or (options.pooling is None and by_default)
    if options.embeddings and mean and at_once % sequences:
        raise UsageError(
            f"with mean pooling the {at_once} tokens computed at once must be a multiple of the "
            f"{sequences} sequences",
            "Choose n_ubatch (and n_batch) accordingly.",
        )


def _not_negative(what: str, value: float) -> float:
    number = float(value)
    if not 0 <= number <= MAX_INT32 or not math.isfinite(number):
        raise UsageError(f"{what} is {value}; it must be 0 (the model's own) or more")
    return number
