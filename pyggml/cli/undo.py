"""`pyggml undo`."""

from __future__ import annotations

import time

import click

from pyggml.cli.common import current_project, json_option, print_json


@click.command()
@click.option("--list", "show", is_flag=True, help="Show what can be taken back, newest first.")
@json_option
def undo(show: bool, as_json: bool) -> None:
    """Take back the last change to the series or the work tree.

    Branch, files and patch files go back to what they were before the last command that changed them;
    repeat it to go further back. Local edits that were folded into a patch come back as edits.

    \b
    Example:
      pyggml patch refresh      # oops
      pyggml undo
    """
    from pyggml.series.worktree.undo import list_undo, undo_last

    project = current_project()
    if show:
        rows = list_undo(project)
        if as_json:
            print_json([{"number": r.number, "doing": r.change.doing, "when": r.when} for r in rows])
        elif not rows:
            click.echo("nothing to take back")
        for record in () if as_json else rows:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.when))
            click.echo(f"{record.number:6d}  {when}  {record.change.doing}")
        return
    record = undo_last(project)
    if as_json:
        print_json({"undone": record.change.doing, "head": record.change.head_old})
    else:
        click.echo(f"took back `{record.change.doing}`; HEAD is {record.change.head_old[:12]}")
