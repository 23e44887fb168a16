"""A user who has nothing: no home, no git configuration but a name, none of the caller's variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = "PYGGML_TESTS_"
"""Begins what the tests' own processes tell each other."""


@contextlib.contextmanager
def own_user(home: Path, *more: str) -> Iterator[None]:
    """Until the end, HOME is `home`, and no variable begins with GIT_, PYGGML_ or one of `more`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in list(os.environ):
            if name.startswith(("GIT_", "PYGGML_", *more)) and not name.startswith(TESTS):
                monkeypatch.delenv(name)
        (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n", "utf-8")
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        yield
