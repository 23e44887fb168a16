"""What it costs if a device has no 2-D transfers: strided slices in one call compared with row by row.

python tools/bench/transfers_2d.py --runs 200

The tensors are split in a compute buffer, as a graph leaves them there, on virtual devices with and without
native 2-D transfers. Calls and bytes are those in the ledger; times are medians without it, both kinds in turn.
A transfer here is a memcpy; a real device adds its latency once per call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyggml.ggml import Context, MetaDevice, SplitState, VirtualDevices, tensor_type
from pyggml.ggml.library import load


@dataclass(frozen=True)
class Transfer:
    """A strided tensor that is read or written completely.

    Attributes:
        ne, nb: shape and strides of the tensor; only the split axis has no gaps.
        axis: the axis that is split, evenly.
    """

    title: str
    kind: str
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    axis: int
    write: bool

    @property
    def span(self) -> int:
        """Bytes from the first to the last element."""
        rows = sum((length - 1) * stride for length, stride in zip(self.ne[1:], self.nb[1:], strict=True))
        return rows + tensor_type(self.kind).row_bytes(self.ne[0])

    @property
    def buffer_size(self) -> int:
        """Bytes including the gap after the last row."""
        return max(length * stride for length, stride in zip(self.ne, self.nb, strict=True))


def fused(tokens: int, size: int, heads: int, heads_kv: int) -> Transfer:
    """K as a view of the fused Q, K and V of a prompt, read back to be stored on the host."""
    head = size * 4
    row = (heads + 2 * heads_kv) * head
    shape = (size, heads_kv, tokens, 1)
    return Transfer(
        f"read K of a fused QKV, {tokens} tokens", "f32", shape, (4, head, row, row * tokens), 1, False
    )


def leaf(kind: str, size: int, heads: int, used: int, cells: int, streams: int) -> Transfer:
    """The used cells of a cache on the host, written like the scheduler does before attention."""
    head = tensor_type(kind).row_bytes(size)
    cell = heads * head
    strides = (tensor_type(kind).block_bytes, cell, head, cells * cell)
    title = f"write a {kind} cache leaf, {used} of {cells} cells, {streams} stream{'s' * (streams > 1)}"
    return Transfer(title, kind, (size, used, heads, streams), strides, 2, True)


class SplitTensor:
    """The tensor of a transfer, split over devices of one kind."""

    def __init__(self, transfer: Transfer, devices: VirtualDevices) -> None:
        bindings = load()
        ffi, lib = bindings.ffi, bindings.lib
        count = len(devices)
        state = SplitState.along(transfer.axis, [transfer.ne[transfer.axis] // count] * count)
        # Keep it: objects created on the device do not keep it alive.
        self.meta = MetaDevice(list(devices), lambda _: state, trust_upstream=True)
        self.context = Context("transfer", capacity=4)
        self.transfer, self.devices = transfer, devices
        self.buffer = ffi.gc(
            lib.ggml_backend_buft_alloc_buffer(self.meta.buffer_type.raw, transfer.buffer_size),
            lib.ggml_backend_buffer_free,
        )
        lib.ggml_backend_buffer_set_usage(self.buffer, lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE)
        self.raw = self.context.tensor(transfer.kind, transfer.ne[::-1]).raw
        # Name it like a copy by the scheduler, so that the split callback is asked.
        lib.ggml_backend_sched_format_copy_name(self.raw.name, b"Meta", b"work", 0)
        for number, stride in enumerate(transfer.nb):
            self.raw.nb[number] = stride
        base = lib.ggml_backend_buffer_get_base(self.buffer)
        assert lib.ggml_backend_tensor_alloc(self.buffer, self.raw, base) == lib.GGML_STATUS_SUCCESS
        assert lib.ggml_nbytes(self.raw) == transfer.span

    def write(self, data: np.ndarray[Any, Any]) -> None:
        bindings = load()
        bindings.lib.ggml_backend_tensor_set(self.raw, bindings.ffi.from_buffer(data), 0, self.transfer.span)

    def read(self, data: np.ndarray[Any, Any]) -> None:
        bindings = load()
        bindings.lib.ggml_backend_tensor_get(self.raw, bindings.ffi.from_buffer(data), 0, self.transfer.span)

    def run(self, data: np.ndarray[Any, Any]) -> None:
        if self.transfer.write:
            self.write(data)
        else:
            self.read(data)


@dataclass(frozen=True)
class TransferCost:
    """Calls and bytes of one run on all devices, and the median seconds."""

    calls: int
    bytes: int
    seconds: float


def measure(transfer: Transfer, devices: int, runs: int) -> tuple[TransferCost, TransferCost]:
    """The cost with native 2-D transfers, and without."""
    data = np.random.default_rng(0).integers(0, 256, transfer.span, np.uint8)
    placed, counts, contents = [], [], []
    for native in (True, False):
        with VirtualDevices(devices, native_2d=native) as vdev:
            one = SplitTensor(transfer, vdev)
            one.write(data)
            back = np.zeros_like(data)
            one.read(back)
            contents.append(back)
            vdev.clear_ledger()
            one.run(data.copy())
            moved = vdev.ledger().transfers()
            counts.append((len(moved), moved.bytes))
            placed.append(one)
    assert (contents[0] == contents[1]).all(), "the two kinds of transfers moved different bytes"
    # The devices outlive the block, and the ledger is off now.
    seconds: list[list[float]] = [[], []]
    for number in range(runs + 3):
        for one, taken in zip(placed, seconds, strict=True):
            start = time.perf_counter()
            one.run(data)
            if number >= 3:
                taken.append(time.perf_counter() - start)
    native, rows = (
        TransferCost(calls, moved, statistics.median(taken))
        for (calls, moved), taken in zip(counts, seconds, strict=True)
    )
    assert native.bytes == rows.bytes
    return native, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="timed runs; 200 by default")
    parser.add_argument("--devices", type=int, default=2, metavar="N", help="virtual devices; 2 by default")
    options = parser.parse_args()
    if options.runs < 1 or options.devices not in (1, 2, 4, 8):
        parser.error("--runs must be at least 1, --devices 1, 2, 4 or 8")
    size, heads = 32, 8
    transfers = [
        fused(512, size, 4 * heads, heads),
        leaf("f16", 64, heads, 512, 1024, 1),
        leaf("f16", 64, heads, 512, 1024, 2),
        leaf("q8_0", 64, heads, 512, 1024, 1),
        leaf("q8_0", 64, heads, 512, 1024, 2),
    ]
    print(f"{options.devices} devices, median of {options.runs} runs")
    head = f"{'':<52}{'KiB':>8}{'calls':>8}{'by row':>8}{'ratio':>8}{'us':>9}{'by row':>9}{'ratio':>8}"
    print(head)
    for transfer in transfers:
        native, rows = measure(transfer, options.devices, options.runs)
        print(
            f"{transfer.title:<52}{native.bytes / 1024:>8.0f}{native.calls:>8}{rows.calls:>8}"
            f"{rows.calls / native.calls:>8.0f}{native.seconds * 1e6:>9.1f}{rows.seconds * 1e6:>9.1f}"
            f"{rows.seconds / native.seconds:>8.2f}"
        )


if __name__ == "__main__":
    main()
