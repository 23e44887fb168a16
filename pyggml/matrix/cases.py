"""What the matrix runs and what is compared with what; nothing is run here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyggml.errors import UsageError
from pyggml.matrix.compare import BOUND
from pyggml.matrix.workload import Workload
from pyggml.native.device_traits import check_traits, parse_traits

MAX_DEVICES = 16
"""Virtual devices, as pyggml.native.vdev_config has them; llama.cpp takes as many (LLAMA_MAX_DEVICES)."""

KV = ("device", "host")
SPLIT_MODES = ("layer", "tensor")
FLASH_ATTENTION = ("auto", "on", "off")
PER_STREAM = "per-stream"
AT_ONCE = "at-once"
LAYOUTS = ("one", PER_STREAM)
"""How the caches of several sequences are laid out: one tensor for all, or one each (a patch of the series)."""

Split = tuple[float, ...] | None


@dataclass(frozen=True)
class Run:
    """What one process does.

    Attributes:
        build: variant of the build.
        devices: number of virtual devices, or of CUDA devices with `cuda`; 0 for the CPU alone.
        split: share of each device; None for even ones.
        kv: where the cache is, `device` or `host`.
        kv_type: the type of K and V, or of both: `q8_0/f16`.
        streams: number of sequences.
        layout: of their caches, one of LAYOUTS.
        schedule: when queued work of virtual devices runs (pyggml.native.vdev_config).
        races: look for operations of virtual devices that nothing orders.
        traits: in what virtual devices differ, as text (pyggml.native.device_traits).
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
    layout: str
    flash_attn: str
    swa_full: bool
    poison: bool
    work: Workload
    cuda: bool = False
    schedule: str = AT_ONCE
    races: bool = False
    traits: str = ""

    @property
    def name(self) -> str:
        return self.model.name.removesuffix(".gguf")

    @property
    def kv_types(self) -> tuple[str, str]:
        """The types of K and of V."""
        k, _, v = self.kv_type.partition("/")
        return k, v or k

    def configuration(self) -> str:
        """The configuration in words, without what is always the same."""
        parts = [f"{self.split_mode} {self.devices}" if self.devices else "cpu"]
        if self.split is not None:
            parts.append(":".join(f"{share:g}" for share in self.split))
        if self.devices:
            parts.append(self.kv)
        parts.append(self.kv_type)
        if self.layout == PER_STREAM:
            parts.append(f"{self.streams} {PER_STREAM}")
        elif self.streams > 1:
            parts.append(f"{self.streams} {'unified' if self.unified else 'streams'}")
        if self.work.shift:
            parts.append(f"shift {self.work.shift}")
        if self.schedule != AT_ONCE:
            parts.append(self.schedule)
        if self.traits:
            parts.append(f"[{self.traits}]")
        return " ".join(parts)


@dataclass(frozen=True)
class Case:
    """A row of the matrix: a run and what it is compared with.

    Attributes:
        cpu: the reference, compared by upstream's bound; None for the reference itself.
        twin: the same run with the cache on the devices, compared bit for bit.
        judged: whether the row counts; references that were not asked for do not.
        one: the same run with one tensor for all sequences, compared bit for bit.
        at_once: the same run in which all work is done at once, compared bit for bit.
    """

    run: Run
    cpu: Run | None = None
    twin: Run | None = None
    judged: bool = True
    one: Run | None = None
    at_once: Run | None = None

    def elsewhere(self, build: str) -> Case:
        """The same case with another build, in the layout that every build has."""

        def other(run: Run | None) -> Run | None:
            return None if run is None else replace(run, build=build, layout=LAYOUTS[0])

        run = replace(self.run, build=build, layout=LAYOUTS[0])
        cpu = other(self.cpu)
        return Case(
            run, None if cpu == run else cpu, other(self.twin), self.judged, at_once=other(self.at_once)
        )

    def runs(self) -> tuple[Run, ...]:
        runs = (self.run, self.cpu, self.twin, self.one, self.at_once)
        return tuple(run for run in runs if run is not None)


