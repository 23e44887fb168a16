"""`pyggml patch prove` and `pyggml patch bisect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyggml.cli.common import current_project, json_option, print_json, say

if TYPE_CHECKING:
    from pyggml.prove.bench import Bench
    from pyggml.prove.bisect import Probe
    from pyggml.series.worktree.workspace import Workspace

_PIN = click.option("--pin", metavar="PIN", help="The pin; by default the default pin of vendor/pins.toml.")
_NO_BUILD = click.option(
    "--no-build", is_flag=True, help="Only check out the files; PYGGML_SOURCE names them."
)
_JOBS = click.option("-j", "--jobs", type=click.IntRange(1), help="How many compilers run at a time.")


def _bench(work: Workspace, no_build: bool, jobs: int | None) -> Bench:
    from pyggml.prove.bench import BuildBench, TreeBench

    return TreeBench(work) if no_build else BuildBench(work, say, jobs)


@click.command()
@click.argument("which", nargs=-1)
@_PIN
@_NO_BUILD
@_JOBS
@json_option
def prove(which: tuple[str, ...], pin: str | None, no_build: bool, jobs: int | None, as_json: bool) -> None:
    """Run each patch's proof without the patch, with it, and on the whole series.

    A proof is a list of pytest node ids in series.toml, relative to the project. Without the patch each of
    them must fail, for the reason that `fails-with` gives (a regular expression); with it, and on top of
    the series, all must pass. WHICH are numbers or names; by default all patches.

    The stack is built in a private tree and build directory; your work tree is not touched. PYGGML_BUILD
    names the build for the tests.

    \b
    Verdicts: proven; not needed any more (passes without); wrong reason; broken; unproven.
    Exit code 1 unless all are proven.

    \b
    Examples:
      pyggml patch prove
      pyggml patch prove 3 mirrored-kv --json
    """
    from pyggml.prove.bench import bench_lock
    from pyggml.prove.run import prove_series
    from pyggml.series.worktree.workspace import open_workspace

    project = current_project()
    with bench_lock(project, "patch prove"):
        work = open_workspace(project, pin)
        report = prove_series(work, _bench(work, no_build, jobs), which, say)
    if as_json:
        print_json(asdict(report))
    else:
        width = max([4, *(len(row.name) for row in report.patches)])
        for row in report.patches:
            click.echo(f"{row.number:3d}  {row.name:<{width}}  {row.verdict:<19}  {row.detail}")
        proven = sum(row.verdict == "proven" for row in report.patches)
        click.echo(f"pin {report.pin}: {proven} of {len(report.patches)} patches proven")
    if not report.ok:
        raise SystemExit(1)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_PIN
@_NO_BUILD
@_JOBS
@json_option
def bisect(
    command: tuple[str, ...], pin: str | None, no_build: bool, jobs: int | None, as_json: bool
) -> None:
    """Find the first patch at which COMMAND's exit status changes.

    COMMAND runs in the working directory: on the bare pin, on the whole series, and then by halves in
    between. The programs of the step's build come first on PATH; PYGGML_BUILD names the build and
    PYGGML_SOURCE its source.

    \b
    Examples:
      pyggml patch bisect -- pytest tests/kv/test_memset.py
      pyggml patch bisect --no-build -- sh -c 'grep -q copy_name "$PYGGML_SOURCE"/ggml/src/ggml-backend.cpp'
    """
    from pyggml.prove.bench import bench_lock
    from pyggml.prove.bisect import bisect_series
    from pyggml.series.worktree.workspace import open_workspace

    def report(probe: Probe) -> None:
        say(f"{probe.applied} patches: exit status {probe.status}")

    project = current_project()
    with bench_lock(project, "patch bisect"):
        work = open_workspace(project, pin)
        result = bisect_series(work, _bench(work, no_build, jobs), command, Path.cwd(), report)
    if as_json:
        print_json(asdict(result))
    else:
        click.echo(f"patch {result.number}, {result.name}: {result.subject}")
        click.echo(f"exit status {result.before} before it, {result.after} with it")
