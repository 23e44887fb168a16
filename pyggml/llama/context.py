"""A context: it decodes batches with a model and keeps their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml.handle import Handle, InUseError, Use
from pyggml.llama.arguments import MAX_INT32, checked_int
from pyggml.llama.batch import Batch, BatchLimits, Item, Positions, Sequences, Tokens, Wanted, make_batch
from pyggml.llama.errors import AbortedError, DecodeError, NoRoomError
from pyggml.llama.log_capture import LogCapture
from pyggml.llama.memory import CacheLayout, Memory
from pyggml.llama.model import Model
from pyggml.llama.params import ContextOptions, add_callbacks, context_params
from pyggml.llama.state import State

Floats = npt.NDArray[np.float32]
_NO_ROOM, _ABORTED = 1, 2
"""Results of llama_decode (include/llama.h)."""


@dataclass(frozen=True)
class Perf:
    """What a context has done since it was made or since reset_perf.

    Attributes:
        prompt_ms, prompt_tokens: batches of several tokens.
        eval_ms, eval_tokens: batches of one token.
        graphs_reused: how often the graph of the previous decode could be used again.
    """

    prompt_ms: float
    prompt_tokens: int
    eval_ms: float
    eval_tokens: int
    graphs_reused: int


class LlamaContext(Handle):
    """A context of a model. One thread at a time; closing the model closes it.

    Attributes:
        model: the model it decodes with.
        memory: what it holds for each sequence, by position.
        n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max: as llama.cpp settled them.
        kv_unified, kv_per_stream: as requested.
        shared: tokens may belong to several sequences (with kv_unified, or with a single sequence).
        type_k, type_v: types of the cache.
        stateful: part of the memory is a recurrent state.
    """

    model: Model
    memory: Memory
    _computing: int | None = None
    """The thread in which llama.cpp computes just now."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        kv_per_stream: bool = False,
        offload_kqv: bool = True,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: bool | str = "auto",
        threads: int | None = None,
        threads_batch: int | None = None,
        embeddings: bool = False,
        pooling: str | None = None,
        causal: bool | None = None,
        swa_full: bool = True,
        op_offload: bool = True,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        abort: Callable[[], bool] | None = None,
        on_node: Callable[[Any, bool], bool] | None = None,
    ) -> None:
        """
        Args:
            n_ctx: cells of the cache, rounded up to 256; 0 for the model's training context.
                Without kv_unified they are divided among the sequences.
            n_batch: maximum number of tokens in one decode.
            n_ubatch: maximum number of tokens computed at once.
            n_seq_max: number of sequences; they are numbered from 0.
            kv_unified: one cache for all sequences instead of one for each.
            kv_per_stream: give each of those caches its own tensors and buffers, so that its memory can be
                freed separately (memory.seq_release); results are the same, bit for bit. Needs a build with
                the patch per-stream-tensors.
            offload_kqv: keep the cache on the devices of its layers.
            type_k, type_v: one of params.CACHE_TYPES; a quantised V needs flash attention.
            flash_attn: True, False or "auto".
            threads, threads_batch: for one token and for several; by default all CPUs that this process may
                use.
            embeddings: keep the embeddings of every token as well.
            pooling: one of params.POOLINGS; by default the model's own.
            causal: False lets tokens attend to later ones of the same batch.
            swa_full: give layers with a sliding window a full cache; otherwise they cannot be shifted, nor
                can any of their positions be removed.
            op_offload: compute on a device with weights that lie on the host, where that pays off.
            rope_freq_base, rope_freq_scale: 0 for the model's own.
            abort: called repeatedly while the CPU computes; returning True ends the decode. As in on_node, the context
                cannot be used or closed there.
            on_node: eval callback of the scheduler, `function(tensor, ask) -> bool` with a raw
                `struct ggml_tensor *`: first asked whether a node is wanted, then called with its result.

        Raises:
            UsageError: an argument makes no sense; the message names it and the numbers.
            PyggmlError: llama.cpp cannot create it (no device memory, no flash attention where it is needed,
                ...); the message has llama.cpp's own reason.
        """
        if model.vocab_only:
            raise UsageError(f"{model.label} was loaded with vocab_only and cannot decode")
        bindings = model._bindings
        options = ContextOptions(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            kv_unified=kv_unified,
            kv_per_stream=kv_per_stream,
            offload_kqv=offload_kqv,
            type_k=type_k,
            type_v=type_v,
            flash_attn=flash_attn,
            threads=threads,
            threads_batch=threads_batch,
            embeddings=embeddings,
            pooling=pooling,
            causal=causal,
            swa_full=swa_full,
            op_offload=op_offload,
            rope_freq_base=rope_freq_base,
            rope_freq_scale=rope_freq_scale,
            abort=abort,
            on_node=on_node,
        )
        self._bindings = bindings
        with model.lease(in_call=True):
            params = context_params(bindings, model, options)
            model.check_device_memory(params, options.offload_kqv)
            self._callbacks = add_callbacks(bindings, params, options)
            with LogCapture() as log:
                pointer = bindings.guarded(bindings.lib.llama_init_from_model, model._pointer, params)
            if pointer == bindings.ffi.NULL:
                raise PyggmlError(
                    f"cannot make a context of {model.label} with n_ctx {params.n_ctx or model.n_ctx_train}, "
                    f"{n_seq_max} sequences and cache types {type_k} and {type_v}: {log.reason()}",
                    "If device memory is short, use a smaller n_ctx or n_ubatch, or offload_kqv=False.",
                )
            self._pointer = pointer
            try:
                self._settle(model, options)
                super().__init__(f"context of {model.label}", model)
            except BaseException:
                bindings.lib.llama_free(pointer)
                raise

    def _settle(self, model: Model, options: ContextOptions) -> None:
        """Read back what llama.cpp settled."""
        lib = self._bindings.lib
        self.model = model
        self.n_ctx = int(lib.llama_n_ctx(self._pointer))
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(self._pointer))
        self.n_batch = int(lib.llama_n_batch(self._pointer))
        self.n_ubatch = int(lib.llama_n_ubatch(self._pointer))
        self.n_seq_max = int(lib.llama_n_seq_max(self._pointer))
        self.kv_unified = bool(options.kv_unified)
        self.kv_per_stream = bool(options.kv_per_stream)
        self.shared = self.kv_unified or self.n_seq_max == 1
        self.type_k, self.type_v = options.type_k, options.type_v
        self.stateful = model.is_recurrent or model.is_hybrid
        self.pooling = int(lib.llama_pooling_type(self._pointer))
        self._embeddings = bool(options.embeddings)
        self._encoded = False
        self._rows: npt.NDArray[np.intp] | None = None
        self._logits: Floats | None = None
        layout = CacheLayout(self.n_seq_max, self.shared, self.kv_per_stream, self.stateful, self.type_k)
        self.memory = Memory(self, self._pointer, model, layout, self._forget_outputs)
        # Without a memory, and without causal attention, a batch is computed in one piece or asserts.
        in_one = not self.memory or options.causal is False
        self._limits = BatchLimits(
            tokens=min(self.n_batch, self.n_ubatch) if in_one else self.n_batch,
            vocab=model.n_vocab,
            sequences=self.n_seq_max,
            shared=self.shared,
            positions=model.n_positions,
            gaps=model.allows_gaps,
        )

    def using(self) -> Use:
        """See Handle.using.

        Raises:
            InUseError: in a callback of its own decode or encode, where llama.cpp is not finished with it.
        """
        if self._computing == threading.get_ident():
            raise InUseError(
                f"{self.label} is computing", "Use it, and its memory, after that call, not in a callback."
            )
        return super().using()

    @property
    def pointer(self) -> Any:
        """The raw `struct llama_context *`, for `pyggml.lib`; invalid once this handle is closed."""
        self.check()
        return self._pointer

    def decode(
        self,
        tokens: Tokens | Sequence[Item],
        seq: Sequences = 0,
        pos: Positions = None,
        logits: Wanted = "last",
    ) -> Floats:
        """Compute a batch, add it to the memory, and return logits: a new numpy array, (rows, n_vocab).

        Args:
            tokens: token ids; or a list of (tokens, seq) or (tokens, seq, pos), put into one batch.
            seq: the sequence they continue; several, if the tokens belong to each of them.
            pos: the first position, or one for each token; by default after the sequence's last.
            logits: rows that are wanted: `last` of every item, `all`, `none`, or a boolean for each token.

        Raises:
            UsageError: an invalid token, sequence, position or mask; a batch too large.
            NoRoomError: no free cells; nothing was changed.
            NoMemoryError: a sequence was released (memory.seq_release) and there is no memory for it now.
            AbortedError: the abort callback ended it.
            DecodeError: the computation failed, for example for lack of device memory.
            Whatever a callback raised.
        """
        with self.using():
            if self.model.has_encoder and self.memory and not self._encoded:
                raise UsageError(f"{self.label} has an encoder: call encode before decode")
            return self._compute("decode", self._bindings.lib.llama_decode, tokens, seq, pos, logits)

    def encode(self, tokens: Tokens | Sequence[Item], seq: Sequences = 0) -> None:
        """Run the encoder of an encoder-decoder model (or of a model without memory) on its input.

        Raises:
            UsageError: the model has no encoder; an invalid token or sequence; more than n_ubatch tokens.
            DecodeError: the computation failed.
        """
        with self.using():
            if not self.model.has_encoder:
                raise UsageError(f"{self.label} has no encoder: use decode")
            self._compute("encode", self._bindings.lib.llama_encode, tokens, seq, None, "all")
            self._encoded = True

    def logits(self) -> Floats:
        """A copy of the rows that the last decode returned.

        Raises:
            PyggmlError: there are none: nothing was decoded yet, the last decode failed, or the memory was
                cleared or restored since.
        """
        with self.using():
            if self._logits is None:
                raise PyggmlError(f"{self.label} has no logits", "Decode tokens first.")
            return self._logits.copy()

    def embeddings(self) -> Floats:
        """Embeddings of the tokens whose logits the last decode returned: (rows, n_embd_out), a copy.

        Raises:
            PyggmlError: the context was made without `embeddings`, or pools them, or has decoded nothing.
        """
        with self.using():
            if not self._embeddings or self.pooling != self._bindings.lib.LLAMA_POOLING_TYPE_NONE:
                raise PyggmlError(
                    f"{self.label} does not keep embeddings of tokens",
                    "Create it with embeddings=True and pooling='none', or use pooled().",
                )
            if self._rows is None:
                raise PyggmlError(f"{self.label} has no embeddings", "Decode tokens first.")
            start = self._bindings.lib.llama_get_embeddings(self._pointer)
            rows: Floats = self._copy(start, self._outputs, self.model.n_embd_out)[self._rows]
            return rows

    def pooled(self, seq: int = 0) -> Floats:
        """The pooled embedding of a sequence of the last batch: (n_embd_out,), a copy; scores with `rank`.

        Raises:
            PyggmlError: the context does not pool, or the sequence was not in the last batch.
        """
        with self.using():
            seq = self._checked_seq(seq)
            lib = self._bindings.lib
            lib.llama_synchronize(self._pointer)
            start = lib.llama_get_embeddings_seq(self._pointer, seq)
            if self._rows is None or start == self._bindings.ffi.NULL:
                raise PyggmlError(
                    f"{self.label} has no pooled embedding of sequence {seq}",
                    "Create it with embeddings=True and a pooling, and decode that sequence.",
                )
            rank = self.pooling == lib.LLAMA_POOLING_TYPE_RANK
            width = lib.llama_model_n_cls_out(self.model._pointer) if rank else self.model.n_embd_out
            row: Floats = self._copy(start, 1, int(width))[0]
            return row

    def greedy(self, tokens: Tokens, count: int, seq: int = 0, *, stop_at_end: bool = False) -> list[int]:
        """Decode tokens, then choose the most likely token `count` times, decoding each but the last.

        Args:
            stop_at_end: stop after a token that ends generation.

        Returns:
            The chosen tokens; of equal logits the lowest token id wins.

        Raises:
            PyggmlError: see decode; or a logit is NaN.
        """
        count = checked_int("count", count, 0, MAX_INT32)
        with self.using():
            row = self.decode(tokens, seq)[-1]
            chosen: list[int] = []
            while len(chosen) < count:
                if np.isnan(row).any():
                    index = int(np.isnan(row).argmax())
                    raise PyggmlError(f"logit {index} is NaN after {len(chosen)} chosen tokens")
                chosen.append(int(row.argmax()))
                ends = stop_at_end and self.model.reads_text and self.model.is_end(chosen[-1])
                if ends or len(chosen) == count:
                    break
                row = self.decode(chosen[-1:], seq)[-1]
            return chosen

    def save_state(self, seq: int | None = None) -> State:
        """The whole memory, or that of one sequence; logits are not part of it.

        Raises:
            PyggmlError: a shift or copy is pending; or llama.cpp refuses.
        """
        with self.using():
            return State(self._save(None if seq is None else self._checked_seq(seq)), seq, self._origin())

    def restore_state(self, state: State | bytes, seq: int | None = None) -> None:
        """Restore a state; that of one sequence can go into any sequence (by default its own).

        Raises:
            PyggmlError: it is cut off or damaged, comes from another kind of context or model, or does not
                fit; the memory is as it was before.
        """
        with self.using():
            if not isinstance(state, State):
                state = State.from_bytes(state)
            if state.seq is None and seq is not None:
                raise UsageError("the state is of a whole context and cannot go into one sequence")
            target = state.seq if seq is None else seq
            if target is not None:
                target = self._checked_seq(target)
            self._check_origin(state)
            self.memory.ensure_held(range(self.n_seq_max) if target is None else (target,))
            before = self._save(target)
            with LogCapture() as log:
                if state.data and self._restore(state.data, target) == len(state.data):
                    self._forget_outputs()
                    return
            if self._restore(before, target) != len(before):
                raise PyggmlError(
                    f"the state could not be restored ({log.reason()}), and neither could the previous one",
                    "Clear the memory: context.memory.clear().",
                )
            raise PyggmlError(
                f"the state of {len(state.data)} bytes does not fit into {self.label}: {log.reason()}"
            )

    @property
    def perf(self) -> Perf:
        """llama.cpp's own counters."""
        with self.using():
            self._bindings.lib.llama_synchronize(self._pointer)
            data = self._bindings.lib.llama_perf_context(self._pointer)
            # Upstream never reports 0 tokens (perf_get_data), because it divides by them.
            return Perf(
                prompt_ms=data.t_p_eval_ms,
                prompt_tokens=data.n_p_eval if data.t_p_eval_ms else 0,
                eval_ms=data.t_eval_ms,
                eval_tokens=data.n_eval if data.t_eval_ms else 0,
                graphs_reused=data.n_reused,
            )

    def reset_perf(self) -> None:
        """Reset the counters to 0."""
        with self.using():
            self._bindings.lib.llama_synchronize(self._pointer)
            self._bindings.lib.llama_perf_context_reset(self._pointer)

    def _compute(
        self,
        operation: str,
        function: Any,
        tokens: Tokens | Sequence[Item],
        seq: Sequences,
        pos: Positions,
        wanted: Wanted,
    ) -> Floats:
        items: Iterable[Any] = [(tokens, seq, pos)]
        if isinstance(tokens, Sequence) and len(tokens) and isinstance(tokens[0], tuple):
            if pos is not None or seq != 0:
                raise UsageError("the items of a batch carry their own sequences and positions")
            items = tokens
        uses_memory = bool(self.memory) and operation == "decode"
        last_position = self.memory.last_position if uses_memory else lambda seq: -1
        batch = make_batch(items, wanted, self._limits, last_position)
        self.memory.ensure_held(batch.seqs.tolist())
        if not uses_memory and len(batch) > self.n_ubatch:
            raise UsageError(
                f"the batch has {len(batch)} tokens; {operation} takes at most n_ubatch ({self.n_ubatch}) here"
            )
        self._forget_outputs()
        with LogCapture() as log:
            result = self._run(function, batch)
        if result != 0:
            raise self._failure(operation, result, batch, log)
        return self._read(batch)

    def _run(self, function: Any, batch: Batch) -> int:
        ffi = self._bindings.ffi
        # With pooling, and without memory, llama.cpp computes the outputs of all tokens regardless of flags.
        flags = np.ones(len(batch), np.int8) if self._all_outputs else batch.wanted.astype(np.int8)
        starts = np.concatenate(([0], np.cumsum(batch.counts[:-1]))).astype(np.uint64)
        seqs = ffi.from_buffer("llama_seq_id[]", batch.seqs)
        rows = int(ffi.cast("uintptr_t", seqs)) + starts * np.uint64(4)
        c_batch = ffi.new("struct llama_batch *")
        c_batch.n_tokens = len(batch)
        c_batch.token = keep_0 = ffi.from_buffer("llama_token[]", batch.token)
        c_batch.pos = keep_1 = ffi.from_buffer("llama_pos[]", batch.pos)
        c_batch.n_seq_id = keep_2 = ffi.from_buffer("int32_t[]", batch.counts)
        c_batch.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(rows))
        c_batch.logits = keep_3 = ffi.from_buffer("int8_t[]", flags)
        self._computing = threading.get_ident()
        try:
            with self._bindings.guard():
                result = int(function(self._pointer, c_batch[0]))
                if result == 0:
                    # Computation may still be running, and exceptions of its callbacks are to be raised here.
                    self._bindings.lib.llama_synchronize(self._pointer)
        finally:
            self._computing = None
        del keep_0, keep_1, keep_2, keep_3
        return result

    def _read(self, batch: Batch) -> Floats:
        self.memory.clear_pending()
        self._outputs = len(batch) if self._all_outputs else int(batch.wanted.sum())
        rows = np.flatnonzero(batch.wanted)
        self._rows = rows if self._all_outputs else np.arange(self._outputs)
        start = self._bindings.lib.llama_get_logits(self._pointer)
        if start == self._bindings.ffi.NULL or not self._outputs:
            self._logits = np.empty((0, self._limits.vocab), np.float32)
        else:
            self._logits = self._copy(start, self._outputs, self._limits.vocab)[self._rows]
        return self._logits.copy()

    @property
    def _all_outputs(self) -> bool:
        return self._embeddings or not self.memory or self.model.has_encoder

    def _copy(self, start: Any, rows: int, width: int) -> Floats:
        buffer = self._bindings.ffi.buffer(start, rows * width * 4)
        return np.frombuffer(buffer, np.float32).reshape(rows, width).copy()

    def _failure(self, operation: str, result: int, batch: Batch, log: LogCapture) -> PyggmlError:
        if result < -1 or result == _ABORTED:
            self.memory.clear_pending()
        seqs = sorted(set(batch.seqs.tolist()))
        ends = "; ".join(f"sequence {seq} ends at {self.memory.last_position(seq)}" for seq in seqs[:4])
        if result == _NO_ROOM:
            return NoRoomError(
                f"no room for {len(batch)} tokens of {len(seqs)} sequences: {self.n_ctx_seq} cells"
                f"{' for all sequences' if self.kv_unified else ' for each sequence'}; {ends}",
                "Remove positions (memory.seq_rm), or create the context with a larger n_ctx.",
            )
        if result == _ABORTED:
            return AbortedError(f"the abort callback ended the {operation} of {len(batch)} tokens; {ends}")
        return DecodeError(
            f"llama.cpp could not {operation} {len(batch)} tokens (result {result}): {log.reason()}; {ends}"
        )

    def _checked_seq(self, seq: int) -> int:
        return checked_int("the sequence", seq, 0, self.n_seq_max - 1)

    def _save(self, seq: int | None) -> bytes:
        self.memory.check_nothing_pending("saved")
        ffi, lib = self._bindings.ffi, self._bindings.lib
        seq_argument = () if seq is None else (seq,)
        prefix = "llama_state" if seq is None else "llama_state_seq"
        with LogCapture() as log:
            size = getattr(lib, f"{prefix}_get_size")(self._pointer, *seq_argument)
            buffer = bytearray(size)
            target = ffi.from_buffer("uint8_t[]", buffer, require_writable=True)
            written = getattr(lib, f"{prefix}_get_data")(self._pointer, target, size, *seq_argument)
        ffi.release(target)
        if written != size or not size:
            raise PyggmlError(f"the state of {self.label} cannot be saved: {log.reason()}")
        return bytes(buffer)

    def _restore(self, data: bytes, seq: int | None) -> int:
        ffi, lib = self._bindings.ffi, self._bindings.lib
        source = ffi.from_buffer("uint8_t[]", data)
        if seq is None:
            return int(lib.llama_state_set_data(self._pointer, source, len(data)))
        return int(lib.llama_state_seq_set_data(self._pointer, source, len(data), seq))

    def _origin(self) -> dict[str, Any]:
        model = self.model
        return {
            "architecture": model.architecture,
            "layers": model.n_layer,
            "embedding": model.n_embd,
            "parameters": model.n_params,
            "type_k": self.type_k,
            "type_v": self.type_v,
            "caches": 1 if self.shared else self.n_seq_max,
        }

    def _check_origin(self, state: State) -> None:
        ours = self._origin()
        for name in {**ours, **state.origin}:
            if ours.get(name) != state.origin.get(name):
                raise PyggmlError(
                    f"the state is from another kind of context: {name} is {state.origin.get(name)} there and "
                    f"{ours.get(name)} here"
                )

    def _forget_outputs(self) -> None:
        self._logits = self._rows = None

    def _release(self) -> None:
        lib = self._bindings.lib
        with LogCapture():
            lib.llama_free(self._pointer)
        for callback in self._callbacks:
            callback.close()