@dataclass(frozen=True)
class Grid:
    """The options of the matrix, checked.

    Attributes:
        devices: None for as many as the splits have shares, or 2.
        against: another build to compare with.
        bound: largest NMSE against the CPU.
        cuda: use CUDA devices instead of virtual ones; a GPU is divided where there are too few.
        schedules: each is compared bit for bit with at-once, which always runs and counts only if it is among them.
        races: look for operations that nothing orders; a row that has some is bad.
        traits: in what virtual devices differ; each text is a row of its own. Empty for devices that are all equal.

    Raises:
        UsageError: options that do not go together; the message names the option.
    """

    build: str
    devices: tuple[int, ...] | None = None
    split_modes: tuple[str, ...] = ("tensor",)
    splits: tuple[tuple[float, ...], ...] = ()
    kv: tuple[str, ...] = KV
    kv_types: tuple[str, ...] = ("f16",)
    streams: tuple[int, ...] = (1,)
    unified: tuple[bool, ...] = (False,)
    layouts: tuple[str, ...] = ("one",)
    flash_attn: str = "on"
    swa_full: bool = False
    poison: bool = True
    work: Workload = field(default_factory=Workload)
    against: str | None = None
    bound: float = BOUND
    cuda: bool = False
    schedules: tuple[str, ...] = (AT_ONCE,)
    races: bool = False
    traits: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        for split in self.splits:
            if any(not math.isfinite(share) or share < 0 for share in split) or sum(split) <= 0:
                shares = ",".join(f"{share:g}" for share in split)
                raise UsageError(f"--tensor-split {shares}: shares must be 0 or more, and not all 0")
        for count in self.device_counts:
            if not 1 <= count <= MAX_DEVICES:
                raise UsageError(f"--devices {count}: it must be 1 to {MAX_DEVICES}")
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
                raise UsageError(f"--streams {streams}: it must be 1 to 256")
            if self.work.batch is not None and self.work.batch < streams:
                raise UsageError(
                    f"--batch {self.work.batch} has no room for a token of each of {streams} sequences"
                )
        if not self.combinations:
            raise UsageError(
                "a unified cache has one stream and cannot be laid out per stream",
                "Add --unified no, or leave --layout away.",
            )
        if not self.bound >= 0:
            raise UsageError(f"--bound is {self.bound}; it must be 0 or more")
        for text in self.traits:
            for count in self.device_counts:
                check_traits(parse_traits(text), count)
        if self.cuda and (self.schedules != (AT_ONCE,) or self.races or any(self.traits)):
            option = "--races" if self.races else "--device-traits" if any(self.traits) else "--schedule"
            raise UsageError(f"{option} is of virtual devices", f"Leave --cuda or {option} away.")
        if self.against == self.build:
            raise UsageError(f"--against {self.against} is the same build")

    @property
    def device_counts(self) -> tuple[int, ...]:
        if self.devices is not None:
            return self.devices
        return tuple(dict.fromkeys(len(split) for split in self.splits)) or (2,)

    @property
    def combinations(self) -> tuple[tuple[int, bool, str], ...]:
        """The kinds of cache to run, as (streams, unified, layout); references first."""
        kinds = {
            # One sequence alone has one cache in any case.
            (streams, unified and streams > 1, layout): None
            for streams, unified, layout in itertools.product(self.streams, self.unified, self._layouts)
        }
        return tuple(one for one in kinds if not (one[1] and one[2] == PER_STREAM))

    @property
    def left_out(self) -> tuple[int, ...]:
        """Numbers of sequences for which a unified cache per stream was asked, which there cannot be."""
        if PER_STREAM not in self.layouts or True not in self.unified:
            return ()
        return tuple(streams for streams in self.streams if streams > 1)

    @property
    def _layouts(self) -> tuple[str, ...]:
        return tuple(layout for layout in LAYOUTS if layout in self.layouts)

    def splits_for(self, count: int) -> tuple[Split, ...]:
        """The splits for a number of devices: those given, or one of even shares."""
        return tuple(one for one in self.splits if len(one) == count) or (None,)


