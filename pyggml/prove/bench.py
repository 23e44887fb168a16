"""A private copy of the stack that is moved from patch to patch and built; the user's work tree is not touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pyggml import processes
from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.worktree.checkout import make_checkout, move_checkout
from pyggml.series.worktree.workspace import Workspace

SOURCE = "PYGGML_SOURCE"
"""The environment variable with the tree of the step, for tests and commands."""

Say = Callable[[str], None]


class Bench(Protocol):
    """A place where steps of the stack are made ready."""

    def at(self, head: str, tree: str) -> Mapping[str, str]:
        """Bring it to commit `head` with `tree`; returns variables for the environment of commands.

        Raises:
            PyggmlError: it does not build.
        """
        ...


class TreeBench:
    """The files alone, without a build."""

    def __init__(self, work: Workspace) -> None:
        self.work = work
        self.home = Project(work.project.state_dir / "prove" / work.pin.name)
        self.place = self.home.vendor_dir / work.pins.upstream

    def at(self, head: str, tree: str) -> Mapping[str, str]:
        self.move(head, tree)
        return {SOURCE: str(self.place)}

    def move(self, head: str, tree: str) -> Git:
        git = Git(self.place / ".git", self.place)
        # A killed process leaves a lock; no other process works here (see bench_lock).
        (git.git_dir / "index.lock").unlink(missing_ok=True)
        if git.git_dir.is_dir():
            with contextlib.suppress(PyggmlError):
                move_checkout(git, head, tree)
                return git
        return make_checkout(self.work.git, self.place, head, tree)


class BuildBench(TreeBench):
    """The files and their build, in one build directory of its own: each step compiles only what it touches.

    Their relative paths are those of the project, so that a ccache with a base_dir can reuse what it compiled.
    """

    def __init__(self, work: Workspace, say: Say, jobs: int | None = None, *, python: bool = True) -> None:
        super().__init__(work)
        self.say = say
        self.jobs = jobs
        self.python = python

    def at(self, head: str, tree: str) -> Mapping[str, str]:
        from pyggml.builder.cmake import build_tree
        from pyggml.builder.machine import read_machine
        from pyggml.builder.plan import BuildOptions, make_plan
        from pyggml.builder.source import Source
        from pyggml.builder.times import follow_contents
        from pyggml.builder.toolchain import find_toolchain
        from pyggml.native.preprocess import missing_headers
        from pyggml.native.python_side import make_python_side

        git = self.move(head, tree)
        machine = read_machine()
        tools = find_toolchain(machine.arch, self.say)
        options = BuildOptions(jobs=self.jobs, variant=f"{self.work.pin.name}-prove")
        plan = make_plan(self.place, self.home.build_dir, self.work.pin.name, options, machine, tools)
        source = Source(self.place, self.work.pin.name, head, tree, False)
        result = build_tree(
            plan, tools, source, prepare=lambda directory: follow_contents(git, directory), say=self.say
        )
        self.say(f"built {result.steps} steps in {result.seconds:.0f} s")
        if self.python and not missing_headers(self.place):
            make_python_side(result.build, self.place, say=self.say)
        path = f"{result.build.bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"
        return {
            SOURCE: str(self.place),
            "PYGGML_BUILD": str(result.build.directory),
            "PYGGML_TESTS_PREPARED": "1",
            "PATH": path,
        }


@contextlib.contextmanager
def bench_lock(project: Project, doing: str) -> Iterator[None]:
    """Lock the private tree; the project itself stays usable.

    Raises:
        PyggmlError: another process works there.
    """
    busy = f"`{doing}` cannot begin: another prove, bisect or compiling rebase is at work"
    with project.lock_part("prove", busy):
        yield


def run_on_step(
    command: Sequence[str], step: Mapping[str, str], cwd: Path, limit: float | None = None
) -> processes.Finished:
    """Run a command on a step that Bench.at has made ready.

    Args:
        step: the variables of Bench.at, added to our environment without git's.
        limit: seconds.

    Raises:
        PyggmlError: it cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return processes.run(command, env={**inherited, **step}, cwd=cwd, limit=limit, merged=True)


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
