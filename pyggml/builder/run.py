"""`pyggml build` as one function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyggml.builder.cmake import BuildResult, build_tree
from pyggml.builder.machine import read_machine
from pyggml.builder.plan import BuildOptions, make_plan
from pyggml.builder.progress import Report
from pyggml.builder.source import read_source
from pyggml.builder.times import follow_contents
from pyggml.builder.toolchain import find_toolchain
from pyggml.git import Git
from pyggml.project import Project


def build_project(
    project: Project,
    options: BuildOptions,
    report: Report | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> BuildResult:
    """Build the work tree as it is, holding the project so that nothing changes below the compilers.

    Args:
        report: called after each compiled step.
        say: told in a line what takes long.

    Raises:
        PyggmlError: there is nothing to build, a program is missing, the build failed, or the CUDA backend
            cannot be loaded.
        UsageError: an option is wrong, or two exclude each other.
        UserInterruptError: stopped by the user.
    """
    machine = read_machine()
    with project.lock("build"):
        source = read_source(project)
        tools = find_toolchain(machine.arch, say)
        cuda = None
        if options.cuda is not None:
            from pyggml.builder.cuda.setup import set_up

            cuda = set_up(options.cuda, tools, say)
        plan = make_plan(source.path, project.build_dir, source.pin, options, machine, tools, cuda)
        git = Git(source.path / ".git", source.path)

        def prepare(directory: Path) -> None:
            follow_contents(git, directory)
            if cuda is not None:
                cuda.prepare(directory, tools.cc, say)

        result = build_tree(
            plan,
            tools,
            source,
            clean=options.clean,
            prepare=prepare,
            report=report,
            say=say,
        )
        if cuda is not None:
            from pyggml.builder.cuda.loadable import check_loadable

            check_loadable(result.build, cuda.root(plan.directory))
        return result
