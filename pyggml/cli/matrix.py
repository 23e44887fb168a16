"""`pyggml matrix`."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyggml.cli.common import current_project, interactive, say
from pyggml.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from pyggml.builder.record import Build
    from pyggml.matrix.expectations import Expectations
    from pyggml.matrix.run import MatrixProgress

    _Type = click.ParamType[tuple[Any, ...]]
else:
    # Generic at run time only from click 8.4 on.
    _Type = click.ParamType

_Command = TypeVar("_Command", bound=Callable[..., Any])

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_AXES = (
    "devices", "modes", "splits", "kv", "kv_types", "streams", "unified", "layouts", "schedules", "shift",
)  # fmt: skip
"""Options that, with --zoo, ask for all their combinations."""
_SPARSE_SECONDS = 2.0
_WIDEST = 2000
_MATTERS = ("GGML_", "CMAKE_BUILD_TYPE", "CMAKE_C_", "CMAKE_CXX_")
_KV = {"device": ("device",), "host": ("host",), "both": ("device", "host")}


class Several(_Type):
    """Values separated by commas, each checked and converted."""

    def __init__(self, name: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._convert = convert

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            values = tuple(self._convert(part.strip()) for part in str(value).split(","))
        except KeyError as error:
            self.fail(f"{error.args[0]!r} is unknown; {error.args[1]}", param, ctx)
        except ValueError:
            self.fail(f"{value!r} is not a list such as {self.name}", param, ctx)
        return tuple(dict.fromkeys(values))


class Shares(_Type):
    """Shares of the devices; unlike Several, equal ones are kept."""

    name = "55,45"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            splits = str(value).split(":")
            return tuple(tuple(float(share) for share in split.split(",")) for split in splits)
        except ValueError:
            self.fail(f"{value!r} is not a list of shares such as {self.name}", param, ctx)


def _one_of(*known: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known:
            raise KeyError(text, f"there are: {', '.join(known)}")
        return text

    return convert


def _cache_type(text: str) -> str:
    check = _one_of(*_CACHE_TYPES)
    k, slash, v = text.partition("/")
    return f"{check(k)}/{check(v)}" if slash and k != v else check(k)


def _schedule(text: str) -> str:
    from pyggml.native.vdev_config import check_schedule

    return check_schedule(text)


def _yes(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


def _several(
    *names: str,
    example: str,
    convert: Callable[[str], Any],
    metavar: str,
    help: str,
    default: str | None = None,
) -> Callable[[_Command], _Command]:
    """An option of values separated by commas; a case is made of each of them."""
    return click.option(
        *names,
        type=Several(example, convert),
        metavar=metavar,
        default=default,
        show_default=default is not None,
        help=help,
    )


@click.command(
    epilog="Verdicts, the worst first: died (a signal or a failed assertion), hung, failed, NaN, differs (bits "
    "that should be the same), unordered (bits that depend on the schedule), race (operations that nothing orders), "
    "over (the bound of upstream's test, --bound, against the CPU), refused (a kind of cache that cannot be laid out "
    "per stream; creating the context says so), unsupported (by the model or the build), fixed (did not work in the "
    "other build), identical, within (the bound). Exit code 1 if any row has one of the first eight and is not "
    "expected to, or is expected to and does not."
)
@click.option(
    "--arch", metavar="REGEX", help="Upstream's tiny models of these architectures; by default of all."
)
@click.option(
    "--model",
    "files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Use this GGUF file instead, or all files in a directory; can be repeated.",
)
@click.option(
    "--zoo",
    is_flag=True,
    help="Models with the heads, sizes and experts of published ones instead (see pyggml/models/zoo.toml), and unless "
    "other options ask for combinations: 2 to 8 devices, uneven shares, all types of caches, several sequences and "
    "K-shift. --arch chooses among their names as well.",
)
@click.option(
    "--weights",
    type=click.Choice(["lively", "upstream"]),
    default="lively",
    show_default=True,
    help="Weights of the tiny models: scaled so that every token depends on those before it, or as upstream writes "
    "them (most models then barely depend on their cache).",
)
@_several(
    "--devices",
    example="1,2,4",
    convert=int,
    metavar="N,...",
    help="Numbers of virtual devices, 1 to 16; default 2.",
)
@click.option(
    "--cuda",
    is_flag=True,
    help="Use CUDA devices instead of virtual ones, with a build made with --cuda; a GPU is divided into several where "
    "there are too few.",
)
@_several(
    "--split-mode",
    "modes",
    example="layer,tensor",
    convert=_one_of("layer", "tensor"),
    metavar="layer,tensor",
    default="tensor",
    help="How the weights are split over the devices.",
)
@click.option(
    "--tensor-split",
    "splits",
    type=Shares(),
    multiple=True,
    help="Each device's share instead of even ones; can be repeated, or several splits separated by colons.",
)
@click.option(
    "--kv",
    type=click.Choice(list(_KV)),
    default="both",
    show_default=True,
    help="Where the cache is: on the devices, compared with the CPU, or on the host, compared with the devices.",
)
@_several(
    "--kv-type",
    "kv_types",
    example="f16,q8_0",
    convert=_cache_type,
    metavar="TYPE,...",
    default="f16",
    help="Type of the cache, K and V; q8_0/f16 for two types.",
)
@_several(
    "--streams",
    example="1,2,4",
    convert=int,
    metavar="N,...",
    default="1",
    help="Numbers of sequences, each with a prompt of its own, of another length.",
)
@_several(
    "--unified",
    example="yes,no",
    convert=_yes,
    metavar="yes,no",
    default="no",
    help="One cache for all sequences, or one for each.",
)
@_several(
    "--layout",
    "layouts",
    example="one,per-stream",
    convert=_one_of("one", "per-stream"),
    metavar="one,per-stream",
    default="one",
    help="Of caches that are not unified: one tensor for all sequences, or tensors for each (kv_per_stream), which "
    "must give the same bits. A unified cache has one stream and only the layout `one`.",
)
@_several(
    "--schedule",
    "schedules",
    example="at-once,late",
    convert=_schedule,
    metavar="at-once,late,random:SEED,threads",
    default="at-once",
    help="When queued work of the virtual devices runs: before the call returns, only when something waits for it, at "
    "any time between, or in threads. Each is compared with at-once, bit for bit. Options follow after a slash: "
    "late/copies=both.",
)
@click.option(
    "--races", is_flag=True, help="Look for queued operations that nothing orders, in any schedule."
)
@click.option(
    "--device-traits",
    "traits",
    multiple=True,
    metavar="TRAITS",
    help="In what the virtual devices differ: '1:memory=4G,pad=512;*:2d=off', a device and its traits (see "
    "pyggml run). Can be repeated: each is a row of its own; '' is a row of equal devices.",
)
@click.option(
    "--turnover/--no-turnover",
    default=True,
    help="With several sequences: one after another leaves, joins again with another prompt, and is alone in a batch; "
    "the default.",
)
@click.option(
    "--flash-attn",
    type=click.Choice(["auto", "on", "off"]),
    default="on",
    show_default=True,
    help="Flash attention; a tensor split needs it. With auto llama.cpp turns it off for hybrid models that "
    "are split by layer with the cache on the host, so host and device do not compute the same sums.",
)
@click.option("--swa-full", is_flag=True, help="Full-size caches for layers with a sliding window.")
@click.option(
    "--prompt", type=int, default=32, show_default=True, help="Length of the longest prompt in tokens."
)
@click.option("--steps", type=int, default=8, show_default=True, help="Steps of a single token after it.")
@click.option("--batch", type=int, help="Most tokens of a batch; by default all prompts are one.")
@click.option(
    "--shift", type=int, default=0, help="After the prompt, drop its first N tokens and shift the rest."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random tokens.")
@click.option(
    "--poison/--no-poison",
    default=True,
    help="Fill fresh device memory with NaN, so that reading it shows; the default.",
)
@click.option(
    "--bound",
    type=float,
    help="Largest NMSE against the CPU; by default upstream's, 1e-4, and with --zoo 1e-3. Real quantised models may "
    "need more.",
)
@click.option(
    "--expect",
    type=click.Choice(["use", "ignore", "write"]),
    default="use",
    show_default=True,
    help="What is known not to be right, with reasons, is in patches/PIN/matrix.toml: take it into account, or do not, "
    "or write what this matrix finds into the file, for you to review. It is about upstream's tiny models on the whole "
    "series; files given with --model have to be right.",
)
@click.option("--variant", metavar="V", help="The build; by default the active one.")
@click.option(
    "--against", metavar="V", help="Another build, normally the unpatched one, to be equal to bit for bit."
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; by default one for each processor.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    help="Time limit of a run, in seconds.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Write every row to this file, for programs; - for standard output.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a heat map: one page that needs no other file.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --html: mark what changed since the run that wrote this file with --json.",
)
@click.option("--all", "everything", is_flag=True, help="List the good rows as well.")
def matrix(
    arch: str | None,
    files: tuple[Path, ...],
    zoo: bool,
    variant: str | None,
    against: str | None,
    jobs: int | None,
    timeout: float,
    json_file: Path | None,
    html: Path | None,
    since: Path | None,
    everything: bool,
    weights: str,
    kv: str,
    modes: tuple[str, ...],
    splits: tuple[tuple[tuple[float, ...], ...], ...],
    prompt: int,
    steps: int,
    batch: int | None,
    shift: int,
    seed: int,
    turnover: bool,
    expect: str,
    bound: float | None,
    traits: tuple[str, ...],
    **grid_options: Any,
) -> None:
    """Compare every architecture on virtual devices with the CPU, and host caches with device caches.

    For each model: the CPU as the reference; the model split over the devices with the cache there, within
    the bound of upstream's test of it; and with the cache on the host, which must give the same bits. Each
    run is a process of its own: one that dies is a row, with the assertion that killed it. With --layout, a
    cache per stream must give the same bits as one tensor for all streams in the same place; --against
    compares both with the one tensor of the other build.

    Rows that are known not to be right are in patches/PIN/matrix.toml with their reasons. They do not count
    as long as they are as known; one that has become right does.

    \b
    Examples:
      pyggml matrix                                       all architectures, 2 devices, both caches
      pyggml matrix --devices 1,3,4,8 --kv-type f16,q8_0
      pyggml matrix --arch '^gemma' --tensor-split 55,45 --streams 1,2,4 --unified yes,no
      pyggml matrix --split-mode layer,tensor --kv device --against unpatched
      pyggml matrix --streams 1,2,4,8 --layout one,per-stream --split-mode layer,tensor
      pyggml matrix --model m.gguf --prompt 200 --batch 64 --steps 32 --json -
      pyggml matrix --html map.html --since old.json      a page; old.json is an earlier run's --json
      pyggml matrix --schedule at-once,late,random:1      does the order of queued work change bits?
      pyggml matrix --zoo                                 the heads and sizes of published models
      pyggml matrix --device-traits '' --device-traits '1:pad=512,alignment=512,2d=off'
      pyggml matrix --cuda --devices 2,4,8 --arch llama   on GPUs; of a build made with --cuda
    """
    import os

    from pyggml.files import write_atomic
    from pyggml.matrix.cases import ZOO_BOUND, Grid, zoo_grids
    from pyggml.matrix.compare import BOUND
    from pyggml.matrix.report import document, exit_code, print_result, summary
    from pyggml.matrix.run import run_matrix
    from pyggml.matrix.workload import Workload
    from pyggml.models.zoo import zoo as zoo_table

    if zoo and (files or weights != "lively"):
        raise UsageError(
            f"--zoo and {'--model' if files else '--weights'} exclude each other",
            "The models of the zoo are made, with lively weights.",
        )
    if arch is not None and files:
        raise UsageError(
            "--arch and --model exclude each other", "--arch chooses among upstream's tiny models."
        )
    if since is not None and html is None:
        raise UsageError(
            "--since marks changes on the page of --html", "Example: --html new.html --since old.json"
        )
    before = None if since is None else _read_json(since)
    if files and expect == "write":
        raise UsageError(
            "--expect write and --model exclude each other",
            "Expected verdicts are about upstream's tiny models.",
        )
    work = Workload(prompt, steps, batch, shift, seed, turnover)
    build, other = _builds(variant, against, grid_options["cuda"])
    grid = Grid(
        build=_name(build),
        split_modes=modes,
        splits=tuple(dict.fromkeys(split for several in splits for split in several)),
        kv=_KV[kv],
        work=work,
        against=None if other is None else _name(other),
        bound=bound if bound is not None else ZOO_BOUND if zoo else BOUND,
        traits=tuple(dict.fromkeys(traits)) or ("",),
        **grid_options,
    )
    if grid.cuda:
        _check_cuda([one for one in (build, other) if one is not None])
    if other is not None:
        _warn(build, other)
    known = _expectations(build, weights, grid.bound)
    models = _files(files) if files else _zoo(build, arch) if zoo else _tiny(build, arch, weights == "lively")
    if arch is None and not files and not zoo:
        known.check_models([*(model.stem for model in models), *(model.name for model in zoo_table())])
    ask = (lambda run: None) if files or expect == "ignore" else known.of
    builds = {_name(one): one for one in (build, other) if one is not None}
    with _shown() as report:
        jobs = jobs or len(os.sched_getaffinity(0))
        parts = zoo_grids(grid) if zoo and not _asked_for_combinations() else ()
        result = run_matrix(grid, models, builds, jobs, timeout, report, ask, parts)
    to_stdout = str(json_file) == "-"
    _print(lambda console: print_result(result, console, everything), to_stderr=to_stdout)
    click.echo(summary(result), err=to_stdout)
    if json_file is not None:
        _write_json(document(result), None if to_stdout else json_file)
    if html is not None:
        from pyggml.files import write_output
        from pyggml.pages.matrix import matrix_page

        write_output(html, matrix_page(document(result), before))
        say(f"wrote {html}")
    if expect == "write":
        write_atomic(known.path, known.after(result.records).text())
        say(f"{known.path} is written: see what changed, and explain the reasons that are not")
    sys.exit(exit_code(result.records))


def _expectations(build: Build, weights: str, bound: float) -> Expectations:
    from pyggml.matrix.expectations import FILE, read_expectations

    return read_expectations(current_project().patches_dir / build.record.pin / FILE, weights, bound)


def _builds(variant: str | None, against: str | None, cuda: bool) -> tuple[Build, Build | None]:
    from pyggml.builder.record import find_build
    from pyggml.cli.run import active
    from pyggml.native.cuda import find_cuda_build

    build = find_cuda_build(current_project()) if cuda and variant is None else active(variant)
    return build, None if against is None else find_build(current_project(), against)


def _check_cuda(builds: Sequence[Build]) -> None:
    """Fail once, not in every run."""
    import os

    from pyggml.errors import PyggmlError
    from pyggml.native.cuda import BACKEND, why_no_device
    from pyggml.native.programs import seen_devices

    for build in builds:
        if not any(one.backend == BACKEND for one in seen_devices(build, os.environ)):
            raise PyggmlError(
                f"{_name(build)} sees no CUDA device: {why_no_device(build)}",
                "Leave --cuda away to use virtual devices.",
            )


def _warn(build: Build, other: Build) -> None:
    """Other options or another compiler change bits without any patch."""
    a, b = build.record, other.record
    names = [
        name
        for name in sorted({**a.options, **b.options})
        if name.startswith(_MATTERS) and a.options.get(name) != b.options.get(name)
    ]
    names += [name for name in ("cc_version", "cxx_version") if a.tools.get(name) != b.tools.get(name)]
    if names:
        say(f"{a.variant} and {b.variant} were built differently, which changes bits: {', '.join(names)}")


def _name(build: Build) -> str:
    return build.record.variant


def _files(files: Sequence[Path]) -> list[Path]:
    models: list[Path] = []
    for path in files:
        inside = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"there is no GGUF file in {path}")
        models += [one.absolute() for one in inside]
    return list(dict.fromkeys(models))


def _zoo(build: Build, regex: str | None) -> list[Path]:
    from pyggml.cli.common import shown_progress
    from pyggml.models.zoo import select_models, zoo_models

    with shown_progress() as report:
        return zoo_models(build, select_models(regex), report=report)


def _asked_for_combinations() -> bool:
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return any(context.get_parameter_source(name) not in (None, default) for name in _AXES)


def _tiny(build: Build, arch: str | None, lively: bool) -> list[Path]:
    from pyggml.cli.common import shown_progress
    from pyggml.models.scaled_weights import scaled_models
    from pyggml.models.tiny import tiny_models

    with shown_progress() as report:
        files = tiny_models(build, arch, report=report).files
        return scaled_models(files, report) if lively else list(files)


def _print(write: Callable[[Console], None], to_stderr: bool) -> None:
    from rich.console import Console

    console = Console(stderr=to_stderr)
    if console.is_terminal:
        write(console)
        return
    # A file or a pipe has no width: one line for every row, without trailing blanks.
    console = Console(file=io.StringIO(), width=_WIDEST)
    with console.capture() as captured:
        write(console)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), err=to_stderr)


@contextmanager
def _shown() -> Iterator[Callable[[MatrixProgress], None]]:
    """Progress, and what is bad as soon as it is known: a bar on a terminal, else a line for every tenth."""
    from pyggml.matrix.report import line_of

    if not interactive():
        tenth, last = 0, time.monotonic()

        def lines(progress: MatrixProgress) -> None:
            nonlocal tenth, last
            now = progress.done * 10 // progress.total
            if now > tenth and time.monotonic() - last > _SPARSE_SECONDS:
                tenth, last = now, time.monotonic()
                say(f"{progress.done} of {progress.total} runs")

        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    bad = 0
    with bar:
        task = bar.add_task("", total=None, text="loading the build")

        def show(progress: MatrixProgress) -> None:
            nonlocal bad
            for record in progress.records:
                if record.bad:
                    bad += 1
                    bar.console.print(line_of(record), style="red", markup=False, highlight=False)
            text = f"{progress.done} of {progress.total} runs, {bad} bad"
            bar.update(task, completed=progress.done, total=progress.total, text=text)

        yield show


def _read_json(file: Path) -> dict[str, Any]:
    """What `--json` wrote into `file`.

    Raises:
        UsageError: it is something else.
    """
    import json

    try:
        read = json.loads(file.read_bytes())
        if not all({"name", "verdict", "judged"} <= case.keys() for case in read["cases"]):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{file} is not what `pyggml matrix --json` writes", "Make it with: pyggml matrix --json FILE"
        ) from error
    return dict(read)


def _write_json(document: dict[str, Any], file: Path | None) -> None:
    import json

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if file is None:
        click.echo(text, nl=False)
        return
    from pyggml.files import write_output

    write_output(file, text.encode("utf-8", "surrogateescape"))
