"""Random contexts and memory operations, each compared with a context that never did them.

    python memory_walk.py MODELS FIRST COUNT STEPS [WITHOUT...]

Walk number N, from FIRST on, is always the same: a model of the directory MODELS, devices, a layout, and STEPS
operations on its sequences. What every sequence then holds is known: the chunks of tokens that were decoded into it
and not removed. Another context, perhaps with its cache in the other place or in the other layout, decodes only those
chunks. Both must then compute the same bits. An operation that is refused must have changed nothing. Each walk is a
process of its own; what goes wrong is printed with its operations.

WITHOUT leaves something out: the name of an operation; `memory`, devices with little memory; `empty`, states of empty
sequences; `hybrids`, several sequences of a gated delta net that is split by tensor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import PyggmlError
from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model, State
from pyggml.llama.library import library

Chunk = tuple[int, ...]
Holds = list[list[Chunk]]
Floats = npt.NDArray[np.float32]
CELLS = 256
MOST = 120
"""Tokens of a sequence: with 4 of them a unified cache is never full, and no cell of a window is used again."""
SECONDS = 120
NO_MEMORY = "has no memory"
ONE_LAYOUT = re.compile(r"mamba")
DELTA_NET = re.compile(r"qwen3next|qwen35")
NO_TENSOR_SPLIT = re.compile(r"mamba|falcon-h1|jamba|deepseek2")


@dataclass
class Place:
    """Where and how a context computes.

    Attributes:
        memory: of each device in bytes; 0 for enough.
    """

    devices: int
    mode: str
    split: tuple[float, ...] | None
    memory: int
    schedule: str
    options: dict[str, Any]

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[LlamaContext]:
        with contextlib.ExitStack() as stack:
            names: tuple[str, ...] = ()
            if self.devices:
                more = {"memory": self.memory} if self.memory else {}
                names = stack.enter_context(
                    VirtualDevices(self.devices, schedule=self.schedule, **more)
                ).names
            model = stack.enter_context(
                Model.load(path, devices=names, split_mode=self.mode, tensor_split=self.split)
            )
            yield stack.enter_context(self.context(model))

    def context(self, model: Model) -> LlamaContext:
        return LlamaContext(model, threads=1, flash_attn=True, **self.options)


@dataclass
class Walk:
    """One walk.

    Attributes:
        holds: the chunks of each sequence.
        neighbour: another context of the same model, if there is one.
        done: what was done, in words.
    """

    random: random.Random
    path: Path
    steps: int
    without: tuple[str, ...] = ()
    place: Place = field(init=False)
    holds: Holds = field(default_factory=list)
    neighbour: LlamaContext | None = None
    saved: list[tuple[State, list[Chunk]]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        pick, chance = self.random.choice, self.random.random
        sequences = pick((1, 2, 2, 3, 4))
        unified = sequences > 1 and chance() < 0.2
        devices = pick((0, 1, 2, 2, 3, 4))
        tensor = devices and chance() < 0.7 and not NO_TENSOR_SPLIT.search(self.path.stem)
        split = tuple(pick((0, 1, 1, 2, 0.65)) for _ in range(devices)) if chance() < 0.3 else None
        if sequences > 1 and "hybrids" in self.without and DELTA_NET.search(self.path.stem):
            tensor = False
        little = pick((0, 0, 0, 0.7, 1.2, 1.6, 2.5)) if "memory" not in self.without else 0
        types = ("f16", "f16", "f32", "bf16", "q8_0")
        self.place = Place(
            devices=devices,
            mode="none" if not devices else "tensor" if tensor else "layer",
            split=split if split and sum(split) else None,
            memory=int(little * self.path.stat().st_size),
            schedule=pick(("at-once", "at-once", "late", f"random:{self.random.randrange(100)}")),
            options={
                "n_ctx": CELLS * (2 if unified else sequences),
                "n_batch": 256,
                "n_ubatch": pick((3, 32, 256)),
                "n_seq_max": sequences,
                "kv_unified": unified,
                "kv_per_stream": sequences > 1 and not unified and chance() < 0.6,
                "offload_kqv": chance() < 0.5,
                "type_k": pick(types),
                "type_v": pick(types),
                "swa_full": chance() < 0.5,
            },
        )
        self.holds = [[] for _ in range(sequences)]

    @property
    def unified(self) -> bool:
        return bool(self.place.options["kv_unified"])

    def reference(self) -> Place:
        """The same computation, with the cache elsewhere or in the other layout where there are two."""
        options = {**self.place.options, "offload_kqv": self.random.random() < 0.5}
        if options["n_seq_max"] > 1 and not self.unified and not ONE_LAYOUT.search(self.path.stem):
            options["kv_per_stream"] = self.random.random() < 0.5
        place = self.place
        return Place(place.devices, place.mode, place.split, 0, "at-once", options)

    def run(self) -> str:
        """What is wrong; nothing if all is well."""
        print(f"{self.path.stem} {self.place}", flush=True)
        try:
            with self.place.open(self.path) as context:
                for _ in range(self.steps):
                    self.step(context)
                actual = self.probe(context)
        except PyggmlError as error:
            if self.done:
                raise
            return f"refused: {error.message}"
        with self.reference().open(self.path) as context:
            for sequence, chunks in enumerate(self.holds):
                for chunk in chunks:
                    context.decode(chunk, sequence)
            expected = self.probe(context)
        for sequence, (one, other) in enumerate(zip(expected, actual, strict=True)):
            if isinstance(one, str) or isinstance(other, str):
                if other is NO_MEMORY:
                    continue
                return f"sequence {sequence} {other if isinstance(other, str) else one}"
            if not np.isfinite(other).all():
                return f"sequence {sequence}: not finite"
            if not np.array_equal(one, other) and not (self.unified and close(one, other)):
                return f"sequence {sequence}: other bits, by up to {np.abs(one - other).max():.1e}"
        return ""

    def probe(self, context: LlamaContext) -> list[Floats | str]:
        """What each sequence computes next, one token and then three."""
        found: list[Floats | str] = []
        for sequence, chunks in enumerate(self.holds):
            end = context.memory.pos_max(sequence)
            if end != sum(map(len, chunks)) - 1:
                found.append(f"ends at {end}, not at {sum(map(len, chunks)) - 1}")
                continue
            try:
                rows = [context.decode(part, sequence, logits="all") for part in ([5], [6, 7, 8])]
            except PyggmlError as error:
                if "memory" not in error.message:
                    raise
                # A sequence that was released, and there is not enough to take it again.
                found.append(NO_MEMORY)
                continue
            found.append(np.concatenate(rows))
        return found

    def step(self, context: LlamaContext) -> None:
        """Do a random operation, and note what the sequences hold afterwards."""
        name = self.random.choice(self.operations())
        sequence, other = (self.random.randrange(len(self.holds)) for _ in range(2))
        holds = [list(chunks) for chunks in self.holds]
        self.done.append(f"{name} {sequence} {other}")
        print(self.done[-1], flush=True)
        try:
            getattr(self, f"do_{name}")(context, holds, sequence, other)
        except PyggmlError as error:
            print(f"  refused: {error.message}", flush=True)
            self.refused(context, name, sequence, other)
            return
        self.holds = holds

    # Each changes `holds` to what the sequences hold if it is not refused.

    def do_decode(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        room = MOST - sum(map(len, holds[sequence]))
        tokens = self.tokens(min(room, self.random.choice((1, 1, 2, 5, 17, 40))))
        if tokens:
            context.decode(tokens, sequence)
            holds[sequence].append(tokens)

    def do_remove(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        context.memory.seq_rm(sequence)
        holds[sequence] = []

    def do_cut(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        if holds[sequence]:
            del holds[sequence][self.random.randrange(len(holds[sequence])) :]
            context.memory.seq_rm(sequence, sum(map(len, holds[sequence])))

    def do_copy(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        if other != sequence:
            context.memory.seq_rm(other)
            self.holds[other] = []
            context.memory.seq_cp(sequence, other)
            holds[other] = list(holds[sequence])

    def do_keep(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        context.memory.seq_keep(sequence)
        holds[:] = [chunks if one == sequence else [] for one, chunks in enumerate(holds)]

    def do_clear(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        context.memory.clear(data=self.random.random() < 0.5)
        holds[:] = [[] for _ in holds]

    def do_save(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        if holds[sequence] or "empty" not in self.without:
            self.saved.append((context.save_state(sequence), list(holds[sequence])))

    def do_restore(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        if self.saved:
            state, chunks = self.random.choice(self.saved)
            context.restore_state(state, sequence)
            holds[sequence] = list(chunks)

    def do_visit(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        """Sequences that hold nothing decode together, and go."""
        empty = [one for one, chunks in enumerate(holds) if not chunks]
        if len(empty) > 1:
            context.decode([(self.tokens(self.random.choice((1, 3, 9))), one) for one in empty])
            for one in empty:
                context.memory.seq_rm(one)

    def do_neighbour(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        """Another context of the same model decodes."""
        if self.neighbour is None:
            self.neighbour = self.place.context(context.model)
        self.neighbour.memory.seq_rm(sequence)
        for _ in range(3):
            self.neighbour.decode(self.tokens(1), sequence)

    def do_release(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        context.memory.seq_release(sequence)
        holds[sequence] = []

    def do_reserve(self, context: LlamaContext, holds: Holds, sequence: int, other: int) -> None:
        context.memory.seq_reserve(sequence)

    def refused(self, context: LlamaContext, name: str, sequence: int, other: int) -> None:
        """Take back what an operation of several calls has done before one was refused."""
        if name == "decode":
            # Parts of a batch that were computed before it failed stay: they may go, or only the whole sequence.
            try:
                context.memory.seq_rm(sequence, sum(map(len, self.holds[sequence])))
            except PyggmlError:
                context.memory.seq_rm(sequence)
                self.holds[sequence] = []
        elif name == "visit":
            for one, chunks in enumerate(self.holds):
                if not chunks:
                    context.memory.seq_rm(one)

    def operations(self) -> tuple[str, ...]:
        names = ["decode"] * 6 + ["remove", "cut", "cut", "clear", "save", "restore", "neighbour"]
        if len(self.holds) > 1:
            names += ["copy", "keep", "visit"]
        if self.place.options["kv_per_stream"]:
            names += ["release", "reserve"] * 2
        return tuple(name for name in names if name not in self.without)

    def tokens(self, count: int) -> Chunk:
        return tuple(self.random.randrange(100) for _ in range(count))


def close(one: Floats, other: Floats) -> bool:
    """Cells of a unified cache may be in another order, so sums are rounded otherwise."""
    return bool(np.square(one - other).sum() <= 1e-4 * np.square(one).sum())


def walk(models: list[Path], number: int, steps: int, without: tuple[str, ...], said: Path) -> int:
    """Do a walk in this process; returns its exit status."""
    descriptor = os.open(said, os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    source = random.Random(number)  # noqa: S311 - to be repeated, not secret
    try:
        wrong = Walk(source, source.choice(models), steps, without).run()
    except BaseException:
        wrong = traceback.format_exc()
    print(wrong, flush=True)
    return 0 if not wrong else 2 if wrong.startswith("refused") else 1


def main() -> None:
    models = sorted(Path(sys.argv[1]).glob("*.gguf"))
    first, count, steps = map(int, sys.argv[2:5])
    without = tuple(sys.argv[5:])
    logging.disable(logging.CRITICAL)
    library()
    refused = failed = 0
    with tempfile.NamedTemporaryFile() as file:
        for number in range(first, first + count):
            child = os.fork()
            if not child:
                import faulthandler

                faulthandler.dump_traceback_later(SECONDS, exit=True)
                os._exit(walk(models, number, steps, without, Path(file.name)))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            refused += status == 2
            if status not in (0, 2):
                failed += 1
                said = Path(file.name).read_text("utf-8", "replace")
                print(f"walk {number} of {steps} steps ended with {status}:\n{said}", flush=True)
    print(f"{count} walks of {steps} steps, {refused} refused at creation, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
