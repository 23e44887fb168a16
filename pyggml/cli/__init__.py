"""The `pyggml` command: each subcommand parses, calls one function and prints."""

from pyggml.cli.main import main

__all__ = ["main"]