def expand(grids: Grid | Sequence[Grid], models: Sequence[Path]) -> tuple[Case, ...]:
    """Every case of one or several grids, model by model, each before those that are compared with it."""
    cases = [
        one
        for model in models
        for grid in ([grids] if isinstance(grids, Grid) else grids)
        for case in _of_model(grid, model)
        for one in _scheduled(grid, case)
    ]
    return tuple(dict.fromkeys(cases))


ZOO_BOUND = 1e-3
"""Of the zoo instead of upstream's: with a hundred experts, or a cache of 5 bits, rounding alone comes near 3e-4."""


def zoo_grids(base: Grid) -> tuple[Grid, ...]:
    """What the zoo runs unless it is told otherwise: not all combinations, but each axis at length.

    Numbers of devices; shares; types of the cache, mixed ones as well; several sequences; K-shift.
    """
    types = ("f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
    mixed = ("q8_0/f16", "f16/q4_0", "q8_0/q5_1", "f32/f16")
    uneven = (41.0, 29.0, 30.0)
    return (
        replace(base, devices=(2, 3, 4, 6, 8)),
        replace(base, splits=((1.0, 1.0, 1.0), uneven, (4.0, 1.0), (0.2, 0.65, 0.15), (1.0, 0.0))),
        replace(base, splits=(uneven,), kv_types=(*types, *mixed)),
        replace(base, streams=(2,), unified=(True, False), layouts=LAYOUTS),
        replace(base, devices=(3,), kv_types=("f16", "q8_0"), work=replace(base.work, shift=5)),
    )


def _scheduled(grid: Grid, case: Case) -> Iterator[Case]:
    """The case at once, and in each of the other schedules."""
    if not case.run.devices:
        yield case
        return
    yield replace(case, judged=case.judged and AT_ONCE in grid.schedules)
    for schedule in grid.schedules:
        if schedule != AT_ONCE and case.judged:
            yield Case(replace(case.run, schedule=schedule), cpu=case.cpu, at_once=case.run)


def _of_model(grid: Grid, model: Path) -> Iterator[Case]:
    for kv_type, (streams, unified, layout) in itertools.product(grid.kv_types, grid.combinations):
        plain = Run(
            build=grid.build,
            model=model,
            devices=0,
            split_mode="none",
            split=None,
            kv="host",
            kv_type=kv_type,
            streams=streams,
            unified=unified,
            layout=LAYOUTS[0],
            flash_attn=grid.flash_attn,
            swa_full=grid.swa_full,
            poison=grid.poison,
            work=grid.work,
        )
        asked = LAYOUTS[0] in grid.layouts
        yield Case(plain, judged=asked or layout == LAYOUTS[0])
        cases = [
            case
            for mode, count in itertools.product(grid.split_modes, grid.device_counts)
            for split in grid.splits_for(count)
            for traits in grid.traits
            for case in _of_split(
                grid,
                plain,
                replace(
                    plain,
                    devices=count,
                    split_mode=mode,
                    split=split,
                    cuda=grid.cuda,
                    races=grid.races,
                    traits=traits,
                ),
            )
        ]
        if layout == LAYOUTS[0]:
            yield from cases
            continue
        yield _laid_out(Case(plain, cpu=plain))
        for case in cases:
            yield replace(case, judged=asked and case.judged)
            yield _laid_out(case)


def _of_split(grid: Grid, cpu: Run, run: Run) -> Iterator[Case]:
    twin = replace(run, kv="device")
    yield Case(twin, cpu=cpu, judged="device" in grid.kv)
    if "host" in grid.kv:
        yield Case(replace(run, kv="host"), cpu=cpu, twin=twin)


def _laid_out(case: Case) -> Case:
    """The case with a tensor for each sequence, compared with one tensor for all."""
    twin = None if case.twin is None else replace(case.twin, layout=PER_STREAM)
    return replace(case, run=replace(case.run, layout=PER_STREAM), twin=twin, one=case.run)
