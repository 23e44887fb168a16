"""`pyggml run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyggml.cli.common import current_project, say
from pyggml.errors import PyggmlError, UsageError

if TYPE_CHECKING:
    from pyggml.builder.record import Build
    from pyggml.clock.costs import Costs


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="All of a device's settings can also come from the environment: PYGGML_VDEV_DEVICES, _NAMES, _MEMORY, "
    "_ALIGNMENT, _MAX_BUFFER, _2D, _HOST_BUFFER, _ASYNC, _POISON, _STRICT, _THREADS, _OFFLOAD_BATCH, "
    "_SCHEDULE, _RACES, _LEDGER, _TIMELINE, _FAULT, _TRAITS. Options win.",
)
@click.option("--devices", "count", type=int, metavar="N", help="How many, 1 to 16; default 2.")
@click.option(
    "--device-memory", "memory", metavar="SIZE", help="Memory of each device, enforced; default 8G."
)
@click.option("--names", metavar="A,B", help="Names instead of VDEV0,VDEV1.")
@click.option(
    "--device-traits",
    "traits",
    metavar="TRAITS",
    help="In what devices differ: '1:memory=4G,alignment=256;*:pad=512', a device and its traits; there are memory, "
    "in-use, alignment, max-buffer, pad, 2d, async, events, and refuse=OP+OP/TYPE for what a device does not support.",
)
@click.option("--no-2d", is_flag=True, help="Devices without strided transfers: one call per row.")
@click.option("--host-buffer", is_flag=True, help="Devices with a pinned host buffer type.")
@click.option("--no-poison", is_flag=True, help="Fresh device memory is zero instead of NaN.")
@click.option(
    "--schedule",
    metavar="S",
    help="When queued work runs: at-once, late, random:SEED or threads; default at-once.",
)
@click.option("--races", is_flag=True, help="Report operations that nothing orders.")
@click.option(
    "--fault", "faults", multiple=True, metavar="F", help="Inject a fault; see below. Can be repeated."
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Record what is transferred; - prints a summary.",
)
@click.option(
    "--clock",
    metavar="PRESET|FILE",
    help="Predict times by a model: one-gpu, two-gpus, four-gpus, or a TOML file of costs (docs/clock.md).",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --clock: write what happens when, in the Chrome trace format that Perfetto reads.",
)
@click.option("--variant", metavar="NAME", help="The build; by default the active one.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    count: int | None,
    memory: str | None,
    names: str | None,
    traits: str | None,
    no_2d: bool,
    host_buffer: bool,
    no_poison: bool,
    schedule: str | None,
    races: bool,
    faults: tuple[str, ...],
    ledger: Path | None,
    clock: str | None,
    trace: Path | None,
    variant: str | None,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a program of the build on virtual devices.

    They look like GPUs, compute on the CPU, and record every transfer. The exit status is the program's, or
    128 plus the number of the signal that ended it.

    \b
    Examples:
      pyggml run --devices 4 -- test-llama-archs -s 1
      pyggml run --devices 3 --ledger moves.jsonl -- llama-bench -m M.gguf -sm tensor
      pyggml run --device-traits '1:memory=1G,refuse=FLASH_ATTN_EXT' -- llama-bench -m M.gguf
      pyggml run --clock two-gpus --trace out.json -- llama-bench -m M.gguf -p 32 -n 8
      pyggml run --fault alloc:nth=3,device=1 -- llama-bench -m M.gguf
      pyggml run --fault 'set:tensor=cache_k*,byte=4,mask=1' -- test-llama-archs
    """
    import tempfile
    from dataclasses import replace

    from pyggml.builder.record import check_instruction_set
    from pyggml.clock.costs import read_costs
    from pyggml.native.device_traits import parse_size, parse_traits
    from pyggml.native.programs import find_program
    from pyggml.native.vdev_config import devices_from_environment, program_environment
    from pyggml.native.vdev_library import find_vdev
    from pyggml.processes import run_attached, signal_name

    if trace is not None and clock is None:
        raise UsageError("--trace needs costs", "Add --clock PRESET or --clock FILE.")
    costs = None if clock is None else read_costs(clock)
    devices = devices_from_environment(
        count=count,
        memory=None if memory is None else parse_size(memory),
        names=None if names is None else tuple(names.split(",")),
        traits=None if traits is None else parse_traits(traits),
        native_2d=False if no_2d else None,
        host_buffer=True if host_buffer else None,
        poison=False if no_poison else None,
        schedule=schedule,
        races=True if races else None,
        faults=faults or None,
        ledger=ledger,
    )
    build = active(variant)
    check_instruction_set(build)
    path = find_program(build, program)
    library = find_vdev(build, say)
    file = None if ledger is None or str(ledger) == "-" else ledger
    if file is not None and (file.is_file() or not file.exists()):
        # A pipe or a device stays as it is, and a link is followed.
        try:
            file.write_bytes(b"")
        except OSError as error:
            raise PyggmlError(f"cannot write the ledger {file}: {error.strerror or error}") from error
    with tempfile.TemporaryDirectory(prefix="pyggml-run-") as scratch:
        if costs is not None:
            devices = replace(devices, timeline=Path(scratch, "timeline"))
        status = run_attached([path, *arguments], program_environment(library, devices))
        if file is not None and file.is_file():
            _summarise(file)
        if costs is not None and devices.timeline is not None:
            _predict(devices.timeline, costs, str(clock), trace)
    if status < 0:
        say(f"pyggml: {program} was ended by {signal_name(-status)}")
    sys.exit(status if status >= 0 else 128 - status)


def _predict(file: Path, costs: Costs, name: str, trace: Path | None) -> None:
    from pyggml.clock.replay import replay
    from pyggml.clock.report import report_lines
    from pyggml.clock.trace import write_trace
    from pyggml.native.timeline import Timeline

    if not file.is_file():
        say("no timeline: the program did nothing on virtual devices")
        return
    prediction = replay(Timeline.read(file), costs)
    for line in report_lines(prediction, name):
        say(line)
    if trace is not None:
        write_trace(prediction, costs, trace)
        say(f"trace in {trace}; https://ui.perfetto.dev opens it")


def active(variant: str | None) -> Build:
    """The build that a command works on: `--variant`, else the active one."""
    from pyggml.builder.record import find_build
    from pyggml.native.load import active_build

    project = current_project()
    return find_build(project, variant) if variant is not None else active_build(project.root)


def _summarise(file: Path) -> None:
    from pyggml.native.ledger import Ledger

    ledger = Ledger.read(file)
    if not ledger:
        say(f"no ledger in {file}: the program did nothing on virtual devices")
        return
    say(f"{len(ledger):,} records in {file}")
    say(ledger.summary())
