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

    Branch, files and patch files go back to what they were before the last command that changed them.
    Repeat it to go further back. Edits that were folded into a patch become edits again.

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
            print_json([{"number": r.number, "doing": r.transaction.doing, "when": r.when} for r in rows])
        elif not rows:
            click.echo("nothing to take back")
        for record in () if as_json else rows:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.when))
            click.echo(f"{record.number:6d}  {when}  {record.transaction.doing}")
        return
    record = undo_last(project)
    if as_json:
        print_json({"undone": record.transaction.doing, "head": record.transaction.head_old})
    else:
        click.echo(f"took back `{record.transaction.doing}`; HEAD is {record.transaction.head_old[:12]}")
