"""What all commands share: lazy groups, the project, JSON output and progress lines."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pyggml.project import Project, find_project

F = TypeVar("F", bound=Callable[..., Any])


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
    return find_project(Path.cwd(), explicit)


def json_option(function: F) -> F:
    """`--json`: one JSON document on standard output instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")(
        function
    )


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Print a line on standard error, so that standard output stays parseable."""
    click.echo(text, err=True)


def interactive() -> bool:
    """Whether standard error is a terminal, for progress bars."""
    return sys.stderr.isatty()
