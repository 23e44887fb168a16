"""`pyggml patch reword`, `squash` and `split`: patches that change without the source they make."""

from __future__ import annotations

from typing import IO

import click

from pyggml.cli.common import current_project, json_option
from pyggml.cli.patch_output import edited_message, given_message, message_options, pin_option, print_change


@click.command()
@click.argument("which")
@message_options
@pin_option
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
