"""What the commands under `pyggml patch` share: the option `--pin`, and saying what became of the series."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any, cast

import click

from pyggml.cli.common import F, current_project, print_json, say
from pyggml.errors import UsageError


def pin_option(function: F) -> F:
    return click.option(
        "--pin", metavar="PIN", help="The pin; by default the default pin of vendor/pins.toml."
    )(function)


def reopen_option(function: F) -> F:
    """`--reopen`: take away the mark that a series is closed, then do what the command does."""

    @functools.wraps(function)
    def wrapper(*args: Any, reopen: bool, **kwargs: Any) -> Any:
        if reopen:
            from pyggml.series.editing.closing import reopen_series

            reopen_series(current_project(), kwargs.get("pin"))
        return function(*args, **kwargs)

    option = click.option(
        "--reopen", is_flag=True, help="If the series is closed (series.toml), open it again first."
    )
    return cast("F", option(wrapper))


def print_change(as_json: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call a command that changes the series and print what it did."""
    result = function(*args, **kwargs)
    if as_json:
        print_json(asdict(result))
        return
    if result.recovered:
        say(f"finished `{result.recovered}`, which had been killed half-way")
    for old, new in result.renamed:
        click.echo(f"moved {old} to {new.rsplit('/', 1)[-1]}")
    for verb, paths in (("removed", result.removed), ("wrote", result.written)):
        for path in paths:
            click.echo(f"{verb} {path}")
    for note in result.notes:
        click.echo(note)
    if result.waiting:
        click.echo(result.waiting)
    else:
        click.echo(f"series on pin {result.pin}: {result.applied} of {result.total} patches applied")


def note_untracked(pin: str | None) -> None:
    """New files are in no patch until `git add`: say so, since nothing else does."""
    from pyggml.series.worktree.files import edits
    from pyggml.series.worktree.workspace import open_workspace

    git = open_workspace(current_project(), pin).git
    if names := edits(git).untracked:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        say(
            f"note: not tracked, so in no patch: {', '.join(names[:3])}{more}; `git -C {git.work_tree} add` adds them"
        )


def message_options(function: F) -> F:
    """`-m` and `-F`, as those of `git commit`; `given_message` joins them."""
    text = click.option(
        "--message", "-m", multiple=True, metavar="TEXT", help="The message; several -m are paragraphs of it."
    )
    file = click.option(
        "--file",
        "-F",
        type=click.File("r", encoding="utf-8"),
        help="Read the message from a file; - is standard input.",
    )
    return text(file(function))


def given_message(message: tuple[str, ...], file: IO[str] | None) -> str | None:
    """The message that the options `-m` and `-F` give; None without them.

    Raises:
        UsageError: both are given, or it is empty.
    """
    if not message and file is None:
        return None
    if message and file is not None:
        raise UsageError("-m and -F both give the message", "Give one of them.")
    text = "\n\n".join(message) if file is None else file.read()
    if not text.strip():
        raise UsageError("the message is empty", "Give it a subject: -m TEXT")
    return text


def edited_message(text: str) -> str:
    """`text` as the user changed it in $EDITOR.

    Raises:
        UsageError: nothing is left of it.
    """
    changed = click.edit(text, require_save=False, extension=".txt") or ""
    if not changed.strip():
        raise UsageError("the message is empty: nothing was changed", "Give it with: -m TEXT")
    return changed
