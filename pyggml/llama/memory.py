"""What a context remembers: the cells of its cache by sequence and position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.llama.errors import NoMemoryError
from pyggml.llama.numbers import MAX_INT32, whole
from pyggml.llama.words import Listener

if TYPE_CHECKING:
    from pyggml.llama.context import LlamaContext

_WHOLE_COPIES = ("deepseek4",)
"""Architectures that copy sequences only whole (llama_kv_cache_dsv4::seq_cp)."""
_MAKE_ROOM = "The other sequences can go on. Release another one, or close another context."


class Memory:
    """The memory of a context, as `context.memory`; it lives as long as the context.

    Positions go from `p0` to before `p1`; None is the beginning or the end.
    """

    def __init__(self, context: LlamaContext, pointer: Any) -> None:
        self._context = context
        self._bindings = context._bindings
        self._pointer = pointer
        self._pending: str | None = None
        self._released: dict[int, dict[str, int]] = {}

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
            self._context._forget_outputs()

    def seq_rm(self, seq: int | None = None, p0: int | None = None, p1: int | None = None) -> None:
        """Remove positions of a sequence, or with None of all.

        Raises:
            PyggmlError: a recurrent model, whose state knows no positions, cannot forget a part.
        """
        with self._context.using():
            first, end = _range(p0, p1)
            # Not -1 for all: a recurrent memory would keep its tails and abort at the next decode
            # (llama_memory_recurrent::seq_rm).
            numbers = range(self._context.n_seq_max) if seq is None else (self._seq(seq),)
            if not self._remove(numbers, first, end):
                raise PyggmlError(
                    f"positions {_told(p0, p1)} of {_named(seq)} cannot be removed: this model keeps a state "
                    "that holds all positions at once",
                    "Remove the whole sequence, or restore a state saved earlier.",
                )

    def seq_cp(self, source: int, destination: int, p0: int | None = None, p1: int | None = None) -> None:
        """Let a second sequence have positions of the first as well.

        With kv_unified, or within one sequence's cache, no data is copied. Otherwise the destination loses
        what it had, and the data is copied before the next decode.

        Raises:
            PyggmlError: only a part is asked for where only whole sequences can be copied.
        """
        with self._context.using():
            source, destination = self._seq(source), self._seq(destination)
            first, end = _range(p0, p1)
            if source == destination:
                return
            self.take((destination,))
            low, high = self._pos_min(source), self._pos_max(source)
            whole_copy = (first <= low or first <= 0) and (end < 0 or end > high)
            separate = not self._context.shared
            if separate or self._context.model.architecture in _WHOLE_COPIES:
                if not whole_copy:
                    raise PyggmlError(
                        f"positions {_told(p0, p1)} of sequence {source} ({low} to {high}) cannot be copied: "
                        "each sequence has a cache of its own here, which is copied whole",
                        "Leave p0 and p1 away, or create the context with kv_unified=True.",
                    )
                first = end = -1
            if separate:
                self._pending = f"the copy of sequence {source} to {destination}"
            self._bindings.lib.llama_memory_seq_cp(self._pointer, source, destination, first, end)

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence that shares this one's cache."""
        with self._context.using():
            self._bindings.lib.llama_memory_seq_keep(self._pointer, self._seq(seq))

    def seq_add(self, seq: int, delta: int, p0: int | None = None, p1: int | None = None) -> None:
        """Move positions by `delta`; those that come below 0 are gone. The data follows at the next decode.

        Raises:
            PyggmlError: this model or this type of K cache cannot be shifted.
            UsageError: a position would go beyond what a position can be.
        """
        with self._context.using():
            seq, (first, end) = self._seq(seq), _range(p0, p1)
            delta = whole("delta", delta, -MAX_INT32, MAX_INT32)
            high = self._pos_max(seq)
            self._check_shift()
            if high + delta > MAX_INT32:
                raise UsageError(f"sequence {seq} ends at {high}; {delta} more is too far")
            if self._context.stateful and delta < 0 and self._pos_min(seq) + delta < 0:
                raise UsageError(f"sequence {seq} begins at {self._pos_min(seq)}; {delta} makes it negative")
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
            divisor = whole("the divisor", divisor, 1, MAX_INT32)
            self._check_shift()
            if divisor > 1 and self._pos_max(seq) >= 0:
                self._pending = f"the division of sequence {seq} by {divisor}"
            self._bindings.lib.llama_memory_seq_div(self._pointer, seq, first, end, divisor)

    def seq_release(self, seq: int) -> None:
        """Give the memory of a sequence's cache back, with all that it held; no other sequence is touched.

        It takes memory again when it is needed: by seq_reserve, decode, seq_cp into it, or restore_state. To
        release it a second time does nothing.

        Raises:
            PyggmlError: the context was made without kv_per_stream or for one sequence, or llama.cpp refuses;
                nothing is changed.
        """
        with self._context.using():
            seq = self._seq(seq)
            release = self._of_streams("llama_memory_seq_release")
            if seq in self._released:
                return
            self._bindings.lib.llama_synchronize(self._context._pointer)
            before = self._context.model.free_memory()
            with Listener() as listener:
                done = release(self._pointer, seq)
            if not done:
                raise PyggmlError(f"the memory of sequence {seq} cannot be given back: {listener.reason()}")
            after = self._context.model.free_memory()
            self._released[seq] = {name: after[name] - before[name] for name in after}

    def seq_reserve(self, seq: int) -> None:
        """Take memory for a sequence whose memory was given back; it is empty then.

        Raises:
            PyggmlError: the context was made without kv_per_stream, or for one sequence.
            NoMemoryError: there is not enough memory; the sequence is as it was, and the others can go on.
        """
        with self._context.using():
            seq = self._seq(seq)
            self._of_streams("llama_memory_seq_reserve")
            self.take((seq,))

    def seq_held(self, seq: int) -> bool:
        """Whether a sequence has memory: always, but between seq_release and what takes memory again."""
        with self._context.using():
            return self._seq(seq) not in self._released

    def take(self, seqs: Iterable[int]) -> None:
        """Take memory for those of these valid sequences whose memory was given back.

        Raises:
            NoMemoryError: there is not enough; those before the one it names have theirs.
        """
        for seq in sorted(self._released.keys() & set(seqs)):
            # llama.cpp does it by itself, but the meta device asserts on an allocation that fails
            # (ggml/src/ggml-backend-meta.cpp), and what it says is only in its log.
            free = self._context.model.free_memory()
            for name, need in self._released[seq].items():
                if free[name] < need:
                    raise NoMemoryError(
                        f"no memory for sequence {seq}: {name} needs {need:,} bytes and has {free[name]:,} free",
                        _MAKE_ROOM,
                    )
            with Listener() as listener:
                done = self._bindings.lib.llama_memory_seq_reserve(self._pointer, seq)
            if not done:
                raise NoMemoryError(f"no memory for sequence {seq}: {listener.reason()}", _MAKE_ROOM)
            del self._released[seq]

    def check_applied(self, what: str) -> None:
        """Upstream's state has the positions after a shift or copy, and the data before it.

        Raises:
            PyggmlError: something is still to be applied.
        """
        if self._pending is not None:
            raise PyggmlError(
                f"the state cannot be {what}: {self._pending} is applied only at the next decode",
                "Decode a token first.",
            )

    def applied(self) -> None:
        """A decode has begun its work, and has applied what was pending."""
        self._pending = None

    def last_position(self, seq: int) -> int:
        """pos_max of a valid sequence, for who is using the context already."""
        return self._pos_max(seq)

    def _of_streams(self, name: str) -> Any:
        context = self._context
        if not context.kv_per_stream or context.n_seq_max == 1:
            raise PyggmlError(
                f"the sequences of {context.label} have no memory of their own",
                "Create the context with kv_per_stream=True, for several sequences.",
            )
        try:
            return getattr(self._bindings.lib, name)
        except AttributeError:
            raise PyggmlError(f"the build {self._bindings.build.record.variant} has no {name}") from None

    def _remove(self, seqs: Iterable[int], first: int, end: int) -> bool:
        """False before anything is changed, as far as upstream does so for each sequence."""
        seqs = [seq for seq in seqs if self._pos_max(seq) >= first]
        if self._context.stateful and any(first > 0 or 0 <= end <= self._pos_max(seq) for seq in seqs):
            return False
        remove = self._bindings.lib.llama_memory_seq_rm
        done = [bool(remove(self._pointer, seq, first, end)) for seq in seqs]
        return all(done)

    def _seq(self, seq: int) -> int:
        return whole("the sequence", seq, 0, self._context.n_seq_max - 1)

    def _pos_min(self, seq: int) -> int:
        return int(self._bindings.lib.llama_memory_seq_pos_min(self._pointer, seq))

    def _pos_max(self, seq: int) -> int:
        return int(self._bindings.lib.llama_memory_seq_pos_max(self._pointer, seq))

    def _can_shift(self) -> bool:
        context = self._context
        # ggml's CPU backend aborts on rotary embedding in bf16 (ggml_compute_forward_rope), and on writing
        # quantised values into a part of each head (ggml_compute_forward_dup). A cache without layers, as
        # hybrid and sliding-window models may have one, has no graph to shift with and aborts as well
        # (llama_kv_cache::update).
        return (
            context.type_k != "bf16"
            and (context.type_k in ("f16", "f32") or context.model.rotates_whole_heads)
            and not context.model.is_hybrid
            and not context.model.one_kind_of_window
            and bool(self._bindings.lib.llama_memory_can_shift(self._pointer))
        )

    def _check_shift(self) -> None:
        if not self._can_shift():
            raise PyggmlError(
                f"the positions of {self._context.label} cannot be moved: architecture "
                f"{self._context.model.architecture}, K cache of type {self._context.type_k}"
            )


def _range(p0: int | None, p1: int | None) -> tuple[int, int]:
    first = 0 if p0 is None else whole("p0", p0, 0, MAX_INT32)
    end = -1 if p1 is None else whole("p1", p1, 0, MAX_INT32)
    if 0 <= end < first:
        raise UsageError(f"positions from {first} to before {end} are none")
    return first, end


def _told(p0: int | None, p1: int | None) -> str:
    return f"{p0 or 0} to {'the end' if p1 is None else f'before {p1}'}"


def _named(seq: int | None) -> str:
    return "all sequences" if seq is None else f"sequence {seq}"
