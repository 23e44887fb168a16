"""A batch of tokens for a decode, checked for what llama.cpp catches too late, wrongly or with an abort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyggml.errors import UsageError
from pyggml.llama.arguments import MAX_INT32, Int32Array, checked_int, checked_int32_array

Tokens: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]]"
Sequences: TypeAlias = "int | Sequence[int]"
Item: TypeAlias = "tuple[Tokens, Sequences] | tuple[Tokens, Sequences, Positions]"
Positions: TypeAlias = "int | Tokens | None"
Wanted: TypeAlias = "str | Sequence[bool] | npt.NDArray[np.bool_]"

LOGITS_WORDS = ("last", "all", "none")


@dataclass(frozen=True)
class BatchLimits:
    """What a context accepts.

    Attributes:
        tokens: maximum number of tokens in a batch.
        vocab: number of token ids.
        sequences: number of sequence ids.
        shared: a token may belong to several sequences.
        positions: one more than the largest position.
        gaps: positions may leave gaps (models with several position values for a token).
    """

    tokens: int
    vocab: int
    sequences: int
    shared: bool
    positions: int
    gaps: bool


@dataclass(frozen=True)
class Batch:
    """Arrays in the form of `struct llama_batch`, one element per token.

    Attributes:
        token, pos: int32.
        counts: how many sequences a token belongs to.
        seqs: their ids, concatenated over the tokens.
        wanted: whether the token's logits are wanted.
        items: first index of each item, and the number of tokens.
    """

    token: Int32Array
    pos: Int32Array
    counts: Int32Array
    seqs: Int32Array
    wanted: npt.NDArray[np.bool_]
    items: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token)


def make_batch(
    items: Iterable[Any], wanted: Wanted, limits: BatchLimits, last_position: Callable[[int], int]
) -> Batch:
    """Check items and put them into one batch, in their order.

    Args:
        items: (tokens, sequence or sequences[, first position or positions]).
        wanted: `last` of every item, `all`, `none`, or a boolean for every token.
        last_position: a sequence's last position in the memory; -1 if it is empty.

    Raises:
        UsageError: the context does not accept it; the message names the item and the numbers.
    """
    tokens, positions, counts, seqs = [], [], [], []
    starts = [0]
    lasts: dict[int, int] = {}

    def last(seq: int) -> int:
        """The last position of a sequence: in the items so far, or else in the memory."""
        return lasts[seq] if seq in lasts else last_position(seq)

    for number, item in enumerate(items):
        what = f"item {number} of the batch"
        if not isinstance(item, tuple) or not 2 <= len(item) <= 3:
            raise UsageError(f"{what} is {item!r:.60}", "Write it as (tokens, sequence[, position]).")
        token = _tokens(what, item[0], limits.vocab)
        members = _sequences(what, item[1], limits)
        starts.append(starts[-1] + len(token))
        if starts[-1] > limits.tokens:
            continue
        pos = _positions(what, item[2] if len(item) == 3 else None, len(token), members, last)
        _check_positions(what, pos, members, limits, last)
        lasts.update(dict.fromkeys(members, int(pos[-1])))
        tokens.append(token)
        positions.append(pos)
        counts.append(np.full(len(token), len(members), np.int32))
        seqs.append(np.tile(np.array(members, np.int32), len(token)))
    if starts[-1] == 0:
        raise UsageError("the batch has no tokens")
    if starts[-1] > limits.tokens:
        raise UsageError(
            f"the batch has {starts[-1]} tokens; this context takes {limits.tokens} at a time",
            "Decode it in parts, or create the context with a larger n_batch (and n_ubatch).",
        )
    return Batch(
        token=np.concatenate(tokens),
        pos=np.concatenate(positions),
        counts=np.concatenate(counts),
        seqs=np.concatenate(seqs),
        wanted=_wanted(wanted, starts),
        items=tuple(starts),
    )


def _tokens(what: str, values: Any, vocab: int) -> Int32Array:
    return checked_int32_array(f"the tokens of {what}", values, 0, vocab - 1)


def _sequences(what: str, value: Any, limits: BatchLimits) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple | np.ndarray) else (value,)
    members = tuple(checked_int(f"the sequence of {what}", one, 0, limits.sequences - 1) for one in values)
    if not members or len(set(members)) != len(members):
        raise UsageError(f"the sequences of {what} are {values!r:.60}; it needs at least one, and none twice")
    if len(members) > 1 and not limits.shared:
        raise UsageError(
            f"{what} belongs to {len(members)} sequences, but each sequence has its own cache here",
            "Create the context with kv_unified=True, or decode once and use memory.seq_cp.",
        )
    return members


def _positions(
    what: str,
    value: Any,
    count: int,
    members: tuple[int, ...],
    last: Callable[[int], int],
) -> Int32Array:
    if value is None:
        ends = {seq: last(seq) for seq in members}
        if len(set(ends.values())) > 1:
            listed = ", ".join(f"{seq} at {end}" for seq, end in ends.items())
            raise UsageError(
                f"the sequences of {what} end at different positions: {listed}",
                "Give its positions explicitly.",
            )
        value = ends[members[0]] + 1
    if isinstance(value, int | np.integer):
        start = checked_int(f"the position of {what}", value, 0, MAX_INT32 - count)
        return np.arange(start, start + count, dtype=np.int32)
    pos = checked_int32_array(f"the positions of {what}", value, 0, MAX_INT32)
    if len(pos) != count:
        raise UsageError(f"{what} has {count} tokens and {len(pos)} positions")
    return pos


def _check_positions(
    what: str,
    pos: Int32Array,
    members: tuple[int, ...],
    limits: BatchLimits,
    last: Callable[[int], int],
) -> None:
    steps = np.diff(pos)
    bad_steps = (steps < 1) if limits.gaps else (steps != 1)
    if bad_steps.any():
        index = int(bad_steps.argmax())
        raise UsageError(
            f"the positions of {what} go from {pos[index]} to {pos[index + 1]} "
            f"at its token {index + 1}; they must {'increase' if limits.gaps else 'be consecutive'}"
        )
    if pos[-1] >= limits.positions:
        raise UsageError(
            f"{what} reaches position {pos[-1]}; this model has embeddings for {limits.positions} positions"
        )
    for seq in members:
        end = last(seq)
        continues = pos[0] > end if limits.gaps else pos[0] == end + 1
        if end >= 0 and not continues:
            raise UsageError(
                f"{what} starts at position {pos[0]}, but sequence {seq} ends at {end}",
                f"Continue at {end + 1}, or remove positions first: memory.seq_rm({seq}, {pos[0]}).",
            )


def _wanted(value: Any, starts: list[int]) -> npt.NDArray[np.bool_]:
    count = starts[-1]
    if isinstance(value, str):
        if value not in LOGITS_WORDS:
            raise UsageError(
                f"logits={value!r:.40} is not a choice",
                f"It must be one of {', '.join(LOGITS_WORDS)}, or a boolean for each token.",
            )
        flags = np.full(count, value == "all")
        if value == "last":
            flags[np.array(starts[1:]) - 1] = True
        return flags
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise UsageError(
            f"the mask of wanted logits has type {flags.dtype} and shape {flags.shape}; "
            f"it must be {count} booleans, one for each token"
        )
    return flags
