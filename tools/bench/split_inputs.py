"""Bytes, calls and time to copy a split input that is a window over several streams, per byte that is read.

python tools/bench/split_inputs.py
python tools/bench/split_inputs.py --against unpatched      # "before" is another build, not the flat path

A KV cache of `-c` cells on the host is divided among the sequences; a virtual device reads the window of each
sequence's first cells (K of one layer). Bytes and calls are those in the ledger for one copy by the scheduler.
"Before" is the flat path of the same build, which user inputs always take, or what the other build does. Times
are those of a graph that does little else: the quickest run of each, in turn. A transfer here is a memcpy.

Both are compared with what follows from the layout. A stream has C = c / S cells; for a window of n cells in S
streams:

    read    S * n rows
    flat    (S - 1) * C + n rows, from the first to the last of the window (ggml_nbytes)

The window ends at the last token: after a prompt of 2,048 tokens, halfway through generating 256, n is 2,176.
llama.cpp rounds it up to a multiple of 256: 2,048 in the first half and 2,304 in the second. Both sizes are linear
in n, so the total bytes have the ratio at the mean.
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
class Window:
    """A window over K of one layer.

    Attributes:
        capacity: cells of a stream.
        used: cells of each stream in the window.
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
class CopyCost:
    """Bytes and calls of one copy, and the seconds of the quickest run of a graph that does little else."""

    bytes: int
    calls: int
    seconds: float


class WindowGraph:
    """A graph on the device that reads one row from each head's part of the window."""

    def __init__(self, window: Window, vdev: VirtualDevices, *, flat: bool) -> None:
        self.host, self.context = Context("cache"), Context("graph")
        shape = (window.streams, window.capacity, window.heads * window.size)
        cache = self.host.tensor(window.kind, shape, "cache")
        index = self.host.tensor("i32", (window.streams, window.heads, 1), "index")
        self.host.allocate(cpu())
        rows = np.random.default_rng(0).integers(0, 256, (*shape[:2], window.row), np.uint8)
        # Clear a bit of the exponent: all ones would be NaN, which compares unequal.
        rows &= 0xBF
        cache.set(rows.view(np.float16) if window.kind == "f16" else rows)
        index.set(np.full(index.shape, window.used - 1, np.int32))
        head, stream = window.row // window.heads, window.capacity * window.row
        ops = self.context.ops
        view = ops.view_4d(
            cache, window.size, window.heads, window.used, window.streams, head, window.row, stream, 0
        )
        permuted = ops.permute(view, 0, 2, 1, 3)
        permuted.name = NAME
        if flat:
            # In newer trees ggml_set_input only accepts tensors without an op.
            permuted.raw.flags |= load().lib.GGML_TENSOR_FLAG_INPUT
        self.out = ops.get_rows(permuted, index).mark_output()
        self.nbytes = permuted.nbytes
        last = cache.dequantized()[:, window.used - 1]
        self.expected = last.reshape(window.streams, window.heads, 1, window.size)
        self.scheduler = Scheduler([vdev[0].backend(), cpu().backend()])
        self.graph = self.context.graph(self.out)
        self.scheduler.assign(self.out, self.scheduler.backends[0])
        self.scheduler.allocate(self.graph)

    def run(self) -> float:
        start = time.perf_counter()
        self.scheduler.compute(self.graph)
        return time.perf_counter() - start


def measure(window: Window, runs: int, native: bool = True) -> tuple[CopyCost, CopyCost]:
    """The cost on the flat path, and as the scheduler copies it by default.

    Raises:
        PyggmlError: the copy is wrong, or does not match the formulas.
    """
    with VirtualDevices(1, native_2d=native) as vdev:
        graphs, counts = [], []
        for flat in (True, False):
            graph = WindowGraph(window, vdev, flat=flat)
            vdev.clear_ledger()
            graph.run()
            moved = vdev.ledger().filter(kind=["set", "set_2d"], name=NAME)
            counts.append((moved.bytes, len(moved)))
            if graph.nbytes != window.flat:
                raise PyggmlError(f"ggml_nbytes of {window} is {graph.nbytes}, not {window.flat}")
            if not (graph.out.numpy() == graph.expected).all():
                raise PyggmlError(f"the copy of {window} differs from the cache")
            graphs.append(graph)
    # The devices outlive the block, and the ledger is off now.
    times = [[graph.run() for graph in graphs] for _ in range(runs + 3)][3:]
    quickest = [min(column) for column in zip(*times, strict=True)]
    flat_cost, cost = (CopyCost(*count, seconds) for count, seconds in zip(counts, quickest, strict=True))
    if flat_cost.bytes != window.flat:
        raise PyggmlError(f"the flat copy of {window} moved {flat_cost.bytes} bytes, not {window.flat}")
    return flat_cost, cost


