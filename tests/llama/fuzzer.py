"""Random calls on a context, valid or not, in a separate process: python fuzzer.py MODEL SEED CALLS."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path

import numpy as np

from pyggml.errors import PyggmlError
from pyggml.llama import LlamaContext, Model, State

ODD = (-1, 0, 1, 2, 3, 7, 255, 256, 1000, 2**31 - 1, 2**31, -(2**31), 2**63, None, True, 1.5, "1", [], [0, 1])


class Fuzzer:
    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not secret
        self.states: list[State] = []
        self.done = 0
        self.open()

    def open(self) -> None:
        pick = self.random.choice
        while True:
            options = {
                "n_ctx": pick((0, 256, 512, 1024)),
                "n_batch": pick((1, 8, 64, 2048)),
                "n_ubatch": pick((1, 7, 32, 512)),
                "n_seq_max": pick((1, 2, 4)),
                "kv_unified": pick((True, False)),
                "type_k": pick(("f16", "f32", "bf16", "q8_0")),
                "type_v": pick(("f16", "f32", "q8_0")),
                "flash_attn": pick((True, False, "auto")),
                "swa_full": pick((True, False)),
                "embeddings": pick((False, False, True)),
                "pooling": pick((None, "none", "mean", "last")),
                "causal": pick((None, None, False)),
            }
            print(options, flush=True)
            try:
                self.context = LlamaContext(self.model, threads=1, **options)
                return
            except PyggmlError:
                continue

    def number(self, most: int) -> object:
        return self.random.randrange(most) if self.random.random() < 0.9 else self.random.choice(ODD)

    def tokens(self) -> object:
        if self.random.random() < 0.03:
            return self.random.choice(([], [[1]], [1.5], None, "text", [10**6], np.zeros((2, 2), int), [-1]))
        count = self.random.choice((1, 1, 1, 2, 5, 40, 300))
        return [self.number(self.model.n_vocab) if count < 9 else 1 for _ in range(count)]

    def item(self) -> tuple[object, ...]:
        more = (self.number(60),) if self.random.random() < 0.2 else ()
        seq = self.number(self.context.n_seq_max)
        return (self.tokens(), [0, 1] if self.random.random() < 0.05 else seq, *more)

    def step(self) -> None:
        pick, context, memory = self.random.choice, self.context, self.context.memory
        seq, other = self.number(context.n_seq_max), self.number(context.n_seq_max)
        p0, p1 = self.number(50), self.number(50)
        if self.random.random() < 0.5:
            p0 = None
        if self.random.random() < 0.5:
            p1 = None
        wanted = pick(("last", "all", "none", "some", [True]))
        if self.random.random() < 0.02:
            context.close()
            self.open()
            return
        name, call = pick(
            (
                ("decode", lambda: context.decode(self.tokens(), seq, logits=wanted)),
                ("decode", lambda: context.decode(self.tokens(), seq, pos=self.number(60))),
                (
                    "decode",
                    lambda: context.decode([self.item() for _ in range(pick((1, 2, 3)))], logits=wanted),
                ),
                ("seq_rm", lambda: memory.seq_rm(seq, p0, p1)),
                ("seq_rm", lambda: memory.seq_rm(None, p0, p1)),
                ("seq_cp", lambda: memory.seq_cp(seq, other, p0, p1)),
                ("seq_keep", lambda: memory.seq_keep(seq)),
                ("seq_add", lambda: memory.seq_add(seq, pick((-60, -3, 0, 4, 2**31 - 1)), p0, p1)),
                ("seq_div", lambda: memory.seq_div(seq, pick((0, 1, 2, 2**31 - 1)), p0, p1)),
                ("clear", lambda: memory.clear(data=pick((True, False)))),
                ("save", lambda: self.states.append(context.save_state(pick((None, seq))))),
                ("restore", lambda: context.restore_state(pick(self.states), pick((None, seq)))),
                ("mangled", lambda: context.restore_state(self.mangled())),
                ("read", lambda: (context.logits(), context.perf)),
                ("read", lambda: context.embeddings()),
                ("read", lambda: context.pooled(seq)),
                ("greedy", lambda: context.greedy(self.tokens(), 3, seq)),
            )
        )
        print(name, seq, other, p0, p1, wanted, flush=True)
        try:
            call()
            self.done += 1
        except (PyggmlError, IndexError, TypeError):
            pass

    def mangled(self) -> bytes:
        blob = bytearray(bytes(self.random.choice(self.states)))
        blob[self.random.randrange(len(blob))] ^= 1 << self.random.randrange(8)
        return bytes(blob)


def main() -> None:
    logging.disable(logging.CRITICAL)
    fuzzer = Fuzzer(Model.load(Path(sys.argv[1]), devices=()), int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        fuzzer.step()
    print(f"survived; {fuzzer.done} calls did something")


if __name__ == "__main__":
    main()
