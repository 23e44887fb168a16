"""What the process of one run does: load a model in a configuration, decode its prompts and steps, keep all logits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyggml.llama import LlamaContext, Model
from pyggml.matrix.cases import LAYOUTS, PER_STREAM, Run
from pyggml.matrix.compare import nmse
from pyggml.native.cuda import open_cuda
from pyggml.native.device_traits import parse_traits
from pyggml.native.races import read_races
from pyggml.native.vdev_config import VirtualDeviceConfig, install_devices

if TYPE_CHECKING:
    from pyggml.native.load import Bindings

Floats = npt.NDArray[np.float32]
Phase = Callable[[str], None]
_MOST_RACES = 100
_CELLS = 256
"""Caches are rounded up to it (llama_context::llama_context, src/llama-context.cpp)."""


def compute_logits(bindings: Bindings, run: Run, out: Path, phase: Phase) -> dict[str, Any]:
    """Compute a run and write its logits to `out` (.npy), rows as Workload.rows has them.

    Args:
        phase: called with what begins, so that a run that does not end says where it was.

    Returns:
        About the model: `architecture`, `kv_heads` (of its first layer), and on the CPU `sensitivity`: the NMSE by
        which the logits of a prompt's last token change when all tokens before it change. With `races` also
        `races`: those found, as dictionaries (pyggml.native.races.Race), at most 100.

    Raises:
        PyggmlError: llama.cpp refuses the model or the configuration.
    """
    devices: tuple[str, ...] = ()
    if run.devices:
        devices = make_devices(bindings, run)
    phase("loading the model")
    model = Model.load(run.model, devices=devices, split_mode=run.split_mode, tensor_split=run.split)
    with model:
        phase("making the context")
        with _context(model, run) as context:
            logits = _compute(context, run, phase)
        about = {"architecture": model.architecture, "kv_heads": model.n_head_kv, "sensitivity": None}
        if run.races:
            about["races"] = [asdict(race) for race in read_races(bindings)[:_MOST_RACES]]
        phase("writing the logits")
        np.save(out, logits)
        if not run.devices and run.layout == LAYOUTS[0] and run.work.prompt > 1 and not model.has_encoder:
            phase("looking whether earlier tokens matter")
            with _context(model, run) as context:
                about["sensitivity"] = _sensitivity(context, run, logits[run.work.length(0) - 1])
    return about


def make_devices(bindings: Bindings, run: Run) -> tuple[str, ...]:
    """Make the devices of a run in this process; returns their names."""
    if run.cuda:
        return open_cuda(run.devices, bindings)
    config = VirtualDeviceConfig(
        run.devices,
        traits=parse_traits(run.traits),
        poison=run.poison,
        schedule=run.schedule,
        races=run.races,
    )
    install_devices(bindings, config, ledger=False)
    return tuple(f"VDEV{index}" for index in range(run.devices))


def _context(model: Model, run: Run) -> LlamaContext:
    work = run.work
    longest = work.length(0) + work.steps
    cells = -(-longest // _CELLS) * _CELLS * run.streams
    batch = work.batch if work.batch is not None else work.tokens(run.streams)
    type_k, type_v = run.kv_types
    return LlamaContext(
        model,
        n_ctx=cells,
        n_batch=batch,
        n_ubatch=batch,
        n_seq_max=run.streams,
        kv_unified=run.unified,
        kv_per_stream=run.layout == PER_STREAM,
        offload_kqv=run.kv == "device",
        type_k=type_k,
        type_v=type_v,
        flash_attn=run.flash_attn if run.flash_attn == "auto" else run.flash_attn == "on",
        swa_full=run.swa_full,
        threads=1,
    )


def _compute(context: LlamaContext, run: Run, phase: Phase) -> Floats:
    work, streams = run.work, range(run.streams)
    tokens = [_tokens(context, run, seq) for seq in streams]
    batches = work.batches(run.streams)
    logits = []
    if context.model.has_encoder:
        phase("encoding")
        context.encode([(tokens[seq][first:end], seq) for seq, first, end in batches[0]])
    for number, batch in enumerate(batches, 1):
        phase(f"prompt, batch {number} of {len(batches)}")
        logits.append(
            context.decode([(tokens[seq][first:end], seq) for seq, first, end in batch], logits="all")
        )
    if work.shift:
        phase("shifting")
        for seq in streams:
            gone = min(work.shift, work.length(seq) - 1)
            if gone:
                context.memory.seq_rm(seq, 0, gone)
                context.memory.seq_add(seq, -gone)
    for stage in work.stages(run.streams):
        phase(f"step {stage.step} of {work.steps}")
        for seq in stage.leave:
            context.memory.seq_rm(seq)
        items = [(tokens[seq][first:end], seq) for seq, first, end in stage.parts]
        logits.append(context.decode(items, logits="all"))
    return np.concatenate(logits)


def _tokens(context: LlamaContext, run: Run, seq: int) -> npt.NDArray[np.int64]:
    count = run.work.count(seq, run.streams)
    return np.random.default_rng([run.work.seed, seq]).integers(0, context.model.n_vocab, count)


def _sensitivity(context: LlamaContext, run: Run, last: Floats) -> float:
    tokens = _tokens(context, run, 0)[: run.work.length(0)]
    tokens[:-1] = (tokens[:-1] + 1) % context.model.n_vocab
    parts = [tokens[at : at + context.n_batch] for at in range(0, len(tokens), context.n_batch)]
    changed = [context.decode(part)[-1] for part in parts][-1]
    return nmse(last, changed)


def to_job(run: Run, out: Path, said: Path, timeout: float) -> bytes:
    """A run as a line for the process that starts the runs."""
    document = {**asdict(run), "model": os.fsencode(run.model).hex()}
    places = {"out": os.fsencode(out).hex(), "said": os.fsencode(said).hex(), "timeout": timeout}
    return json.dumps({"run": document, **places}).encode() + b"\n"


def from_job(line: bytes) -> tuple[Run, Path, Path, float]:
    """Read what to_job wrote."""
    from pyggml.matrix.workload import Workload

    job = json.loads(line)
    values = job["run"]
    values["model"] = _path(values["model"])
    values["work"] = Workload(**values["work"])
    values["split"] = None if values["split"] is None else tuple(values["split"])
    return Run(**values), _path(job["out"]), _path(job["said"]), float(job["timeout"])


def _path(text: str) -> Path:
    return Path(os.fsdecode(bytes.fromhex(text)))
