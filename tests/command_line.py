"""The command line in this process: what a test of output and exit code needs, without starting Python."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run_here(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ended:
    """Run `pyggml *arguments` as the program does, through pyggml.cli.main.

    Args:
        cwd: by default the working directory.
        env: added to the environment.
    """
    from pyggml.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", "\n") for _ in range(2))
    code = 0
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.chdir(cwd or Path.cwd()):
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["pyggml", *arguments])
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ended(code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")
