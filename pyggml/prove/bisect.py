"""`pyggml patch bisect`: the first patch at which a command's exit status changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.prove.bench import Bench, run_on_step
from pyggml.prove.search import bisect
from pyggml.series.worktree.workspace import Workspace


@dataclass(frozen=True)
class Probe:
    """A step that was tried: how many patches are applied, and the exit status (negative: a signal)."""

    applied: int
    status: int


@dataclass(frozen=True)
class BisectResult:
    """The patch `number` (from 1): the exit status is `before` without it and `after` with it."""

    pin: str
    number: int
    name: str
    subject: str
    before: int
    after: int
    probes: tuple[Probe, ...]


def bisect_series(
    work: Workspace,
    bench: Bench,
    command: Sequence[str],
    cwd: Path,
    report: Callable[[Probe], None] = lambda probe: None,
) -> BisectResult:
    """Find the first patch at which the command's exit status changes, assuming that it changes once.

    Args:
        cwd: where the command runs; PYGGML_SOURCE, PYGGML_BUILD and PATH lead to the step's files.

    Raises:
        PyggmlError: the exit status is the same on the bare pin and on the whole series, a step does not build,
            or the command cannot be started.
    """
    stack = work.stack()
    if not stack:
        raise PyggmlError(f"the series on pin {work.pin.name} is empty: there is nothing to bisect")
    heads = [(work.base, work.series.base), *((commit.id, commit.tree) for commit in stack)]
    probes: list[Probe] = []

    def probe(applied: int) -> int:
        status = run_on_step(command, bench.at(*heads[applied]), cwd).status
        assert status is not None  # noqa: S101 -- it has no time limit
        probes.append(Probe(applied, status))
        report(probes[-1])
        return status

    low, high = 0, len(stack)
    before, after = probe(low), probe(high)
    if before == after:
        raise PyggmlError(
            f"the command exits with {before} both on the bare pin and on all {high} patches",
            "Make it exit with different statuses for good and bad, e.g. with: sh -c '… | grep -q WORD'",
        )
    bracket = bisect(low, high, lambda applied: probe(applied) == before)
    high = bracket.first_bad
    after = next(one.status for one in probes if one.applied == high)
    name = work.series.patches[high - 1].name
    return BisectResult(work.pin.name, high, name, stack[high - 1].subject, before, after, tuple(probes))
