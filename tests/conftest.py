"""The native tests need the built llama.cpp of this project: what is missing of it is made before the first.

It is that of the default pin; PYGGML_TESTS_PIN names another one, which the work tree then moves to.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch, patch and build, in the one process that starts the tests; children and workers find it done."""
    wanted = any(item.get_closest_marker("native") for item in session.items)
    if not wanted or session.config.option.collectonly or os.environ.get("PYGGML_TESTS_PREPARED"):
        return
    os.environ["PYGGML_TESTS_PREPARED"] = "1"
    if hasattr(session.config, "workerinput"):
        return
    from pyggml.builder.plan import BuildOptions
    from pyggml.builder.progress import Step
    from pyggml.errors import PyggmlError
    from pyggml.native.assemble import build_all
    from pyggml.project import Project
    from pyggml.series.worktree.workspace import apply_series
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import fetch

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def say(text: str) -> None:
        if reporter is not None:
            reporter.write_line(f"preparing: {text}")
            sys.stdout.flush()

    told = 0

    def step(step: Step) -> None:
        nonlocal told
        if step.done * 5 // max(step.total, 1) > told:
            told = step.done * 5 // max(step.total, 1)
            say(f"built {step.done} of {step.total} steps")

    project, pin = Project(ROOT), os.environ.get("PYGGML_TESTS_PIN")
    start = time.monotonic()
    try:
        pins = read_pins(project)
        with project.lock("tests"):
            say("the source, fetched unless it is there")
            fetch(project, pins, pins.get(pin))
        apply_series(project, pin)
        build_all(project, BuildOptions(), step, say)
    except PyggmlError as error:
        pytest.exit(f"the native tests cannot be prepared: {error}", returncode=1)
    say(f"done in {time.monotonic() - start:.0f} s")
