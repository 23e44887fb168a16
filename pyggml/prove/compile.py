"""The check of `pyggml patch rebase --compile`: does the new commit build?"""

from __future__ import annotations

from collections.abc import Callable

from pyggml.errors import PyggmlError
from pyggml.processes import UserInterruptError
from pyggml.project import Project
from pyggml.prove.bench import BuildBench, bench_lock
from pyggml.series.rebasing.verdict import RebasedPatch
from pyggml.series.worktree.workspace import open_bare


def compile_check(
    project: Project, onto: str, say: Callable[[str], None]
) -> Callable[[RebasedPatch], str | None]:
    """A check that builds each commit of a rebase in the private tree of the new pin.

    Returns:
        A function that gives None for a commit that builds, else the compiler's first error.
    """
    bench: BuildBench | None = None

    def check(step: RebasedPatch) -> str | None:
        nonlocal bench
        if step.commit is None:
            return None
        if bench is None:
            # The series of the new pin may be half-made or missing.
            bench = BuildBench(open_bare(project, onto), say, python=False)
        say(f"building with {step.patch.name}")
        with bench_lock(project, "patch rebase --compile"):
            try:
                bench.at(step.commit.id, step.commit.tree)
            except UserInterruptError:
                raise
            except PyggmlError as error:
                return "\n".join(line for line in (error.message, error.hint or "") if line)
        return None

    return check
