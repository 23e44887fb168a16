"""`pyggml init`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pyggml.cli.common import json_option, print_json


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option(
    "--from-bundled", "kind", flag_value="bundled", default=True, help="Use pyggml's own pins (the default)."
)
@click.option(
    "--empty",
    "kind",
    flag_value="empty",
    help="Start without pins; vendor/pins.toml explains the format.",
)
@json_option
def init(directory: Path, kind: str, as_json: bool) -> None:
    """Create a project for your own fork in DIRECTORY (by default the working directory).

    It consists of vendor/pins.toml, an empty patches/, a .gitignore and a .gitattributes.
    Existing files are not overwritten.

    \b
    Examples:
      pyggml init my-fork            start from the upstream pins that come with pyggml
      pyggml init --empty my-fork    choose your own upstream repository, commit or archive
    """
    from pyggml.scaffold import TEMPLATE, bundled_files, new_project

    files = bundled_files(patches=False)
    if kind == "empty":
        files = dict.fromkeys(files, TEMPLATE)
    project = new_project(directory, files)
    if as_json:
        print_json({"root": str(project.root), "files": sorted(map(str, files))})
        return
    click.echo(f"created a project in {project.root}")
    click.echo("Next:")
    if project.root != Path.cwd():
        click.echo(f"  cd {shlex.quote(str(directory))}")
    if kind == "empty":
        click.echo("  pyggml vendor add --help    choose the upstream source of your patches")
        click.echo("  pyggml up                   fetch, build and check it")
    else:
        click.echo("  pyggml up                   fetch, build and check the upstream")
        click.echo("  pyggml patch new --help     turn your first change into a patch")
