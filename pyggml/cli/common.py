"""What all commands share: lazy groups, the project, JSON output and progress."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from pyggml.errors import UsageError
from pyggml.project import Project, find_project
from pyggml.upstream.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 5.0


class LazyGroup(click.Group):
    """A group whose subcommands are imported only when they are used.

    Args:
        lazy: subcommand name to (`module:attribute`, one line of help), in the order of `--help`.
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in self.lazy.items()]
        rows += [(n, c.get_short_help_str()) for n, c in self.commands.items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def current_project() -> Project:
    """The project of this invocation: `--project DIR`, or the one around the working directory."""
    ctx = click.get_current_context()
    explicit: Path | None = (ctx.find_root().obj or {}).get("project")
    try:
        return find_project(Path() if explicit else Path.cwd(), explicit)
    except FileNotFoundError as error:
        raise UsageError(
            "the working directory does not exist any more",
            "Change to another directory, or give --project DIR.",
        ) from error


def json_option(function: F) -> F:
    """`--json`: one JSON document on standard output instead of text, errors included."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_remember_json,
        help="Print one JSON document, for programs.",
    )(function)


def _remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        ctx.find_root().ensure_object(dict)["json"] = True
    return value


def print_json(document: object) -> None:
    """Print the document that a command answers with; an error after it is not printed as another one."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.find_root().obj:
        ctx.find_root().obj["json"] = False
    text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, default=str)
    click.echo(text)


def say(text: str) -> None:
    """Print a line on standard error, so that standard output stays parseable."""
    click.echo(text, err=True)


def interactive() -> bool:
    """Whether standard error is a terminal, for progress bars."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress]:
    """A progress callback for a command: a bar on a terminal, an occasional line elsewhere."""
    if not interactive():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
    )
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        last = [""]

        def report(what: str, done: int, total: int | None) -> None:
            if what != last[0]:
                last[0] = what
                bar.reset(task, description=what)
            bar.update(task, completed=done, total=total)

        yield report


class _Lines:
    """Progress for logs: nothing for the first seconds, then an occasional line."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _QUIET_SECONDS

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LINE_EVERY_SECONDS
            say(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB" if total and total > 1e6 else what)
