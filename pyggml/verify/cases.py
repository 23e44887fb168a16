"""What the matrix runs, and what is compared with what. Nothing here runs anything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyggml.errors import UsageError
from pyggml.verify.compare import BOUND

MAX_DEVICES = 16
"""Virtual devices, as pyggml.native.environment has them; llama.cpp takes as many (LLAMA_MAX_DEVICES)."""

KV = ("device", "host")
SPLIT_MODES = ("layer", "tensor")
FLASH_ATTENTION = ("auto", "on", "off")

Split = tuple[float, ...] | None


@dataclass(frozen=True)
class Work:
    """What a context is given to compute, the same for every configuration.

    Attributes:
        prompt: tokens of the first sequence's prompt; the others' are shorter, each by another length.
        steps: tokens that follow, one of each sequence in every batch.
        batch: most tokens of one batch; None for all of the prompts in one.
        shift: positions that each sequence loses at its beginning after the prompt, the rest moving down.
        seed: of the tokens.
    """

    prompt: int = 32
    steps: int = 8
    batch: int | None = None
    shift: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        for what, value, least in (
            ("--prompt", self.prompt, 1),
            ("--steps", self.steps, 0),
            ("--shift", self.shift, 0),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise UsageError(f"{what} is {value}; {least} or more makes sense")
        if self.shift and self.shift >= self.length(0):
            raise UsageError(f"--shift {self.shift} leaves nothing of a prompt of {self.prompt} tokens")
        if self.shift and not self.steps:
            raise UsageError(f"--shift {self.shift} is seen only by the steps after it, and there are 0")

    def length(self, sequence: int) -> int:
        """Tokens of the prompt of a sequence."""
        return 1 + (self.prompt - 1 - sequence * max(1, self.prompt // 8)) % self.prompt

    def batches(self, streams: int) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """The batches of the prompts: each a number of (sequence, first token, end)."""
        room = self.batch if self.batch is not None else self.tokens(streams)
        done: list[tuple[tuple[int, int, int], ...]] = []
        now: list[tuple[int, int, int]] = []
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

    def rows(self, streams: int) -> list[tuple[int, int, int]]:
        """Where each row of logits comes from: (step, sequence, token of the sequence); the prompt is step 0."""
        found = [
            (0, sequence, token)
            for batch in self.batches(streams)
            for sequence, first, end in batch
            for token in range(first, end)
        ]
        for step in range(1, self.steps + 1):
            found += [(step, seq, self.length(seq) + step - 1) for seq in range(streams)]
        return found


@dataclass(frozen=True)
class Run:
    """What one process does.

    Attributes:
        build: variant of the build.
        devices: virtual devices, or with `cuda` CUDA's; 0 for the CPU alone.
        split: shares of the devices; None for even ones.
        kv: where the cache is, `device` or `host`.
        kv_type: of K and V.
        streams: sequences.
    """

    build: str
    model: Path
    devices: int
    split_mode: str
    split: Split
    kv: str
    kv_type: str
    streams: int
    unified: bool
    flash_attn: str
    swa_full: bool
    poison: bool
    work: Work
    cuda: bool = False

    @property
    def name(self) -> str:
        return self.model.name.removesuffix(".gguf")

    def configuration(self) -> str:
        """In words, what is always the same left out."""
        parts = [f"{self.split_mode} {self.devices}" if self.devices else "cpu"]
        if self.split is not None:
            parts.append(":".join(f"{share:g}" for share in self.split))
        if self.devices:
            parts.append(self.kv)
        parts.append(self.kv_type)
        if self.streams > 1:
            parts.append(f"{self.streams} {'unified' if self.unified else 'streams'}")
        return " ".join(parts)


@dataclass(frozen=True)
class Case:
    """A row of the matrix: a run and what it is compared with.

    Attributes:
        cpu: the reference, within upstream's bound; None for the reference itself.
        twin: the same with the cache on the devices, bit for bit.
        judged: whether it counts; references that nobody asked for do not.
    """

    run: Run
    cpu: Run | None = None
    twin: Run | None = None
    judged: bool = True

    def elsewhere(self, build: str) -> Case:
        """The same case of another build."""

        def other(run: Run | None) -> Run | None:
            return None if run is None else replace(run, build=build)

        return Case(replace(self.run, build=build), other(self.cpu), other(self.twin), self.judged)

    def runs(self) -> tuple[Run, ...]:
        return tuple(run for run in (self.run, self.cpu, self.twin) if run is not None)


@dataclass(frozen=True)
class Grid:
    """The options of the matrix, checked.

    Attributes:
        devices: None for as many as the splits have shares, or 2.
        against: another build to set beside it.
        bound: of the NMSE against the CPU.
        cuda: on CUDA devices, one GPU as several where there are fewer; not on virtual ones.

    Raises:
        UsageError: numbers that make no sense; the message names the option.
    """

    build: str
    devices: tuple[int, ...] | None = None
    split_modes: tuple[str, ...] = ("tensor",)
    splits: tuple[tuple[float, ...], ...] = ()
    kv: tuple[str, ...] = KV
    kv_types: tuple[str, ...] = ("f16",)
    streams: tuple[int, ...] = (1,)
    unified: tuple[bool, ...] = (False,)
    flash_attn: str = "auto"
    swa_full: bool = False
    poison: bool = True
    work: Work = Work()
    against: str | None = None
    bound: float = BOUND
    cuda: bool = False

    def __post_init__(self) -> None:
        for split in self.splits:
            if any(not math.isfinite(share) or share < 0 for share in split) or sum(split) <= 0:
                told = ",".join(f"{share:g}" for share in split)
                raise UsageError(f"--tensor-split {told}: shares are 0 or more, and not all 0")
        for count in self.device_counts:
            if not 1 <= count <= MAX_DEVICES:
                raise UsageError(f"--devices {count}: 1 to {MAX_DEVICES} are possible")
            if self.splits and not any(len(split) == count for split in self.splits):
                raise UsageError(
                    f"no --tensor-split has {count} shares, for --devices {count}",
                    "Leave --devices away to get as many as there are shares.",
                )
        for split in self.splits:
            if len(split) not in self.device_counts:
                raise UsageError(
                    f"a --tensor-split has {len(split)} shares, and --devices has no {len(split)}",
                    "Leave --devices away to get as many as there are shares.",
                )
        for streams in self.streams:
            if not 1 <= streams <= 256:
                raise UsageError(f"--streams {streams}: 1 to 256 are possible")
            if self.work.batch is not None and self.work.batch < streams:
                raise UsageError(f"--batch {self.work.batch} has no room for a token of each of {streams}")
        if not self.bound >= 0:
            raise UsageError(f"--bound is {self.bound}; 0 or more makes sense")
        if self.against == self.build:
            raise UsageError(f"--against {self.against} is the build itself")

    @property
    def device_counts(self) -> tuple[int, ...]:
        if self.devices is not None:
            return self.devices
        return tuple(dict.fromkeys(len(split) for split in self.splits)) or (2,)

    def splits_for(self, count: int) -> tuple[Split, ...]:
        """The shares of that many devices: those given, else even ones."""
        return tuple(one for one in self.splits if len(one) == count) or (None,)


def expand(grid: Grid, models: Sequence[Path]) -> tuple[Case, ...]:
    """Every case of a grid, a model's together, each before those that are compared with it."""
    cases = [case for model in models for case in _of_model(grid, model)]
    return tuple(dict.fromkeys(cases))


def _of_model(grid: Grid, model: Path) -> Iterator[Case]:
    for kv_type, streams, unified in itertools.product(grid.kv_types, grid.streams, grid.unified):
        cpu = Run(
            build=grid.build,
            model=model,
            devices=0,
            split_mode="none",
            split=None,
            kv="host",
            kv_type=kv_type,
            streams=streams,
            # One sequence alone has one cache in any case.
            unified=unified and streams > 1,
            flash_attn=grid.flash_attn,
            swa_full=grid.swa_full,
            poison=grid.poison,
            work=grid.work,
        )
        yield Case(cpu)
        for mode, count in itertools.product(grid.split_modes, grid.device_counts):
            for split in grid.splits_for(count):
                twin = replace(cpu, devices=count, split_mode=mode, split=split, kv="device", cuda=grid.cuda)
                yield Case(twin, cpu=cpu, judged="device" in grid.kv)
                if "host" in grid.kv:
                    yield Case(replace(twin, kv="host"), cpu=cpu, twin=twin)
