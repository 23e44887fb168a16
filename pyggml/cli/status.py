"""`pyggml status`."""

from __future__ import annotations

from dataclasses import asdict

import click

from pyggml.cli.common import current_project, json_option, print_json


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show where the project stands and what to do next.

    Pin, series, edits and builds on a line each. `pyggml patch status` lists the patches, `pyggml doctor`
    looks at the machine.

    Example: pyggml status --json
    """
    from pyggml.doctor.overview import project_overview

    overview = project_overview(current_project())
    if as_json:
        print_json(asdict(overview))
        return
    rows = [("project", overview.root)]
    if overview.pin:
        rows.append(("pin", f"{overview.pin}, {overview.pin_state} ({overview.source})"))
    if (series := overview.series) is not None:
        rows.append(("series", f"{series.state}, {series.applied} of {series.total} patches applied"))
        if series.edits or series.on_top:
            files, commits = _count(len(series.edits), "file"), _count(len(series.on_top), "commit")
            rows.append(("edits", f"{files}, {commits} in no patch yet"))
        rows += [("waiting", waits) for waits in (series.operation, series.rebase) if waits]
        if series.interrupted:
            rows.append(("killed", f"{series.interrupted}; the next command finishes it"))
    checked = {True: ", check passed", False: ", check FAILED", None: ""}
    rows += [("build", f"{build.variant}, {build.state}{checked[build.passed]}") for build in overview.builds]
    for name, text in rows:
        click.echo(f"{click.style(f'{name:8}', bold=True)} {text}")
    width = max(len(command) for command, _ in overview.next)
    for index, (command, what) in enumerate(overview.next):
        label = click.style(f"{'' if index else 'next':8}", bold=True)
        click.echo(f"{label} {click.style(f'{command:{width}}', fg='cyan')}  {what}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
