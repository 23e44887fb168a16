"""A clean environment for every test: no home, no git or pip configuration, no network, no cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyggml.project import Project
from tests.hermetic import TESTS
from tests.upstream.helpers import GOOD, Upstream, write_project


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        theirs = name.startswith(("GIT_", "PIP_", "PYGGML_")) or name.lower().endswith("_proxy")
        if theirs and not name.startswith(TESTS):
            monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A well-behaved archive and the project that pins it."""
    return Upstream(tmp_path / "up", GOOD)


@pytest.fixture
def project(tmp_path: Path, upstream: Upstream) -> Project:
    return write_project(tmp_path / "project", one=upstream.pin())
