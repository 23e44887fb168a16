"""Bytes, calls and time of a split input that is a window over several streams, per byte that is read.

python tools/bench/split_inputs.py
python tools/bench/split_inputs.py --against unpatched      # before: another build instead of the flat path

A KV cache of `-c` cells on the host, divided between the sequences; a virtual device reads the window of every
sequence's first cells, K of one layer. Bytes and calls are the ledger's, of one scheduler's copy. Before is the flat
path of the same build, which inputs of the user always take, or what the other build does. Times are those of a
graph that does little besides, of the quickest run, flat and not in turn; a transfer here is a memcpy.

Both are set beside what follows from the layout. A stream has C = c / S cells, a window of n cells in S streams:

    read    S * n rows
    flat    (S - 1) * C + n rows, from the first to the last of the window (ggml_nbytes)

The window ends at the last token: after a prompt of 2,048 tokens, halfway into 256 generated ones, n is 2,176.
llama.cpp rounds it up to a multiple of 256, which is 2,048 for the one half and 2,304 for the other; both sizes are
linear in n, so the bytes of the whole have the ratio of the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyggml.errors import PyggmlError
from pyggml.ggml import Context, Scheduler, VirtualDevices, cpu, tensor_type
from pyggml.ggml.library import load

NAME = "window"


@dataclass(frozen=True)
class Work:
    """A window over K of one layer.

    Attributes:
        capacity: cells of a stream.
        used: those of them that the window has.
    """

    kind: str
    size: int
    heads: int
    streams: int
    capacity: int
    used: int

    @property
    def row(self) -> int:
        """Bytes of a cell."""
        return self.heads * tensor_type(self.kind).row_bytes(self.size)

    @property
    def read(self) -> int:
        return self.streams * self.used * self.row

    @property
    def flat(self) -> int:
        """Bytes from the first to the last."""
        return ((self.streams - 1) * self.capacity + self.used) * self.row


@dataclass(frozen=True)
class Cost:
    """Bytes and calls of one copy, and seconds of a graph that does little else: the quickest run's."""

    bytes: int
    calls: int
    seconds: float


class Placed:
    """A graph on the device that takes one element row from each head's window; its memory is the device's."""

    def __init__(self, work: Work, vdev: VirtualDevices, *, flat: bool) -> None:
        self.host, self.context = Context("cache"), Context("graph")
        shape = (work.streams, work.capacity, work.heads * work.size)
        cache = self.host.tensor(work.kind, shape, "cache")
        index = self.host.tensor("i32", (work.streams, work.heads, 1), "index")
        self.host.allocate(cpu())
        rows = np.random.default_rng(0).integers(0, 256, (*shape[:2], work.row), np.uint8)
        # Exponents of all ones would be NaN, which compares unequal.
        rows &= 0xBF
        cache.set(rows.view(np.float16) if work.kind == "f16" else rows)
        index.set(np.full(index.shape, work.used - 1, np.int32))
        head, stream = work.row // work.heads, work.capacity * work.row
        ops = self.context.ops
        view = ops.view_4d(cache, work.size, work.heads, work.used, work.streams, head, work.row, stream, 0)
        window = ops.permute(view, 0, 2, 1, 3)
        window.name = NAME
        if flat:
            # Newer trees let ggml_set_input take only a tensor without an op.
            window.raw.flags |= load().lib.GGML_TENSOR_FLAG_INPUT
        self.out = ops.get_rows(window, index).mark_output()
        self.nbytes = window.nbytes
        last = cache.dequantized()[:, work.used - 1]
        self.wanted = last.reshape(work.streams, work.heads, 1, work.size)
        self.scheduler = Scheduler([vdev[0].backend(), cpu().backend()])
        self.graph = self.context.graph(self.out)
        self.scheduler.assign(self.out, self.scheduler.backends[0])
        self.scheduler.allocate(self.graph)

    def run(self) -> float:
        start = time.perf_counter()
        self.scheduler.compute(self.graph)
        return time.perf_counter() - start