def measure_other_build(build: str, windows: Sequence[Window]) -> list[CopyCost]:
    """The costs with another build, measured in a child process.

    Raises:
        PyggmlError: the child failed.
    """
    command = [sys.executable, __file__, "--child"]
    job = json.dumps([asdict(window) for window in windows])
    done = subprocess.run(
        command, input=job, capture_output=True, text=True, env={**os.environ, "PYGGML_BUILD": build}
    )
    if done.returncode:
        raise PyggmlError(f"cannot measure the build {build}: {done.stderr.strip()[-300:]}")
    return [CopyCost(**one) for one in json.loads(done.stdout)]


def child() -> None:
    windows = [Window(**one) for one in json.load(sys.stdin)]
    print(json.dumps([asdict(measure(window, 1)[1]) for window in windows]))


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-c", type=int, default=32768, metavar="N", help="cells of all streams together; 32768"
    )
    parser.add_argument("--sequences", type=numbers, default=[2, 4, 8], metavar="LIST", help="2,4,8")
    parser.add_argument(
        "--used",
        type=numbers,
        default=[2048, 2176, 2304],
        metavar="LIST",
        help="cells of a stream in the window; 2048,2176,2304",
    )
    parser.add_argument("--type", default="f16", metavar="T", help="type of the cache; f16")
    parser.add_argument("--heads", type=int, default=8, metavar="N", help="number of KV heads; 8")
    parser.add_argument("--head-size", type=int, default=64, metavar="N", help="size of a head; 64")
    parser.add_argument("--against", metavar="V", help="another build, for the `before` columns")
    parser.add_argument(
        "--no-2d", action="store_true", help="use a device without 2-D transfers: one call per stream"
    )
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="timed runs; 30")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against and options.no_2d:
        parser.error("--no-2d cannot be used with --against")
    if options.type not in ("f16", "q8_0", "q4_0"):
        parser.error("--type must be f16, q8_0 or q4_0")
    if min(options.runs, options.heads, options.head_size, *options.sequences) < 1 or options.head_size % 32:
        parser.error("--runs, --heads and --sequences must be at least 1, --head-size a multiple of 32")
    for streams in options.sequences:
        if not 1 <= min(options.used) <= max(options.used) <= options.c // streams:
            parser.error(f"with {streams} sequences, --used must be 1 to {options.c // streams}")
    return options


def main() -> None:
    options = arguments()
    if options.child:
        child()
        return
    windows = [
        Window(options.type, options.head_size, options.heads, streams, options.c // streams, used)
        for used in options.used
        for streams in options.sequences
    ]
    pairs = [measure(window, options.runs, not options.no_2d) for window in windows]
    befores = (
        measure_other_build(options.against, windows) if options.against else [flat for flat, _ in pairs]
    )
    before = f"the build {options.against}" if options.against else "the flat path"
    print(
        f"-c {options.c}, {options.type}, {options.heads} KV heads of {options.head_size}; before: {before}"
    )
    print(
        f"{'':>24}{'':>10}{'bytes copied / bytes read':^34}{'calls':^14}{'ms':^24}\n"
        f"{'sequences':>9}{'cells':>7}{'window':>8}{'MiB':>10}"
        f"{'before':>10}{'formula':>12}{'after':>12}{'before':>8}{'after':>6}{'flat':>9}{'after':>8}{'ratio':>7}"
    )
    for window, old, (flat, new) in zip(windows, befores, pairs, strict=True):
        print(
            f"{window.streams:>9}{window.capacity:>7}{window.used:>8}{window.read / (1 << 20):>10.2f}"
            f"{old.bytes / window.read:>10.2f}{window.flat / window.read:>12.2f}{new.bytes / window.read:>12.2f}"
            f"{old.calls:>8}{new.calls:>6}{flat.seconds * 1e3:>9.2f}{new.seconds * 1e3:>8.2f}"
            f"{flat.seconds / new.seconds:>7.2f}"
        )


if __name__ == "__main__":
    try:
        main()
    except PyggmlError as error:
        sys.exit(f"split_inputs.py: {error}")
