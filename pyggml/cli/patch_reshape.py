"""`pyggml patch reword`, `squash` and `split`: patches that change without the source they make."""

from __future__ import annotations

from dataclasses import asdict
from typing import IO

import click

from pyggml.cli.common import current_project, json_option, print_json
from pyggml.cli.patch_output import (
    edited_message,
    given_message,
    message_options,
    pin_option,
    print_change,
    reopen_option,
)
from pyggml.errors import UsageError


@click.command()
@click.argument("which")
@message_options
@pin_option
@reopen_option
@json_option
def reword(
    which: str, message: tuple[str, ...], file: IO[str] | None, pin: str | None, as_json: bool
) -> None:
    """Change the message of patch WHICH; without -m or -F, in $EDITOR.

    Only the file of that patch is written. Edits in the work tree stay as they are.
    """
    from pyggml.series.editing.reword import patch_message, reword_patch
    from pyggml.series.worktree.workspace import open_workspace

    project = current_project()
    text = given_message(message, file)
    if text is None:
        text = edited_message(patch_message(open_workspace(project, pin), which))
    print_change(as_json, reword_patch, project, which, text, pin)


@click.command()
@click.argument("which", nargs=-1, required=True, metavar="WHICH WHICH...")
@click.option("--name", "-n", metavar="NAME", help="The name; by default that of the lowest patch.")
@message_options
@pin_option
@reopen_option
@json_option
def squash(
    which: tuple[str, ...],
    name: str | None,
    message: tuple[str, ...],
    file: IO[str] | None,
    pin: str | None,
    as_json: bool,
) -> None:
    """Make one patch of several, at the place of the lowest; exit code 3 at a conflict.

    The source stays the same: patches that do not lie side by side are brought together first. The message
    has all of theirs unless -m or -F gives another, and series.toml keeps the proofs of all.
    """
    from pyggml.series.editing.squash import squash_patches

    print_change(as_json, squash_patches, current_project(), which, given_message(message, file), name, pin)


@click.command()
@click.argument("which")
@click.argument("name", required=False)
@click.option("--path", "-P", "paths", multiple=True, metavar="PATH", help="Take this file or directory out.")
@click.option(
    "--hunk", "hunks", multiple=True, metavar="FILE:N", help="Take hunk N of FILE out; N-M for several."
)
@message_options
@pin_option
@reopen_option
@json_option
def split(
    which: str,
    name: str | None,
    paths: tuple[str, ...],
    hunks: tuple[str, ...],
    message: tuple[str, ...],
    file: IO[str] | None,
    pin: str | None,
    as_json: bool,
) -> None:
    """Take files or hunks out of patch WHICH; they become patch NAME, right on top of it.

    Without NAME, the hunks of the patch are listed with their numbers. The source after both patches is that
    after the one. The proofs in series.toml stay with WHICH.
    """
    from pyggml.series.editing.contents import source_path
    from pyggml.series.editing.split import list_hunks, split_patch
    from pyggml.series.worktree.workspace import open_workspace

    project = current_project()
    work = open_workspace(project, pin)
    if name is None:
        if paths or hunks:
            raise UsageError("the new patch has no name", "Give one: pyggml patch split WHICH NAME …")
        rows = list_hunks(work, work.series.find(which))
        if as_json:
            print_json({"hunks": [asdict(row) for row in rows]})
        for row in rows if not as_json else ():
            click.echo(f"{row.path}:{row.number}  {row.header}\n    {row.first}")
        return
    if not paths and not hunks:
        raise UsageError(
            "nothing is chosen", f"Choose with --path PATH or --hunk FILE:N; see: pyggml patch split {which}"
        )
    only = [source_path(work, path) for path in paths]
    print_change(as_json, split_patch, project, which, name, only, hunks, given_message(message, file), pin)
