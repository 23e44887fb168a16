"""`pyggml up`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyggml.cli.build import Meter, build_document, duration, python_document
from pyggml.cli.common import current_project, json_option, print_json, say
from pyggml.errors import PyggmlError, UsageError
from pyggml.project import Project, is_project

if TYPE_CHECKING:
    from pyggml.builder.up import UpResult


def project_or_new() -> Project:
    """The project around the working directory; without one, a new one from the bundled files."""
    root = click.get_current_context().find_root()
    if (root.obj or {}).get("project") is not None:
        return current_project()
    try:
        return current_project()
    except UsageError:
        from pyggml.scaffold import bundled_files, new_project, place_for_bundled

    place = place_for_bundled(Path.cwd())
    if is_project(place):
        say(f"using the project in {place}")
        return Project(place.resolve())
    project = new_project(place, bundled_files(patches=True))
    say(f"no project here: made the one that comes with pyggml in {project.root}")
    return project


@click.command()
@click.option("--pin", metavar="NAME", help="The pin to work on; by default the project's default pin.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    help="Parallel compilers; by default as many as fit.",
)
@json_option
def up(pin: str | None, jobs: int | None, as_json: bool) -> None:
    """Fetch the pinned upstream, apply the patches, build, and check the result.

    Steps that are already done are skipped, so after a failure run it again and it continues. Outside a
    project it makes one from the files bundled with pyggml: in the working directory if that is empty,
    else in ./pyggml-project.

    The check runs upstream's test-alloc and test-llama-archs; the exit code is 0 only if they pass.

    \b
    Examples:
      pyggml up
      pyggml up --pin b11549 --jobs 4
    """
    from pyggml.builder.up import bring_up
    from pyggml.cli.common import shown_progress
    from pyggml.native.python_side import make_for

    project = project_or_new()
    with Meter() as meter:
        result = bring_up(project, pin, jobs, fetching=shown_progress, step_report=meter.step, say=meter.say)
        side = make_for(project, result.build, meter.say)
    if as_json:
        print_json({**_document(project, result), "python": python_document(side)})
    else:
        for name, text in _rows(result):
            click.echo(f"{name:<8}  {text}")
        click.echo(f"{'python':<8}  " + (f"{side.functions} functions bound" if side else "not bound"))
    if not result.check.ok:
        bad = next(program for program in result.check.programs if program.outcome != "passed")
        raise PyggmlError(
            f"the check failed: {bad.name} {bad.outcome}: {bad.detail}", f"Its output: {result.check.log}"
        )


def _rows(result: UpResult) -> list[tuple[str, str]]:
    source, record, check = result.source, result.build.build.record, result.check
    work = f"{record.built_steps} steps in {duration(record.built_seconds)}"
    counts = f"{check.passed} passed, {check.failed} failed, {check.skipped} skipped"
    when = " (remembered)" if check.remembered else f" in {duration(check.seconds)}"
    return [
        ("pin", source.pin + ("" if source.fetched else " (already fetched)")),
        ("patches", f"{source.applied} of {source.total} applied"),
        ("build", f"{record.variant}: " + (work if result.build.steps else f"up to date (last: {work})")),
        ("check", f"{'passed' if check.ok else 'FAILED'}: {counts}{when}"),
    ]


def _document(project: Project, result: UpResult) -> dict[str, object]:
    source = result.source
    return {
        "project": str(project.root),
        "pin": source.pin,
        "fetched": source.fetched,
        "patches": {"applied": source.applied, "total": source.total, "changed": source.patched},
        "build": build_document(result.build),
        "check": asdict(result.check),
    }
