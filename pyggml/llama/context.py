"""A context: decodes batches with a model, and remembers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml.handle import Handle
from pyggml.llama.batch import Batch, Item, Limits, Positions, Sequences, Tokens, Wanted, make_batch
from pyggml.llama.errors import AbortedError, DecodeError, NoRoomError
from pyggml.llama.memory import Memory
from pyggml.llama.model import Model
from pyggml.llama.numbers import MAX_INT32, whole
from pyggml.llama.params import Request, add_callbacks, fill
from pyggml.llama.state import State
from pyggml.llama.words import Listener

Floats = npt.NDArray[np.float32]
_NO_ROOM, _ABORTED = 1, 2
"""Results of llama_decode (include/llama.h)."""


@dataclass(frozen=True)
class Perf:
    """What a context has done since it was made or since reset_perf.

    Attributes:
        prompt_ms, prompt_tokens: batches of several tokens.
        eval_ms, eval_tokens: batches of one token.
        graphs_reused: how often the graph of the decode before fitted.
    """

    prompt_ms: float
    prompt_tokens: int
    eval_ms: float
    eval_tokens: int
    graphs_reused: int


class LlamaContext(Handle):
    """A context of a model. One thread at a time; closing the model closes it.

    Attributes:
        model: what it decodes with.
        memory: what it remembers, by sequence and position.
        n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max: as llama.cpp settled them.
        kv_unified, kv_per_stream: as asked for.
        shared: tokens may belong to several sequences (kv_unified, or there is one sequence only).
        type_k, type_v: of the cache.
        stateful: part of the memory is a recurrent state.
    """

    model: Model
    memory: Memory

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
            n_ctx: cells of the cache, rounded up to 256; 0 for as many as the model was trained with.
                Without kv_unified they are divided among the sequences.
            n_batch: most tokens of one decode.
            n_ubatch: most tokens that are computed at once.
            n_seq_max: sequences, numbered from 0.
            kv_unified: one cache for all sequences instead of one for each.
            kv_per_stream: give each of those caches tensors and buffers of its own, so that its memory can be
                given back alone (memory.seq_release); what is computed is the same, bit for bit. Needs a build
                with the patch per-stream-tensors.
            offload_kqv: keep the cache on the devices of its layers.
            type_k, type_v: of params.CACHE_TYPES; a quantised V needs flash attention.
            flash_attn: True, False or "auto".
            threads, threads_batch: for one token and for several; by default every processor that this
                process may use.
            embeddings: keep embeddings of every token as well.
            pooling: of params.POOLINGS; by default the model's own.
            causal: False lets tokens attend to later ones of the same batch.
            swa_full: give layers with a sliding window a full cache; without, they can neither be shifted
                nor lose positions freely.
            op_offload: compute with weights on the host on a device where it is worth it.
            rope_freq_base, rope_freq_scale: 0 for the model's own.
            abort: asked again and again while the CPU computes; True ends the decode.
            on_node: eval callback of the scheduler, `function(tensor, ask) -> bool` with a raw
                `struct ggml_tensor *`: asked whether a node is wanted, then told that it is computed.

        Raises:
            UsageError: an argument that makes no sense; the message names it and the numbers.
            PyggmlError: llama.cpp cannot make it (no device memory, no flash attention where it is needed,
                ...); the message has its own reason.
        """
        if model.vocab_only:
            raise UsageError(f"{model.label} was loaded with vocab_only and cannot decode")
        bindings = model._bindings
        request = Request(
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
        with model.lease():
            params = fill(bindings, model, request)
            model.check_room(params, request.offload_kqv)
            self._callbacks = add_callbacks(bindings, params, request)
            with Listener() as listener:
                pointer = bindings.guarded(bindings.lib.llama_init_from_model, model._pointer, params)
            if pointer == bindings.ffi.NULL:
                raise PyggmlError(
                    f"cannot make a context of {model.label} with n_ctx {params.n_ctx or model.n_ctx_train}, "
                    f"{n_seq_max} sequences and cache types {type_k} and {type_v}: {listener.reason()}",
                    "With too little device memory: a smaller n_ctx, n_ubatch or offload_kqv=False.",
                )
            self._pointer = pointer
            try:
                self._settle(model, request)
                super().__init__(f"context of {model.label}", model)
            except BaseException:
                bindings.lib.llama_free(pointer)
                raise

    def _settle(self, model: Model, request: Request) -> None:
        lib = self._bindings.lib
        self.model = model
        self.n_ctx = int(lib.llama_n_ctx(self._pointer))
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(self._pointer))
        self.n_batch = int(lib.llama_n_batch(self._pointer))
        self.n_ubatch = int(lib.llama_n_ubatch(self._pointer))
        self.n_seq_max = int(lib.llama_n_seq_max(self._pointer))
        self.kv_unified = bool(request.kv_unified)
        self.kv_per_stream = bool(request.kv_per_stream)
        self.shared = self.kv_unified or self.n_seq_max == 1
        self.type_k, self.type_v = request.type_k, request.type_v
        self.stateful = model.is_recurrent or model.is_hybrid
        self.pooling = int(lib.llama_pooling_type(self._pointer))
        self._embeddings = bool(request.embeddings)
        self._encoded = False
        self._rows: npt.NDArray[np.intp] | None = None
        self._logits: Floats | None = None
        memory = lib.llama_get_memory(self._pointer)
        self._has_memory = memory != self._bindings.ffi.NULL
        self.memory = Memory(self, memory)
        # Without a memory, and without causal attention, a batch is computed in one piece or asserts.
        in_one = not self._has_memory or request.causal is False
        self._limits = Limits(
            tokens=min(self.n_batch, self.n_ubatch) if in_one else self.n_batch,
            vocab=model.n_vocab,
            sequences=self.n_seq_max,
            shared=self.shared,
            positions=model.n_positions,
            jumps=model.jumps,
        )

    @property
    def pointer(self) -> Any:
        """The raw `struct llama_context *`, for `pyggml.lib`; it dies with this handle."""
        self.check()
        return self._pointer

    def decode(
        self,
        tokens: Tokens | Sequence[Item],
        seq: Sequences = 0,
        pos: Positions = None,
        logits: Wanted = "last",
    ) -> Floats:
        """Compute a batch, remember it, and return logits: a numpy array of its own, (rows, n_vocab).

        Args:
            tokens: token numbers; or a list of (tokens, seq) or (tokens, seq, pos), put into one batch.
            seq: the sequence they continue; several, if the tokens belong to each of them.
            pos: the first position, or one for each token; by default after the sequence's last.
            logits: rows that are wanted: `last` of every item, `all`, `none`, or a boolean for each token.

        Raises:
            UsageError: a token, sequence, position or mask that cannot be; a batch too large.
            NoRoomError: no free cells; nothing was changed.
            NoMemoryError: a sequence's memory was given back (memory.seq_release), and there is none for it.
            AbortedError: the abort callback said so.
            DecodeError: the computation failed, for example for lack of device memory.
            Whatever a callback raised.
        """
        with self.using():
            if self.model.has_encoder and self._has_memory and not self._encoded:
                raise UsageError(f"{self.label} has an encoder: call encode before decode")
            return self._compute("decode", self._bindings.lib.llama_decode, tokens, seq, pos, logits)

    def encode(self, tokens: Tokens | Sequence[Item], seq: Sequences = 0) -> None:
        """Give the encoder of an encoder-decoder model (or a model without memory) its input.

        Raises:
            UsageError: the model has no encoder; a token or sequence that cannot be; more than n_ubatch tokens.
            DecodeError: the computation failed.
        """
        with self.using():
            if not self.model.has_encoder:
                raise UsageError(f"{self.label} has no encoder: use decode")
            self._compute("encode", self._bindings.lib.llama_encode, tokens, seq, None, "all")
            self._encoded = True

    def logits(self) -> Floats:
        """The rows that the last decode returned, again, as a copy.

        Raises:
            PyggmlError: there was none, or it failed, or a state was restored since.
        """
        with self.using():
            if self._logits is None:
                raise PyggmlError(f"{self.label} has no logits: nothing was decoded since")
            return self._logits.copy()

    def embeddings(self) -> Floats:
        """Embeddings of the tokens whose logits the last decode returned: (rows, n_embd_out), a copy.

        Raises:
            PyggmlError: the context was made without `embeddings`, pools them, or nothing was decoded since.
        """
        with self.using():
            if not self._embeddings or self.pooling != self._bindings.lib.LLAMA_POOLING_TYPE_NONE:
                raise PyggmlError(
                    f"{self.label} keeps no embeddings of tokens",
                    "Create it with embeddings=True and pooling='none', or use pooled().",
                )
            if self._rows is None:
                raise PyggmlError(f"{self.label} has no embeddings: nothing was decoded since")
            start = self._bindings.lib.llama_get_embeddings(self._pointer)
            rows: Floats = self._copy(start, self._outputs, self.model.n_embd_out)[self._rows]
            return rows

    def pooled(self, seq: int = 0) -> Floats:
        """The embedding of a sequence of the last batch, pooled: (n_embd_out,), a copy; scores with `rank`.

        Raises:
            PyggmlError: the context does not pool, or the sequence was not in the last batch.
        """
        with self.using():
            number = whole("the sequence", seq, 0, self.n_seq_max - 1)
            lib = self._bindings.lib
            lib.llama_synchronize(self._pointer)
            start = lib.llama_get_embeddings_seq(self._pointer, number)
            if self._rows is None or start == self._bindings.ffi.NULL:
                raise PyggmlError(
                    f"{self.label} has no pooled embedding of sequence {number}",
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
            The chosen tokens; of equal logits the lowest number wins.

        Raises:
            PyggmlError: see decode; or a logit is not a number.
        """
        count = whole("count", count, 0, MAX_INT32)
        with self.using():
            row = self.decode(tokens, seq)[-1]
            chosen: list[int] = []
            while len(chosen) < count:
                if np.isnan(row).any():
                    index = int(np.isnan(row).argmax())
                    raise PyggmlError(f"logit {index} after {len(chosen)} chosen tokens is not a number")
                chosen.append(int(row.argmax()))
                ends = stop_at_end and self.model.reads_text and self.model.is_end(chosen[-1])
                if ends or len(chosen) == count:
                    break
                row = self.decode(chosen[-1:], seq)[-1]
            return chosen

    def save_state(self, seq: int | None = None) -> State:
        """The memory of everything, or of one sequence; logits are not part of it.

        Raises:
            PyggmlError: a shift or copy is still to be applied; or llama.cpp refuses.
        """
        with self.using():
            return State(self._save(self._number(seq)), seq, self._origin())

    def restore_state(self, state: State | bytes, seq: int | None = None) -> None:
        """Put a state back; one of a sequence into any sequence (by default its own).

        Raises:
            PyggmlError: it is cut off, damaged, of another kind of context or model, or does not fit; the
                memory is as it was before.
        """
        with self.using():
            if not isinstance(state, State):
                state = State.from_bytes(state)
            if state.seq is None and seq is not None:
                raise UsageError("the state is of a whole context and cannot go into one sequence")
            number = self._number(state.seq if seq is None else seq)
            self._check_origin(state)
            self.memory.take(range(self.n_seq_max) if number is None else (number,))
            before = self._save(number)
            with Listener() as listener:
                if state.data and self._restore(state.data, number) == len(state.data):
                    self._forget_outputs()
                    return
            if self._restore(before, number) != len(before):
                raise PyggmlError(
                    f"the state could not be restored ({listener.reason()}), nor the one before it",
                    "Clear the memory: context.memory.clear().",
                )
            raise PyggmlError(
                f"the state of {len(state.data)} bytes does not fit into {self.label}: {listener.reason()}"
            )

    @property
    def perf(self) -> Perf:
        """llama.cpp's own counters."""
        with self.using():
            self._bindings.lib.llama_synchronize(self._pointer)
            data = self._bindings.lib.llama_perf_context(self._pointer)
            # Upstream never says 0 tokens (perf_get_data): it divides by them.
            return Perf(
                prompt_ms=data.t_p_eval_ms,
                prompt_tokens=data.n_p_eval if data.t_p_eval_ms else 0,
                eval_ms=data.t_eval_ms,
                eval_tokens=data.n_eval if data.t_eval_ms else 0,
                graphs_reused=data.n_reused,
            )

    def reset_perf(self) -> None:
        """Count from 0 again."""
        with self.using():
            self._bindings.lib.llama_synchronize(self._pointer)
            self._bindings.lib.llama_perf_context_reset(self._pointer)

    def _compute(
        self,
        what: str,
        function: Any,
        tokens: Tokens | Sequence[Item],
        seq: Sequences,
        pos: Positions,
        wanted: Wanted,
    ) -> Floats:
        items: Iterable[Any] = [(tokens, seq, pos)]
        if isinstance(tokens, Sequence) and len(tokens) and isinstance(tokens[0], tuple):
            if pos is not None or seq != 0:
                raise UsageError("the items of the batch have their own sequences and positions")
            items = tokens
        remembers = self._has_memory and what == "decode"
        last = self.memory.last_position if remembers else lambda seq: -1
        batch = make_batch(items, wanted, self._limits, last)
        self.memory.take(batch.seqs.tolist())
        if not remembers and len(batch) > self.n_ubatch:
            raise UsageError(
                f"the batch has {len(batch)} tokens; {what} takes the {self.n_ubatch} of n_ubatch in this context"
            )
        self._forget_outputs()
        with Listener() as listener:
            result = self._run(function, batch)
        if result != 0:
            raise self._failed(what, result, batch, listener)
        return self._read(batch)

    def _run(self, function: Any, batch: Batch) -> int:
        ffi = self._bindings.ffi
        # Pooled, and without memory, llama.cpp computes outputs of all tokens whatever is asked for.
        flags = np.ones(len(batch), np.int8) if self._all_outputs else batch.wanted.astype(np.int8)
        starts = np.concatenate(([0], np.cumsum(batch.counts[:-1]))).astype(np.uint64)
        seqs = ffi.from_buffer("llama_seq_id[]", batch.seqs)
        rows = int(ffi.cast("uintptr_t", seqs)) + starts * np.uint64(4)
        given = ffi.new("struct llama_batch *")
        given.n_tokens = len(batch)
        given.token = keep_0 = ffi.from_buffer("llama_token[]", batch.token)
        given.pos = keep_1 = ffi.from_buffer("llama_pos[]", batch.pos)
        given.n_seq_id = keep_2 = ffi.from_buffer("int32_t[]", batch.counts)
        given.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(rows))
        given.logits = keep_3 = ffi.from_buffer("int8_t[]", flags)
        guard = self._bindings.guard()
        with guard:
            result = int(function(self._pointer, given[0]))
            if result == 0:
                # Computation may still be going on, and its callbacks' exceptions belong here.
                self._bindings.lib.llama_synchronize(self._pointer)
        del keep_0, keep_1, keep_2, keep_3
        return result

    def _read(self, batch: Batch) -> Floats:
        if self._has_memory:
            self.memory.applied()
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
        return self._embeddings or not self._has_memory or self.model.has_encoder

    def _copy(self, start: Any, rows: int, width: int) -> Floats:
        whole_buffer = self._bindings.ffi.buffer(start, rows * width * 4)
        return np.frombuffer(whole_buffer, np.float32).reshape(rows, width).copy()

    def _failed(self, what: str, result: int, batch: Batch, listener: Listener) -> PyggmlError:
        if result < -1 or result == _ABORTED:
            self.memory.applied()
        seqs = sorted(set(batch.seqs.tolist()))
        ends = "; ".join(f"sequence {seq} ends at {self.memory.last_position(seq)}" for seq in seqs[:4])
        if result == _NO_ROOM:
            return NoRoomError(
                f"no room for {len(batch)} tokens of {len(seqs)} sequences: {self.n_ctx_seq} cells"
                f"{' for all sequences' if self.kv_unified else ' for each sequence'}; {ends}",
                "Remove positions (memory.seq_rm), or create the context with a larger n_ctx.",
            )
        if result == _ABORTED:
            return AbortedError(f"the abort callback ended the {what} of {len(batch)} tokens; {ends}")
        return DecodeError(
            f"llama.cpp could not {what} {len(batch)} tokens (result {result}): {listener.reason()}; {ends}"
        )

    def _number(self, seq: int | None) -> int | None:
        return None if seq is None else whole("the sequence", seq, 0, self.n_seq_max - 1)

    def _save(self, seq: int | None) -> bytes:
        self.memory.check_applied("saved")
        ffi, lib = self._bindings.ffi, self._bindings.lib
        more = () if seq is None else (seq,)
        kind = "llama_state" if seq is None else "llama_state_seq"
        with Listener() as listener:
            size = getattr(lib, f"{kind}_get_size")(self._pointer, *more)
            buffer = bytearray(size)
            into = ffi.from_buffer("uint8_t[]", buffer, require_writable=True)
            written = getattr(lib, f"{kind}_get_data")(self._pointer, into, size, *more)
        ffi.release(into)
        if written != size or not size:
            raise PyggmlError(f"the state of {self.label} cannot be saved: {listener.reason()}")
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
                    f"the state is of another kind of context: {name} {state.origin.get(name)}, here {ours.get(name)}"
                )

    def _forget_outputs(self) -> None:
        self._logits = self._rows = None

    def _release(self) -> None:
        lib = self._bindings.lib
        with Listener():
            lib.llama_free(self._pointer)
        for callback in self._callbacks:
            callback.close()
