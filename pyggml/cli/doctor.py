"""`pyggml doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pyggml.cli.common import current_project, json_option, print_json
from pyggml.errors import UsageError

_MARKS = {"ok": "ok", "missing": "!!", "optional": "--"}


@click.command()
@click.option("--offline", is_flag=True, help="Do not check whether the package registries answer.")
@json_option
def doctor(offline: bool, as_json: bool) -> None:
    """Check what this machine can do, and print how to install each thing that is missing.

    Nothing is changed or installed. `!!` marks what is missing and required for the CPU job (pyggml up), `--`
    what is missing and optional. The exit code is 0 if the CPU job can run here, and 1 if not.

    \b
    Examples:
      pyggml doctor
      pyggml doctor --offline --json
    """
    from pyggml.doctor.examine import examine

    try:
        project = current_project()
    except UsageError:
        if (click.get_current_context().find_root().obj or {}).get("project") is not None:
            raise
        project = None
    report = examine(project, Path.cwd(), offline=offline)
    if as_json:
        print_json({"ok": report.ok, "rows": [asdict(row) for row in report.rows]})
    else:
        group = ""
        width = max(len(row.name) for row in report.rows)
        for row in report.rows:
            if row.group != group:
                group = row.group
                click.echo(group)
            click.echo(f"  {_MARKS[row.state]}  {row.name:<{width}}  {row.text}")
            if row.fix:
                click.echo(f"      {'':<{width}}  -> {row.fix}")
        click.echo("the CPU job can run here" if report.ok else "the CPU job cannot run here; see !! above")
    click.get_current_context().exit(0 if report.ok else 1)