def measure(work: Work, runs: int, native: bool = True) -> tuple[Cost, Cost]:
    """On the flat path, and as the scheduler copies it by itself.

    Raises:
        PyggmlError: the window that is copied is not the one that the formulas are for, or a wrong one.
    """
    with VirtualDevices(1, native_2d=native) as vdev:
        both, counts = [], []
        for flat in (True, False):
            placed = Placed(work, vdev, flat=flat)
            vdev.clear_ledger()
            placed.run()
            moved = vdev.ledger().filter(kind=["set", "set_2d"], name=NAME)
            counts.append((moved.bytes, len(moved)))
            if placed.nbytes != work.flat:
                raise PyggmlError(f"ggml_nbytes of {work} is {placed.nbytes}, not {work.flat}")
            if not (placed.out.numpy() == placed.wanted).all():
                raise PyggmlError(f"the copy of {work} holds something else than the cache")
            both.append(placed)
    # The devices outlive their block, and no ledger is kept any more.
    taken = [[one.run() for one in both] for _ in range(runs + 3)][3:]
    quickest = [min(column) for column in zip(*taken, strict=True)]
    flat_cost, own = (Cost(*count, seconds) for count, seconds in zip(counts, quickest, strict=True))
    if flat_cost.bytes != work.flat:
        raise PyggmlError(f"the flat copy of {work} moved {flat_cost.bytes} bytes, not {work.flat}")
    return flat_cost, own


def elsewhere(build: str, works: Sequence[Work]) -> list[Cost]:
    """What another build does, measured by a process of its own.

    Raises:
        PyggmlError: it did not work there.
    """
    command = [sys.executable, __file__, "--child"]
    told = json.dumps([asdict(work) for work in works])
    done = subprocess.run(
        command, input=told, capture_output=True, text=True, env={**os.environ, "PYGGML_BUILD": build}
    )
    if done.returncode:
        raise PyggmlError(f"measuring the build {build} failed: {done.stderr.strip()[-300:]}")
    return [Cost(**one) for one in json.loads(done.stdout)]


def child() -> None:
    works = [Work(**one) for one in json.load(sys.stdin)]
    print(json.dumps([asdict(measure(work, 1)[1]) for work in works]))


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-c", type=int, default=32768, metavar="N", help="cells of all streams; 32768")
    parser.add_argument("--sequences", type=numbers, default=[2, 4, 8], metavar="LIST", help="2,4,8")
    parser.add_argument(
        "--used",
        type=numbers,
        default=[2048, 2176, 2304],
        metavar="LIST",
        help="cells of a window; 2048,2176,2304",
    )
    parser.add_argument("--type", default="f16", metavar="T", help="of the cache; f16")
    parser.add_argument("--heads", type=int, default=8, metavar="N", help="KV heads; 8")
    parser.add_argument("--head-size", type=int, default=64, metavar="N", help="64")
    parser.add_argument("--against", metavar="V", help="another build, for the columns `before`")
    parser.add_argument(
        "--no-2d", action="store_true", help="the device has no 2-D transfers: a call for each stream"
    )
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="timed runs of each; 30")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against and options.no_2d:
        parser.error("--no-2d is for this build alone, without --against")
    if options.type not in ("f16", "q8_0", "q4_0"):
        parser.error("--type is f16, q8_0 or q4_0")
    if min(options.runs, options.heads, options.head_size, *options.sequences) < 1 or options.head_size % 32:
        parser.error("--runs, --heads and --sequences are at least 1, --head-size is a multiple of 32")
    for streams in options.sequences:
        if not 1 <= min(options.used) <= max(options.used) <= options.c // streams:
            parser.error(f"with {streams} sequences a window has 1 to {options.c // streams} cells")
    return options


def main() -> None:
    options = arguments()
    if options.child:
        child()
        return
    works = [
        Work(options.type, options.head_size, options.heads, streams, options.c // streams, used)
        for used in options.used
        for streams in options.sequences
    ]
    pairs = [measure(work, options.runs, not options.no_2d) for work in works]
    befores = elsewhere(options.against, works) if options.against else [flat for flat, _ in pairs]
    before = f"the build {options.against}" if options.against else "the flat path"
    print(
        f"-c {options.c}, {options.type}, {options.heads} KV heads of {options.head_size}; before: {before}"
    )
    print(
        f"{'':>24}{'':>10}{'bytes copied / bytes read':^34}{'calls':^14}{'ms':^24}\n"
        f"{'sequences':>9}{'cells':>7}{'window':>8}{'MiB':>10}"
        f"{'before':>10}{'formula':>12}{'after':>12}{'before':>8}{'after':>6}{'flat':>9}{'after':>8}{'ratio':>7}"
    )
    for work, old, (flat, new) in zip(works, befores, pairs, strict=True):
        print(
            f"{work.streams:>9}{work.capacity:>7}{work.used:>8}{work.read / (1 << 20):>10.2f}"
            f"{old.bytes / work.read:>10.2f}{work.flat / work.read:>12.2f}{new.bytes / work.read:>12.2f}"
            f"{old.calls:>8}{new.calls:>6}{flat.seconds * 1e3:>9.2f}{new.seconds * 1e3:>8.2f}"
            f"{flat.seconds / new.seconds:>7.2f}"
        )


if __name__ == "__main__":
    try:
        main()
    except PyggmlError as error:
        sys.exit(f"split_inputs.py: {error}")
