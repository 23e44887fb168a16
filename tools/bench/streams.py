"""What a cache per stream costs in decoding, and what it costs not to unify a cache.

python tools/bench/streams.py                        SmolLM2, on the CPU and on two virtual devices
python tools/bench/streams.py --devices seen         on the devices that ggml finds, e.g. CUDA
python tools/bench/streams.py --model m.gguf --streams 4 --places cpu --runs 9 --json streams.json

In each place the same sequences, with the same cells, are in three contexts: in one tensor for all streams, in
separate tensors (kv_per_stream), and in a unified cache. They decode in turn, one token of every sequence per
batch, and then remove those tokens again. A rate is the median of the runs; a ratio is the median of the ratios of
consecutive runs, so that other work on the machine affects it less. Goals: per stream within 5 % of the one
tensor, and on the host a cache that is not unified within 2 % of a unified one.

With one stream both layouts run the same code, so the deviation of that ratio from 1 is the noise.

Without the patch per-stream-tensors its column is empty. A virtual device computes on the CPU and its transfers
are memcpys, so its times show work and bytes, not latencies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyggml.errors import PyggmlError
from pyggml.ggml import VirtualDevices
from pyggml.ggml.library import load
from pyggml.llama import LlamaContext, Model, State
from pyggml.models.packaged import get_model

PLACES = ("cpu", "layer-device", "layer-host", "tensor-device", "tensor-host")
ONE, OWN, UNIFIED = "one", "per-stream", "unified"
CACHES = {ONE: {}, OWN: {"kv_per_stream": True}, UNIFIED: {"kv_unified": True}}
OWN_GOAL, UNIFIED_GOAL = 0.95, 0.98
CELLS = 256
"""Caches are rounded up to a multiple of this (llama_context::llama_context, src/llama-context.cpp)."""

States = dict[int, State]
"""A filled sequence by the number of caches in the context; upstream only restores it if that is the same."""


@dataclass(frozen=True)
class Figure:
    """The result for one place and number of streams.

    Attributes:
        rates: median tokens per second of each cache.
        own: rate of per-stream divided by that of the one tensor; None without the patch.
        split: on the host with several streams, rate of the one tensor divided by that of a unified cache.
        own_split: the same for per-stream.
        refused: the error messages of contexts that could not be created.
    """

    place: str
    streams: int
    rates: dict[str, float]
    own: float | None
    split: float | None
    own_split: float | None
    refused: dict[str, str]


def main() -> None:
    options = parse()
    path = options.model or get_model("smollm2")
    model_of = places(path, options)
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[options.clock]
    print(
        f"{path.name}, build {load().build.record.variant}, {options.threads} threads, {options.cells} cells a "
        f"stream, median of {options.runs} runs of {options.steps} tokens a stream, {options.clock} clock"
    )
    print(
        f"{'':<15}{'streams':>8}{'one t/s':>10}{'own t/s':>10}{'unified':>10}{'own/one':>10}{'one/unif.':>11}"
        f"{'own/unif.':>11}"
    )
    figures, states = [], {}
    for place in options.places:
        with model_of(place) as model:
            for streams in options.streams:
                figure = measure(model, place, streams, states, options, clock)
                figures.append(figure)
                print(line(figure), flush=True)
    print_summary(figures)
    if options.json:
        document = {
            "model": path.name,
            "build": load().build.record.variant,
            "threads": options.threads,
            "cells": options.cells,
            "steps": options.steps,
            "runs": options.runs,
            "clock": options.clock,
            "devices": options.devices,
            "figures": [asdict(figure) for figure in figures],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def places(
    path: Path, options: argparse.Namespace
) -> Callable[[str], contextlib.AbstractContextManager[Model]]:
    """`with places(...)(place) as model`: the model there, on virtual devices or on those that ggml finds."""

    @contextlib.contextmanager
    def model_of(place: str) -> Iterator[Model]:
        if place == "cpu":
            with Model.load(path, devices=()) as model:
                yield model
            return
        mode = place.partition("-")[0]
        if options.devices == "seen":
            with Model.load(path, devices=None, split_mode=mode) as model:
                yield model
            return
        with VirtualDevices(int(options.devices), threads=options.threads) as devices:
            # It would record every transfer.
            load().lib.pyggml_vdev_ledger_enable(0)
            with Model.load(path, devices=list(devices), split_mode=mode) as model:
                yield model

    return model_of


def measure(
    model: Model,
    place: str,
    streams: int,
    states: States,
    options: argparse.Namespace,
    clock: Callable[[], float],
) -> Figure:
    """Measure all caches of one place in turn."""
    with contextlib.ExitStack() as stack:
        contexts, refused = {}, {}
        for name in (ONE, OWN, UNIFIED) if streams > 1 else (ONE, OWN):
            try:
                contexts[name] = stack.enter_context(context(model, place, streams, options, **CACHES[name]))
            except PyggmlError as error:
                if name != OWN:
                    raise
                refused[name] = error.message
        for one in contexts.values():
            fill(one, streams, options.cells, states)
        names = list(contexts)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for run in range(options.runs + 1):
            # Rotate, so that none is always first or always after the same one.
            for name in names[run % len(names) :] + names[: run % len(names)]:
                elapsed = timed(contexts[name], streams, options, clock)
                # The first run builds the graphs.
                if run:
                    seconds[name].append(elapsed)
    tokens = streams * options.steps
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}

    def ratio(a: str, b: str) -> float | None:
        """Rate of `a` divided by that of `b`."""
        if a not in seconds or b not in seconds:
            return None
        return statistics.median(y / x for x, y in zip(seconds[a], seconds[b], strict=True))

    host = place == "cpu" or place.endswith("-host")
    return Figure(
        place,
        streams,
        rates,
        ratio(OWN, ONE),
        ratio(ONE, UNIFIED) if host else None,
        ratio(OWN, UNIFIED) if host else None,
        refused,
    )


def context(
    model: Model, place: str, streams: int, options: argparse.Namespace, **cache: bool
) -> LlamaContext:
    cells = -(-(options.cells + options.steps) // CELLS) * CELLS
    return LlamaContext(
        model,
        n_ctx=cells * streams,
        n_batch=max(streams, 64),
        n_ubatch=max(streams, 64),
        n_seq_max=streams,
        offload_kqv=place.endswith("-device"),
        type_k=options.kv_type,
        type_v=options.kv_type,
        flash_attn=True,
        threads=options.threads,
        **cache,
    )


def fill(one: LlamaContext, streams: int, cells: int, states: States) -> None:
    """Put the same sequence into every stream; it is computed once for each number of caches."""
    kind = 1 if one.shared else streams
    if kind not in states:
        tokens = np.random.default_rng(1).integers(0, one.model.n_vocab, cells)
        for at in range(0, cells, one.n_batch):
            one.decode(tokens[at : at + one.n_batch], logits="none")
        states[kind] = one.save_state(0)
    for sequence in range(streams):
        one.restore_state(states[kind], sequence)


def timed(one: LlamaContext, streams: int, options: argparse.Namespace, clock: Callable[[], float]) -> float:
    """Seconds of the steps; the tokens they add are removed again."""
    batches = [[([7 + step + seq], seq) for seq in range(streams)] for step in range(options.steps)]
    start = clock()
    for batch in batches:
        one.decode(batch)
    elapsed = clock() - start
    for sequence in range(streams):
        one.memory.seq_rm(sequence, options.cells)
    return elapsed


def line(figure: Figure) -> str:
    def number(value: float | None, width: int, digits: int) -> str:
        return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"

    rates = "".join(number(figure.rates.get(name), 10, 1) for name in (ONE, OWN, UNIFIED))
    ratios = number(figure.own, 10, 3) + number(figure.split, 11, 3) + number(figure.own_split, 11, 3)
    refusals = "".join(f"  {name}: {text}" for name, text in figure.refused.items())
    return f"{figure.place:<15}{figure.streams:>8}{rates}{ratios}{refusals}"


def print_summary(figures: Sequence[Figure]) -> None:
    noise = [abs(one.own - 1) for one in figures if one.streams == 1 and one.own is not None]
    if noise:
        print(f"with one stream, where both run the same code, the ratio is off by up to {max(noise):.1%}")
    for what, goal, values in (
        ("per stream by one tensor", OWN_GOAL, [(one, one.own) for one in figures if one.streams > 1]),
        ("not unified by unified, on the host", UNIFIED_GOAL, [(one, one.split) for one in figures]),
        ("per stream by unified, on the host", UNIFIED_GOAL, [(one, one.own_split) for one in figures]),
    ):
        known = [(one, value) for one, value in values if value is not None]
        if not known:
            print(f"{what}: not measured")
            continue
        worst, least = min(known, key=lambda pair: pair[1])
        missed = sum(value < goal for _, value in known)
        print(
            f"{what}: {len(known) - missed} of {len(known)} at {goal:g} or more; "
            f"lowest {least:.3f}, {worst.place} with {worst.streams} streams"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def several(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file; SmolLM2 by default")
    parser.add_argument("--streams", type=several, default=[1, 2, 4, 8], metavar="N,...")
    parser.add_argument(
        "--places", type=lambda text: text.split(","), default=list(PLACES), metavar="PLACE,...",
        help=f"some of {', '.join(PLACES)}; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--devices",
        default="2",
        metavar="N|seen",
        help="number of virtual devices (2), or `seen`: those that ggml finds",
    )
    parser.add_argument("--kv-type", default="f16", metavar="TYPE", help="type of the cache; f16 by default")
    parser.add_argument(
        "--cells", type=int, default=240, metavar="N", help="cells of each stream; 240 by default"
    )
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="batches per run; 8 by default")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="timed runs; 5 by default")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads of the CPU and each device; 1",
    )
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: the CPU time of the process, which other work does not affect; use with 1 thread",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args()
    unknown = [place for place in options.places if place not in PLACES]
    if unknown:
        parser.error(f"there is no place {unknown[0]}; use some of {', '.join(PLACES)}")
    if min(options.streams) < 1 or max(options.streams) > 64:
        parser.error("--streams must be 1 to 64")
    if min(options.cells, options.steps, options.runs, options.threads) < 1:
        parser.error("--cells, --steps, --runs and --threads must be at least 1")
    if options.devices != "seen" and not options.devices.isdecimal():
        parser.error("--devices must be a number or: seen")
    return options


if __name__ == "__main__":
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        main()
    except PyggmlError as failure:
        sys.exit(f"streams: {failure}")
