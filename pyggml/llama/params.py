"""The parameters of a context, checked: what llama.cpp would abort on, overflow or quietly change."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.llama.model import Model
from pyggml.llama.numbers import MAX_INT32, choice, whole
from pyggml.native.callbacks import Callback
from pyggml.native.load import Bindings

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What upstream's programs offer (kv_cache_types, common/arg.cpp); others end in an abort at the first decode."""
POOLINGS = ("none", "mean", "cls", "last", "rank")
_MOST_THREADS = 512
_UNIFIED_ALONE = ("deepseek4",)
"""Architectures whose unified cache holds one sequence (llama_dsv4_comp_state asserts on a second)."""


@dataclass(frozen=True)
class Request:
    """What a context is asked to be; see LlamaContext."""

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


def fill(bindings: Bindings, model: Model, request: Request) -> Any:
    """`struct llama_context_params` of a request, without callbacks.

    Raises:
        UsageError: a value that no context can have; the message names it and the numbers.
        PyggmlError: the build lacks what is asked for.
    """
    lib = bindings.lib
    params = lib.llama_context_default_params()
    params.n_ctx = whole("n_ctx", request.n_ctx, 0, 1 << 30)
    params.n_batch = whole("n_batch", request.n_batch, 1, 1 << 24)
    params.n_ubatch = whole("n_ubatch", request.n_ubatch, 1, 1 << 24)
    params.n_seq_max = whole("n_seq_max", request.n_seq_max, 1, int(lib.llama_max_parallel_sequences()))
    # output_reserve (src/llama-context.cpp) asserts that a batch has room for an output of every sequence.
    room = min(params.n_batch, params.n_ctx or model.n_ctx_train)
    if params.n_seq_max > room:
        raise UsageError(
            f"n_seq_max is {params.n_seq_max}, more than the {room} tokens of a batch",
            f"n_batch ({params.n_batch}) and n_ctx ({params.n_ctx or model.n_ctx_train}) must not be smaller.",
        )
    params.kv_unified = bool(request.kv_unified)
    if params.kv_unified and params.n_seq_max > 1 and model.architecture in _UNIFIED_ALONE:
        raise UsageError(f"{model.architecture} cannot have {params.n_seq_max} sequences with kv_unified")
    _lay_out(bindings, params, request)
    params.offload_kqv = bool(request.offload_kqv)
    types = {name: getattr(lib, f"GGML_TYPE_{name.upper()}") for name in CACHE_TYPES}
    params.type_k = choice("type_k", request.type_k, types)
    params.type_v = choice("type_v", request.type_v, types)
    params.flash_attn_type = choice(
        "flash_attn",
        request.flash_attn,
        {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        },
    )
    _check_block(bindings, model, request, params)
    threads = request.threads if request.threads is not None else len(os.sched_getaffinity(0))
    params.n_threads = whole("threads", threads, 1, _MOST_THREADS)
    more = request.threads_batch if request.threads_batch is not None else threads
    params.n_threads_batch = whole("threads_batch", more, 1, _MOST_THREADS)
    params.embeddings = bool(request.embeddings)
    if request.pooling is not None:
        known = {name: getattr(lib, f"LLAMA_POOLING_TYPE_{name.upper()}") for name in POOLINGS}
        params.pooling_type = choice("pooling", request.pooling, known)
    if request.causal is not None:
        params.attention_type = (
            lib.LLAMA_ATTENTION_TYPE_CAUSAL if request.causal else lib.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        )
    _check_mean(model, request, min(room, params.n_ubatch), params.n_seq_max)
    params.swa_full = bool(request.swa_full)
    params.op_offload = bool(request.op_offload)
    params.no_perf = False
    params.rope_freq_base = _positive("rope_freq_base", request.rope_freq_base)
    params.rope_freq_scale = _positive("rope_freq_scale", request.rope_freq_scale)
    return params


def add_callbacks(bindings: Bindings, params: Any, request: Request) -> list[Callback]:
    """Put the callbacks of a request in; the result must be kept as long as the context lives."""
    keep = []
    if request.abort is not None:
        callback = bindings.callbacks.make("abort", request.abort)
        params.abort_callback, params.abort_callback_data = callback.pointer, callback.data
        keep.append(callback)
    if request.on_node is not None:
        callback = bindings.callbacks.make("eval", request.on_node)
        params.cb_eval, params.cb_eval_user_data = callback.pointer, callback.data
        keep.append(callback)
    return keep


def _lay_out(bindings: Bindings, params: Any, request: Request) -> None:
    """The field is one of a patch: what does not ask for it works with every build."""
    wanted = bool(request.kv_per_stream)
    if hasattr(params, "kv_per_stream"):
        params.kv_per_stream = wanted
    elif wanted:
        raise PyggmlError(
            f"the build {bindings.build.record.variant} has no kv_per_stream",
            "The patch per-stream-tensors brings it: pyggml patch apply && pyggml build",
        )
    if wanted and params.kv_unified and params.n_seq_max > 1:
        raise UsageError(
            f"kv_unified and kv_per_stream exclude each other: the {params.n_seq_max} sequences have one cache, "
            "or one each"
        )


def _check_block(bindings: Bindings, model: Model, request: Request, params: Any) -> None:
    """Without flash attention nobody looks, and ggml_row_size asserts (llama_init_from_model looks with it)."""
    block = int(bindings.lib.ggml_blck_size(params.type_k))
    if request.flash_attn is False and block > 1:
        size = model.head_size
        if size % block:
            raise UsageError(
                f"type_k {request.type_k} packs {block} values at a time, and a K head of this model has {size}"
            )


def _check_mean(model: Model, request: Request, at_once: int, sequences: int) -> None:
    """The graph that is reserved has its tokens rounded up to the sequences, its outputs not (graph_reserve)."""
    own = model.metadata.get(f"{model.architecture}.pooling_type") == "1"
    mean = request.pooling == "mean" or (request.pooling is None and own)
    if request.embeddings and mean and at_once % sequences:
        raise UsageError(
            f"with mean pooling the {at_once} tokens that are computed at once must be a multiple of the "
            f"{sequences} sequences",
            "Choose n_ubatch (and n_batch) so.",
        )


def _positive(what: str, value: float) -> float:
    number = float(value)
    if not 0 <= number <= MAX_INT32 or not math.isfinite(number):
        raise UsageError(f"{what} is {value}; 0 (the model's own) or more is possible")
    return number
