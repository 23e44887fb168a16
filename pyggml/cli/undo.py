"""`pyggml undo`."""

from __future__ import annotations

import time

import click

from pyggml.cli.common import current_project, json_option, print_json


@click.command()
@click.option("--list", "show", is_flag=True, help="Show what can be taken back, newest first.")
@click.option("--redo", is_flag=True, help="Take the last undo back.")
@json_option
def undo(show: bool, redo: bool, as_json: bool) -> None:
    """Take back the last change to the series or the work tree.

    Branch, files and patch files go back to what they were before the last command that changed them.
    Repeat it to go further back. Edits that were folded into a patch become edits again. Nothing is
    lost on the way: `--redo` takes an undo back, as long as nothing else has been changed.

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
    result = undo_last(project, redo=redo)
    what, head = result.done.doing.split(" of ", 1)[1], result.done.head_new
    if as_json:
        print_json({"undone" if not redo else "redone": what, "head": head, "aside": [*result.aside]})
        return
    click.echo(f"{'made again' if redo else 'took back'} `{what}`; HEAD is {head[:12]}")
    if result.aside or result.commits:
        aside = [*result.aside[:3], *(["…"] if len(result.aside) > 3 else [])]
        commits = [f"{result.commits} of your commits"] if result.commits else []
        click.echo(f"put aside: {', '.join([*commits, *aside])}; `pyggml undo --redo` brings that back")
