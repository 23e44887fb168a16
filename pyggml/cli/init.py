"""`pyggml init`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option(
    "--from-bundled", "kind", flag_value="bundled", default=True, help="With pyggml's own pins (the default)."
)
@click.option("--empty", "kind", flag_value="empty", help="Without pins; vendor/pins.toml explains itself.")
def init(directory: Path, kind: str) -> None:
    """Make a project for your own fork in DIRECTORY (by default here).

    It gets vendor/pins.toml, an empty patches/ and a .gitignore. Nothing that is there is overwritten.

    \b
    Examples:
      pyggml init my-fork            start from the upstream pins that pyggml knows
      pyggml init --empty my-fork    name your own upstream, commit or archive
    """
    from pyggml.scaffold import TEMPLATE, bundled_files, new_project

    files = bundled_files(patches=False)
    if kind == "empty":
        files = dict.fromkeys(files, TEMPLATE)
    project = new_project(directory, files)
    click.echo(f"made a project in {project.root}")
    click.echo("Next:")
    if project.root != Path.cwd():
        click.echo(f"  cd {shlex.quote(str(directory))}")
    if kind == "empty":
        click.echo("  pyggml vendor add --help    name the upstream that your patches are for")
        click.echo("  pyggml up                   fetch, build and check it")
    else:
        click.echo("  pyggml up                   fetch, build and check the upstream")
        click.echo("  pyggml patch new --help     turn your first change into a patch")
