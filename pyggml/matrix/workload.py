"""What a context is given to compute: prompts, steps, and the sequences that leave and join in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyggml.errors import UsageError

Part = tuple[int, int, int]
"""Part of a batch: (sequence, first token, token after the last), as the sequence's tokens are numbered."""


@dataclass(frozen=True)
class Stage:
    """A batch of one token per sequence, or what the turnover makes of it.

    Attributes:
        step: from 1.
        leave: sequences that are removed from the cache before it.
        parts: in the order of the batch.
    """

    step: int
    leave: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Workload:
    """What a context is given to compute, the same for every configuration.

    Attributes:
        prompt: tokens of the first sequence's prompt; the others are shorter, each of another length.
        steps: tokens after it, one of each sequence in every batch.
        batch: most tokens of a batch; None for all prompts in one.
        shift: tokens that each sequence loses at its beginning after the prompt; the rest is shifted down.
        seed: of the random tokens.
        turnover: with several sequences, every few steps another one leaves, joins again with a new prompt while
            the others go on, and is then alone in a batch.
    """

    prompt: int = 32
    steps: int = 8
    batch: int | None = None
    shift: int = 0
    seed: int = 1
    turnover: bool = True

    def __post_init__(self) -> None:
        for what, value, least in (
            ("--prompt", self.prompt, 1),
            ("--steps", self.steps, 0),
            ("--shift", self.shift, 0),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise UsageError(f"{what} is {value}; it must be {least} or more")
        if self.shift and self.shift >= self.length(0):
            raise UsageError(f"--shift {self.shift} leaves nothing of a prompt of {self.prompt} tokens")
        if self.shift and not self.steps:
            raise UsageError(f"--shift {self.shift} has an effect only on later steps, and --steps is 0")

    def length(self, sequence: int) -> int:
        """Length of a sequence's prompt in tokens."""
        return 1 + (self.prompt - 1 - sequence * max(1, self.prompt // 8)) % self.prompt

    def batches(self, streams: int) -> tuple[tuple[Part, ...], ...]:
        """The batches of the prompts, as parts."""
        room = self.batch if self.batch is not None else self.tokens(streams)
        done: list[tuple[Part, ...]] = []
        now: list[Part] = []
        left = room
        for sequence in range(streams):
            at, end = 0, self.length(sequence)
            while at < end:
                part = min(left, end - at)
                now.append((sequence, at, at + part))
                at, left = at + part, left - part
                if not left:
                    done.append(tuple(now))
                    now, left = [], room
        return (*done, tuple(now)) if now else tuple(done)

    def tokens(self, streams: int) -> int:
        """Tokens of all prompts together."""
        return sum(self.length(sequence) for sequence in range(streams))

    def stages(self, streams: int) -> tuple[Stage, ...]:
        """The batches after the prompts."""
        at = [self.length(sequence) for sequence in range(streams)]
        stages = []
        for step in range(1, self.steps + 1):
            leave, counts = self._turn(step, streams) if self.turnover and streams > 1 else ((), {})
            parts = []
            for sequence in range(streams):
                count = counts.get(sequence, 1)
                if count:
                    parts.append((sequence, at[sequence], at[sequence] + count))
                    at[sequence] += count
            stages.append(Stage(step, leave, tuple(parts)))
        return tuple(stages)

    def _turn(self, step: int, streams: int) -> tuple[tuple[int, ...], dict[int, int]]:
        """The sequences that leave before a step, and the number of tokens of those that do not have one.

        A turn has four steps: all sequences; one is gone; it is back with a prompt; it is alone.
        """
        turn, phase = divmod(step - 1, 4)
        mover = (streams - 1 - turn) % streams
        if phase == 1:
            return (mover,), {mover: 0}
        if phase == 2:
            return (), {mover: self._joining(turn, streams)}
        return (), {} if phase == 0 else {other: 0 for other in range(streams) if other != mover}

    def _joining(self, turn: int, streams: int) -> int:
        """Tokens of a sequence that joins: at most a prompt, and the batch holds a token of each other one as well."""
        room = (self.batch if self.batch is not None else self.tokens(streams)) - (streams - 1)
        return max(1, min(room, self.prompt, 2 + turn + self.prompt // 3))

    def count(self, sequence: int, streams: int) -> int:
        """All tokens of a sequence."""
        ends = [end for stage in self.stages(streams) for one, _, end in stage.parts if one == sequence]
        return max(ends, default=self.length(sequence))

    def rows(self, streams: int) -> list[tuple[int, int, int]]:
        """Where each row of logits comes from: (step, sequence, token of the sequence); the prompt is step 0.

        A sequence that has left and joined again continues its numbers.
        """
        return [
            (step, sequence, token)
            for step, parts in self._batches_by_step(streams)
            for sequence, first, end in parts
            for token in range(first, end)
        ]

    def _batches_by_step(self, streams: int) -> Iterator[tuple[int, tuple[Part, ...]]]:
        yield from ((0, batch) for batch in self.batches(streams))
        yield from ((stage.step, stage.parts) for stage in self.stages(streams))
