"""A batch of tokens for a decode, checked: what llama.cpp refuses late, wrongly or with an abort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyggml.errors import UsageError
from pyggml.llama.numbers import MAX_INT32, whole

Tokens: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]]"
Sequences: TypeAlias = "int | Sequence[int]"
Item: TypeAlias = "tuple[Tokens, Sequences] | tuple[Tokens, Sequences, Positions]"
Positions: TypeAlias = "int | Tokens | None"
Wanted: TypeAlias = "str | Sequence[bool] | npt.NDArray[np.bool_]"
Int32: TypeAlias = "npt.NDArray[np.int32]"

WORDS = ("last", "all", "none")


@dataclass(frozen=True)
class Limits:
    """What a context takes.

    Attributes:
        tokens: of a batch.
        vocab: number of token ids.
        sequences: number of sequence ids.
        shared: a token may belong to several sequences.
        positions: beyond the last possible position.
        jumps: positions may leave gaps (models with several position values for a token).
    """

    tokens: int
    vocab: int
    sequences: int
    shared: bool
    positions: int
    jumps: bool


@dataclass(frozen=True)
class Batch:
    """Arrays as `struct llama_batch` wants them, one element for every token.

    Attributes:
        token, pos: int32.
        counts: how many sequences a token belongs to.
        seqs: their ids, one token's after the other's.
        wanted: whether the token's logits are asked for.
        items: first index of each item, and the number of tokens.
    """

    token: Int32
    pos: Int32
    counts: Int32
    seqs: Int32
    wanted: npt.NDArray[np.bool_]
    items: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token)


def make_batch(
    items: Iterable[Any], wanted: Wanted, limits: Limits, last_position: Callable[[int], int]
) -> Batch:
    """Check items and put them into one batch, in their order.

    Args:
        items: (tokens, sequence or sequences[, first position or positions]).
        wanted: `last` of every item, `all`, `none`, or a boolean for every token.
        last_position: of a sequence in the memory, -1 when it is empty.

    Raises:
        UsageError: anything that the context does not take; the message names the item and the numbers.
    """
    tokens, positions, counts, seqs = [], [], [], []
    starts = [0]
    lasts: dict[int, int] = {}
    for number, item in enumerate(items):
        what = f"item {number} of the batch"
        if not isinstance(item, tuple) or not 2 <= len(item) <= 3:
            raise UsageError(f"{what} is {item!r:.60}", "Write it as (tokens, sequence[, position]).")
        token = _tokens(what, item[0], limits.vocab)
        members = _sequences(what, item[1], limits)
        starts.append(starts[-1] + len(token))
        if starts[-1] > limits.tokens:
            continue
        place = _positions(
            what, item[2] if len(item) == 3 else None, len(token), members, lasts, last_position
        )
        _check_positions(what, place, members, limits, lasts, last_position)
        lasts.update(dict.fromkeys(members, int(place[-1])))
        tokens.append(token)
        positions.append(place)
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


def int_array(what: str, values: Any, least: int, most: int) -> Int32:
    """A one-dimensional array of whole numbers as int32, never reinterpreted or rounded.

    Raises:
        UsageError: another type, shape or range; the message names the first wrong element.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{what}: {error}") from error
    if array.ndim != 1:
        raise UsageError(f"{what} must be one row of numbers; the shape is {array.shape}")
    if array.size == 0:
        raise UsageError(f"{what}: there are none")
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{what} must be whole numbers; the type is {array.dtype}")
    wrong = (array < least) | (array > most)
    if wrong.any():
        index = int(wrong.argmax())
        raise UsageError(f"{what}: number {index} is {array[index]}; {least} to {most} is possible")
    return np.ascontiguousarray(array, np.int32)


def _tokens(what: str, values: Any, vocab: int) -> Int32:
    return int_array(f"the tokens of {what}", values, 0, vocab - 1)


def _sequences(what: str, value: Any, limits: Limits) -> tuple[int, ...]:
    given = (value,) if not isinstance(value, list | tuple | np.ndarray) else tuple(value)
    members = tuple(whole(f"the sequence of {what}", one, 0, limits.sequences - 1) for one in given)
    if not members or len(set(members)) != len(members):
        raise UsageError(f"the sequences of {what} are {given!r:.60}; each must be there once")
    if len(members) > 1 and not limits.shared:
        raise UsageError(
            f"{what} belongs to {len(members)} sequences, and each sequence has a cache of its own here",
            "Create the context with kv_unified=True, or decode once and use memory.seq_cp.",
        )
    return members


def _positions(
    what: str,
    value: Any,
    count: int,
    members: tuple[int, ...],
    lasts: dict[int, int],
    last_position: Callable[[int], int],
) -> Int32:
    if value is None:
        last = {seq: lasts[seq] if seq in lasts else last_position(seq) for seq in members}
        if len(set(last.values())) > 1:
            told = ", ".join(f"{seq} ends at {at}" for seq, at in last.items())
            raise UsageError(f"the sequences of {what} have come apart: {told}")
        value = last[members[0]] + 1
    if isinstance(value, int | np.integer):
        start = whole(f"the position of {what}", value, 0, MAX_INT32 - count)
        return np.arange(start, start + count, dtype=np.int32)
    place = int_array(f"the positions of {what}", value, 0, MAX_INT32)
    if len(place) != count:
        raise UsageError(f"{what} has {count} tokens and {len(place)} positions")
    return place


def _check_positions(
    what: str,
    place: Int32,
    members: tuple[int, ...],
    limits: Limits,
    lasts: dict[int, int],
    last_position: Callable[[int], int],
) -> None:
    steps = np.diff(place)
    wrong = (steps < 1) if limits.jumps else (steps != 1)
    if wrong.any():
        index = int(wrong.argmax())
        raise UsageError(
            f"the positions of {what} go from {place[index]} to {place[index + 1]} "
            f"at its token {index + 1}; they must {'rise' if limits.jumps else 'follow each other'}"
        )
    if place[-1] >= limits.positions:
        raise UsageError(
            f"{what} reaches position {place[-1]}; this model has embeddings for {limits.positions} positions"
        )
    for seq in members:
        last = lasts[seq] if seq in lasts else last_position(seq)
        fits = place[0] > last if limits.jumps else place[0] == last + 1
        if last >= 0 and not fits:
            raise UsageError(
                f"{what} starts at position {place[0]}, but sequence {seq} ends at {last}",
                f"Continue at {last + 1}, or remove positions first: memory.seq_rm({seq}, {place[0]}).",
            )


def _wanted(value: Any, starts: list[int]) -> npt.NDArray[np.bool_]:
    count = starts[-1]
    if isinstance(value, str):
        if value not in WORDS:
            raise UsageError(
                f"logits={value!r:.40} is asked for",
                f"Possible: {', '.join(WORDS)}, or a boolean for each token.",
            )
        flags = np.full(count, value == "all")
        if value == "last":
            flags[np.array(starts[1:]) - 1] = True
        return flags
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise UsageError(
            f"the mask of wanted logits has type {flags.dtype} and shape {flags.shape}; "
            f"{count} booleans are expected, one for each token"
        )
    return flags
