"""The build that native tests run on: which one stands, which patches are in it, and making one where there is none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.project import Project

ROOT = Path(__file__).parent.parent
PIN = "PYGGML_TESTS_PIN"
PREPARED = "PYGGML_TESTS_PREPARED"
"""Set once somebody has seen to the build: the process that starts the tests, or `pyggml patch prove`."""

_DESCRIBED = "PYGGML_TESTS_BUILD"


@dataclass(frozen=True)
class TestedBuild:
    """A finished build.

    Attributes:
        patches: how many of the series are in it.
        missing: the names of those that are not.
        proofs: test function, without parameters, to the missing patches that it proves.
        changed: how many files of the work tree differ from what was compiled.
    """

    __test__ = False

    variant: str
    patches: int
    missing: tuple[str, ...]
    proofs: Mapping[str, tuple[str, ...]]
    changed: int

    def __str__(self) -> str:
        line = f"{self.variant}, {self.patches} of {self.patches + len(self.missing)} patches"
        if self.changed:
            files = "file was" if self.changed == 1 else "files were"
            line += f"; {self.changed} {files} changed since (pyggml build, or --prepare)"
        return line


def find_tested_build() -> TestedBuild | None:
    """The build that processes load by default; None if there is none, or none that is finished."""
    from pyggml.builder.source import has_source
    from pyggml.builder.times import changed_since
    from pyggml.git import Git
    from pyggml.native.load import active_build
    from pyggml.series.worktree.status import subjects
    from pyggml.series.worktree.workspace import open_workspace

    project = Project(ROOT)
    try:
        if not has_source(project):
            return None
        build = active_build(ROOT)
        if not (build.directory / "python").is_dir():
            return None
        work = open_workspace(project, build.record.pin)
        log = work.git.text("log", "--format=%s", f"{work.base}..{build.record.head}")
        changed = changed_since(Git(work.git.work_tree / ".git", work.git.work_tree), build.directory)
    except PyggmlError:
        return None
    applied = set(log.splitlines())
    missing = [
        patch
        for patch, subject in zip(work.series.patches, subjects(work), strict=True)
        if subject not in applied
    ]
    proofs: dict[str, tuple[str, ...]] = {}
    for patch in missing:
        for test in dict.fromkeys(node.partition("[")[0] for node in patch.proof):
            proofs[test] = (*proofs.get(test, ()), patch.name)
    return TestedBuild(
        variant=build.record.variant,
        patches=len(work.series.patches) - len(missing),
        missing=tuple(patch.name for patch in missing),
        proofs=proofs,
        changed=changed,
    )


def refresh_bindings(say: Callable[[str], None]) -> None:
    """Make the bindings of the build that stands again if they are of another pyggml.

    Their declarations are read from the work tree, so it must be the one that was compiled.

    Raises:
        PyggmlError: a compiler fails.
    """
    from pyggml.native.load import active_build
    from pyggml.native.python_side import make_python_side

    make_python_side(active_build(ROOT), say=lambda text: say(f"preparing: {text}"))


def remember(build: TestedBuild) -> None:
    """For the processes that this one starts: workers and isolated tests."""
    os.environ[_DESCRIBED] = json.dumps(asdict(build))


def remembered() -> TestedBuild | None:
    """What a process before this one has found out."""
    described = os.environ.get(_DESCRIBED)
    if described is None:
        return None
    return TestedBuild(**json.loads(described))


def make_build(say: Callable[[str], None], *, apply: bool) -> None:
    """Fetch and build what is missing.

    Args:
        apply: move the work tree to the whole series, of the pin that PYGGML_TESTS_PIN names or the default one;
            otherwise only a tree that is not there yet is made so.

    Raises:
        PyggmlError: a step failed.
    """
    from pyggml.builder.plan import BuildOptions
    from pyggml.builder.progress import Step
    from pyggml.builder.source import has_source
    from pyggml.native.python_side import build_all
    from pyggml.series.worktree.apply import apply_series
    from pyggml.upstream.pins import read_pins
    from pyggml.upstream.store import fetch

    fifths = 0

    def step(step: Step) -> None:
        nonlocal fifths
        if step.done * 5 // max(step.total, 1) > fifths:
            fifths = step.done * 5 // max(step.total, 1)
            say(f"preparing: built {step.done} of {step.total} steps")

    project, pin, start = Project(ROOT), os.environ.get(PIN), time.monotonic()
    if apply or not has_source(project):
        pins = read_pins(project)
        with project.lock("tests"):
            say("preparing: fetching the source unless it is there")
            fetch(project, pins, pins.get(pin))
        apply_series(project, pin)
    build_all(project, BuildOptions(), step, lambda text: say(f"preparing: {text}"))
    say(f"preparing: done in {time.monotonic() - start:.0f} s")
