"""256 sequences and 40 layers with a cache per stream: python many_streams.py MODEL PLACE, as a separate process.

PLACE is cpu, or layer or tensor and device or host, as in layer-host, on two virtual devices.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import numpy as np

from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model

SEQUENCES, LAYERS = 256, 40


def main(path: Path, place: str) -> None:
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {text}", flush=True)

    mode, _, where = place.partition("-")
    with contextlib.ExitStack() as stack:
        devices = [] if mode == "cpu" else list(stack.enter_context(VirtualDevices(2)))
        empty = [device.memory[0] for device in devices]
        with Model.load(path, devices=devices, split_mode="layer" if mode == "cpu" else mode) as model:
            assert model.n_layer == LAYERS
            with LlamaContext(
                model,
                n_ctx=SEQUENCES * 256,
                n_batch=SEQUENCES * 2,
                n_ubatch=SEQUENCES * 2,
                n_seq_max=SEQUENCES,
                kv_per_stream=True,
                offload_kqv=where == "device",
                flash_attn=True,
                threads=1,
            ) as context:
                say("created")
                rows = context.decode([([seq % 50, 7], seq) for seq in range(SEQUENCES)])
                assert np.isfinite(rows).all()
                say("decoded two tokens of all")
                for seq in (SEQUENCES - 1, 0, 128):
                    assert np.isfinite(context.decode([([3], seq)])).all()
                say("decoded three alone")
                for seq in (5, SEQUENCES - 1):
                    context.memory.seq_release(seq)
                rows = context.decode([([4], seq) for seq in range(0, SEQUENCES, 2)])
                assert np.isfinite(rows).all()
                assert np.isfinite(context.decode([([4], SEQUENCES - 1), ([5], 5)])).all()
                say("released two, decoded half of all, took them again")
        say("freed")
        assert [device.memory[0] for device in devices] == empty, "memory of a device is not given back"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    print("all is well")
