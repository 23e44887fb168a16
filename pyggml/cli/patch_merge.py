"""`pyggml patch renumber`, `merge-driver` and `install-merge-driver`: two branches' series merged by git."""

from __future__ import annotations

from pathlib import Path

import click

from pyggml.cli.common import current_project, json_option
from pyggml.cli.patch_output import pin_option, print_change, reopen_option


@click.command()
@pin_option
@reopen_option
@json_option
def renumber(pin: str | None, as_json: bool) -> None:
    """Number the patch files in the order of series.toml, and record their trees anew.

    Run it after a merge of two branches that both changed the series. Every patch is applied again, in the
    order of series.toml; nothing is changed if one of them does not fit. Of two patches with the same name the
    later one gets another; a patch that is there twice is kept once. What was applied stays applied, and all
    of the series if all of it was.

    \b
    Examples:
      git merge colleague && pyggml patch renumber
      git add patches && git commit --amend --no-edit
      pyggml undo                     # take it back
    """
    from pyggml.series.editing.from_files import renumber_series

    print_change(as_json, renumber_series, current_project(), pin)


@click.command("install-merge-driver")
def install_merge_driver() -> None:
    """Let git merge series.toml patch by patch, in this clone of the project.

    Without it, git merges line by line, and two branches that each add a patch conflict. The command writes
    this clone's .git/config, and a line in .gitattributes if it is missing (commit that).

    \b
    Examples:
      pyggml patch install-merge-driver
      git checkout --merge patches/*/series.toml    # do a merge again that conflicted before
    """
    from pyggml.series.exchange import merge_driver as driver

    config, attributes = driver.install_merge_driver(current_project())
    click.echo(f"wrote {config}")
    if attributes:
        click.echo(f"wrote {driver.ATTRIBUTES_FILE}; commit it, so that every clone has it")
    click.echo("After a merge that changes the series: pyggml patch renumber")


@click.command("merge-driver")
@click.argument("base", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("ours", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("theirs", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("path", required=False)
def merge_driver(base: Path, ours: Path, theirs: Path, path: str | None) -> None:
    """Merge three versions of a series.toml into the file OURS; exit code 1 if conflicts are left.

    git calls it as `merge-driver %O %A %B %P`; see `pyggml patch install-merge-driver`. Entries are matched by
    name and merged key by key; patches that both sides have added come in ours first.
    """
    from pyggml.series.exchange.merge_driver import merge_files

    if not merge_files(base, ours, theirs):
        click.echo(f"{path or ours}: both sides changed the same thing; see the conflict marks", err=True)
        raise SystemExit(1)
