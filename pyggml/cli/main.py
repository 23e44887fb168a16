"""The entry point: the top-level group; errors become two lines and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import click

from pyggml.cli.common import LazyGroup, print_json
from pyggml.errors import PyggmlError
from pyggml.version import __version__

COMMANDS = {
    "up": ("pyggml.cli.up:up", "Fetch, patch, build and check, all in one command."),
    "status": ("pyggml.cli.status:status", "Show where the project stands and what to do next."),
    "init": ("pyggml.cli.init:init", "Create a project for your own fork."),
    "vendor": ("pyggml.cli.vendor:vendor", "Manage the pinned upstream sources."),
    "patch": ("pyggml.cli.patch:patch", "Manage the patch series: apply, change, rebase, export."),
    "undo": ("pyggml.cli.undo:undo", "Undo the last change to the series or the work tree."),
    "build": ("pyggml.cli.build:build", "Configure and compile the patched llama.cpp."),
    "doctor": (
        "pyggml.cli.doctor:doctor",
        "Check what this machine can do, and how to install what is missing.",
    ),
    "run": ("pyggml.cli.run:run", "Run a program of the build on virtual devices."),
    "devices": ("pyggml.cli.devices:devices", "List the devices that a build sees."),
    "model": ("pyggml.cli.model:model", "Get small models to try a build with."),
    "matrix": (
        "pyggml.cli.matrix:matrix",
        "Run every architecture on virtual devices and compare bit for bit.",
    ),
    "clean": ("pyggml.cli.frontier:clean", "Remove what is kept to be quicker the next time."),
    "abi": ("pyggml.cli.abi:abi", "Show the C interface of a build, and compare two."),
}

_OS_HINT = "The system refused it. Remove the cause and run the same command again."
_ACCESS = "Get write access to it (or become its owner), then run the same command again."
_FULL = "Make room there and run the same command again."
_OS_HINTS = {
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "It is on a file system that is read-only: work in another directory.",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.ENOENT: "It was removed in between: restore it, or change to a directory that exists.",
}


class _Commands(LazyGroup):
    """The top-level group: after `--json`, what ends a command is a JSON document as well."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            _print_error(ctx, PyggmlError(error.format_message()), error.exit_code)
            raise
        except BrokenPipeError:
            raise
        except Exception as error:
            told = _told(error)
            _print_error(ctx, told, told.exit_code)
            raise


def _print_error(ctx: click.Context, error: PyggmlError, exit_code: int) -> None:
    if (ctx.obj or {}).get("json"):
        # The disk or the pipe that ended the command may be the one that this goes to.
        with contextlib.suppress(OSError):
            print_json({"error": {"message": error.message, "hint": error.hint, "exit_code": exit_code}})


def _told(error: Exception) -> PyggmlError:
    """Any error as what the user is told."""
    if isinstance(error, PyggmlError):
        return error
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        where = error.filename2 or error.filename
        named = f"{os.fsdecode(where)}: " if isinstance(where, str | bytes) else ""
        return PyggmlError(f"{named}{reason}", _OS_HINTS.get(error.errno or 0, _OS_HINT))
    return PyggmlError(
        f"internal error: {type(error).__name__}: {error}",
        "This is a bug in pyggml; PYGGML_TRACEBACK=1 shows where.",
    )


@click.group(
    cls=_Commands,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--project",
    type=click.Path(file_okay=False, path_type=Path),
    help="The project's directory; by default the project around the working directory.",
)
@click.version_option(__version__, prog_name="pyggml")
@click.pass_context
def cli(ctx: click.Context, project: Path | None) -> None:
    """Maintain, build and prove your own patches on ggml and llama.cpp.

    A project is a directory with vendor/pins.toml (the upstream sources) and patches/ (your series).
    Start with `pyggml up`; see where you are with `pyggml status`.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 stopped at a conflict that you need to resolve.
    """
    ctx.ensure_object(dict)["project"] = project


def main() -> None:
    """Run the command line; a traceback is only shown if PYGGML_TRACEBACK is set."""
    for stream in (sys.stdout, sys.stderr):
        # A path need not be text, and a terminal need not have every letter: neither may end a command.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("PYGGML_TRACEBACK"):
        cli.main(prog_name="pyggml")
    try:
        cli.main(prog_name="pyggml")
    except BrokenPipeError:
        sys.stdout = None
        sys.exit(1)
    except Exception as error:
        told = _told(error)
        click.echo(f"pyggml: {told.message}", err=True)
        if told.hint:
            click.echo(told.hint, err=True)
        sys.exit(told.exit_code)
