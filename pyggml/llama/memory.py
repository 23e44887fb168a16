"""The memory of a context: what it holds for each sequence, by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml.handle import Handle
from pyggml.llama.arguments import MAX_INT32, checked_int
from pyggml.llama.errors import NoMemoryError
from pyggml.llama.log_capture import LogCapture
from pyggml.llama.model import Model

_COPIES_WHOLE_SEQUENCES = ("deepseek4",)
"""Architectures that can only copy whole sequences (llama_kv_cache_dsv4::seq_cp)."""
_FREE_MEMORY_HINT = "The other sequences still work. Release another one, or close another context."


@dataclass(frozen=True)
class CacheLayout:
    """How a context keeps its sequences; see LlamaContext for what the names mean."""

    n_seq_max: int
    shared: bool
    kv_per_stream: bool
    stateful: bool
    type_k: str


class Memory:
    """The memory of a context, as `context.memory`; it lives as long as the context.

    Positions go from `p0` to before `p1`; None is the beginning or the end.
    """

    def __init__(
        self,
        context: Handle,
        pointer: Any,
        model: Model,
        layout: CacheLayout,
        forget_outputs: Callable[[], None],
    ) -> None:
        """For LlamaContext, which makes one for itself.

        Args:
            context: the context; using it keeps other threads out, and raises once it is closed.
            pointer: its `struct llama_context *`.
            forget_outputs: called when everything is cleared, so that the context drops its logits.
        """
        self._context = context
        self._llama_context = pointer
        self._model = model
        self._layout = layout
        self._forget_outputs = forget_outputs
        self._bindings = model._bindings
        self._pointer = self._bindings.lib.llama_get_memory(pointer)
        self._pending: str | None = None
        self._released: dict[int, dict[str, int]] = {}

    def __bool__(self) -> bool:
        """Whether there is one: encoders and some other models have no memory."""
        return bool(self._pointer != self._bindings.ffi.NULL)

    @property
    def can_shift(self) -> bool:
        """Whether seq_add and seq_div are possible."""
        with self._context.using():
            return self._can_shift()

    def pos_min(self, seq: int = 0) -> int:
        """The first position of a sequence that is still there; -1 for an empty sequence."""
        with self._context.using():
            return self._pos_min(self._seq(seq))

    def pos_max(self, seq: int = 0) -> int:
        """The last position of a sequence; -1 for an empty sequence."""
        with self._context.using():
            return self._pos_max(self._seq(seq))

    def clear(self, *, data: bool = True) -> None:
        """Forget everything.

        Args:
            data: overwrite the contents of the cells as well.
        """
        with self._context.using():
            self._bindings.lib.llama_memory_clear(self._pointer, bool(data))
            self._forget_outputs()

    def seq_rm(self, seq: int | None = None, p0: int | None = None, p1: int | None = None) -> None:
        """Remove positions of a sequence, or with None of all.

        Raises:
            PyggmlError: only a part is to be removed, and the model is recurrent: its state is not kept by
                position.
        """
        with self._context.using():
            first, end = _range(p0, p1)
            # Not -1 for all: a recurrent memory would keep its tails and abort at the next decode
            # (llama_memory_recurrent::seq_rm).
            seqs = range(self._layout.n_seq_max) if seq is None else (self._seq(seq),)
            if not self._remove(seqs, first, end):
                raise PyggmlError(
                    f"positions {_describe_range(p0, p1)} of {'all sequences' if seq is None else f'sequence {seq}'} "
                    "cannot be removed: this model's state covers all positions at once",
                    "Remove the whole sequence, or restore a state saved earlier.",
                )

    def seq_cp(self, source: int, destination: int, p0: int | None = None, p1: int | None = None) -> None:
        """Copy positions of one sequence to another.

        With kv_unified both share the cells and no data is copied. Otherwise the destination loses what it
        had, and the data is copied before the next decode.

        Raises:
            PyggmlError: only a part is to be copied, where only whole sequences can be.
        """
        with self._context.using():
            source, destination = self._seq(source), self._seq(destination)
            first, end = _range(p0, p1)
            if source == destination:
                return
            self.ensure_held((destination,))
            low, high = self._pos_min(source), self._pos_max(source)
            is_whole = (first <= low or first <= 0) and (end < 0 or end > high)
            separate = not self._layout.shared
            if separate or self._model.architecture in _COPIES_WHOLE_SEQUENCES:
                if not is_whole:
                    raise PyggmlError(
                        f"positions {_describe_range(p0, p1)} of sequence {source} ({low} to {high}) cannot be "
                        "copied: each sequence has its own cache here, which can only be copied whole",
                        "Omit p0 and p1, or create the context with kv_unified=True.",
                    )
                first = end = -1
            if separate:
                self._pending = f"the copy of sequence {source} to {destination}"
            self._bindings.lib.llama_memory_seq_cp(self._pointer, source, destination, first, end)

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence.

        Without the patch keep-and-empty-states only those go that share this one's cache.
        """
        with self._context.using():
            self._bindings.lib.llama_memory_seq_keep(self._pointer, self._seq(seq))

    def seq_add(self, seq: int, delta: int, p0: int | None = None, p1: int | None = None) -> None:
        """Move positions by `delta`; those that fall below 0 are removed. The data follows at the next decode.

        Raises:
            PyggmlError: this model or this type of K cache cannot be shifted.
            UsageError: a position would become too large.
        """
        with self._context.using():
            seq, (first, end) = self._seq(seq), _range(p0, p1)
            delta = checked_int("delta", delta, -MAX_INT32, MAX_INT32)
            high = self._pos_max(seq)
            self._check_shift()
            if high + delta > MAX_INT32:
                raise UsageError(f"sequence {seq} ends at {high}; adding {delta} is too much")
            if self._layout.stateful and delta < 0 and self._pos_min(seq) + delta < 0:
                raise UsageError(
                    f"sequence {seq} begins at {self._pos_min(seq)}; adding {delta} makes positions negative"
                )
            if delta and high >= 0:
                self._pending = f"the shift of sequence {seq} by {delta}"
            self._bindings.lib.llama_memory_seq_add(self._pointer, seq, first, end, delta)

    def seq_div(self, seq: int, divisor: int, p0: int | None = None, p1: int | None = None) -> None:
        """Divide positions, rounding down. The data follows at the next decode.

        Raises:
            PyggmlError: this model or this type of K cache cannot be shifted.
        """
        with self._context.using():
            seq, (first, end) = self._seq(seq), _range(p0, p1)
            divisor = checked_int("the divisor", divisor, 1, MAX_INT32)
            self._check_shift()
            if divisor > 1 and self._pos_max(seq) >= 0:
                self._pending = f"the division of sequence {seq} by {divisor}"
            self._bindings.lib.llama_memory_seq_div(self._pointer, seq, first, end, divisor)

    def seq_release(self, seq: int) -> None:
        """Free the memory of a sequence's cache, and its contents; no other sequence is touched.

        Memory is allocated again when it is needed: by seq_reserve, decode, seq_cp into it, or restore_state.
        Releasing it a second time does nothing.

        Raises:
            PyggmlError: the context was made without kv_per_stream or for one sequence, or llama.cpp refuses;
                nothing is changed.
        """
        with self._context.using():
            seq = self._seq(seq)
            release = self._per_stream("llama_memory_seq_release")
            if seq in self._released:
                return
            self._bindings.lib.llama_synchronize(self._llama_context)
            before = self._model.free_memory()
            with LogCapture() as log:
                done = release(self._pointer, seq)
            if not done:
                raise PyggmlError(f"cannot release the memory of sequence {seq}: {log.reason()}")
            after = self._model.free_memory()
            self._released[seq] = {name: after[name] - before[name] for name in after}

    def seq_reserve(self, seq: int) -> None:
        """Allocate memory again for a sequence that was released; the sequence is empty.

        Raises:
            PyggmlError: the context was made without kv_per_stream, or for one sequence.
            NoMemoryError: there is not enough memory; the sequence stays released, the others still work.
        """
        with self._context.using():
            seq = self._seq(seq)
            self._per_stream("llama_memory_seq_reserve")
            self.ensure_held((seq,))

    def seq_held(self, seq: int) -> bool:
        """Whether a sequence has memory: always, except after seq_release until it is allocated again."""
        with self._context.using():
            return self._seq(seq) not in self._released

    def ensure_held(self, seqs: Iterable[int]) -> None:
        """Allocate memory again for those of these valid sequences that were released.

        Raises:
            NoMemoryError: there is not enough; sequences before the one it names have theirs.
        """
        with self._context.using():
            for seq in sorted(self._released.keys() & set(seqs)):
                # llama.cpp does it by itself, but its reason is only in its log, and without the patch
                # meta-alloc-failure the meta device asserts (ggml/src/ggml-backend-meta.cpp).
                free = self._model.free_memory()
                for name, need in self._released[seq].items():
                    if free[name] < need:
                        raise NoMemoryError(
                            f"no memory for sequence {seq}: {name} needs {need:,} bytes and has {free[name]:,} "
                            "free",
                            _FREE_MEMORY_HINT,
                        )
                with LogCapture() as log:
                    done = self._bindings.lib.llama_memory_seq_reserve(self._pointer, seq)
                if not done:
                    raise NoMemoryError(f"no memory for sequence {seq}: {log.reason()}", _FREE_MEMORY_HINT)
                del self._released[seq]

    def check_nothing_pending(self, what: str) -> None:
        """Raise while a shift or copy is pending: a state would hold the new positions with the old data.

        Args:
            what: what cannot be done meanwhile, such as "saved".

        Raises:
            PyggmlError: a shift, division or copy is pending.
        """
        if self._pending is not None:
            raise PyggmlError(
                f"the state cannot be {what}: {self._pending} takes effect only at the next decode",
                "Decode a token first.",
            )

    def clear_pending(self) -> None:
        """Note that a decode has begun and applied what was pending."""
        self._pending = None

    def last_position(self, seq: int) -> int:
        """pos_max of a sequence number that was checked before."""
        with self._context.using():
            return self._pos_max(seq)

    def _per_stream(self, name: str) -> Any:
        """The function `name` of the patch per-stream-tensors."""
        if not self._layout.kv_per_stream or self._layout.n_seq_max == 1:
            raise PyggmlError(
                f"the sequences of {self._context.label} do not have their own memory",
                "Create the context with kv_per_stream=True and several sequences.",
            )
        try:
            return getattr(self._bindings.lib, name)
        except AttributeError:
            raise PyggmlError(f"the build {self._bindings.build.record.variant} has no {name}") from None

    def _remove(self, seqs: Iterable[int], first: int, end: int) -> bool:
        """Whether they could be removed; if not, nothing was changed (as far as upstream guarantees it)."""
        seqs = [seq for seq in seqs if self._pos_max(seq) >= first]
        if self._layout.stateful and any(first > 0 or 0 <= end <= self._pos_max(seq) for seq in seqs):
            return False
        remove = self._bindings.lib.llama_memory_seq_rm
        done = [bool(remove(self._pointer, seq, first, end)) for seq in seqs]
        return all(done)

    def _seq(self, seq: int) -> int:
        return checked_int("the sequence", seq, 0, self._layout.n_seq_max - 1)

    def _pos_min(self, seq: int) -> int:
        return int(self._bindings.lib.llama_memory_seq_pos_min(self._pointer, seq))

    def _pos_max(self, seq: int) -> int:
        return int(self._bindings.lib.llama_memory_seq_pos_max(self._pointer, seq))

    def _can_shift(self) -> bool:
        model, type_k = self._model, self._layout.type_k
        # ggml's CPU backend aborts on rotary embedding in bf16 (ggml_compute_forward_rope), and on writing
        # quantised values into a part of each head (ggml_compute_forward_dup). Hybrid and sliding-window
        # models may have a cache without layers; llama.cpp builds no graph to shift it and aborts as well
        # (llama_kv_cache::update).
        return (
            type_k != "bf16"
            and (type_k in ("f16", "f32") or model.rotates_whole_heads)
            and not model.is_hybrid
            and not model.one_kind_of_window
            and bool(self._bindings.lib.llama_memory_can_shift(self._pointer))
        )

    def _check_shift(self) -> None:
        if not self._can_shift():
            raise PyggmlError(
                f"the positions of {self._context.label} cannot be moved: architecture "
                f"{self._model.architecture}, K cache of type {self._layout.type_k}"
            )


def _range(p0: int | None, p1: int | None) -> tuple[int, int]:
    first = 0 if p0 is None else checked_int("p0", p0, 0, MAX_INT32)
    end = -1 if p1 is None else checked_int("p1", p1, 0, MAX_INT32)
    if 0 <= end < first:
        raise UsageError(f"there are no positions from {first} to before {end}")
    return first, end


def _describe_range(p0: int | None, p1: int | None) -> str:
    return f"{p0 or 0} to {'the end' if p1 is None else f'before {p1}'}"
