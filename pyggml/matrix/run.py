"""Runs a grid over models and judges each case as soon as its runs are done."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyggml.builder.record import Build
from pyggml.matrix.cases import Case, Grid, Run, expand
from pyggml.matrix.run_outcome import RunOutcome
from pyggml.matrix.verdict import ExpectedVerdict, MatrixRow, judge
from pyggml.matrix.worker_pool import WorkerPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class MatrixProgress:
    """How many runs are done, and the rows that are new since the last report."""

    done: int
    total: int
    records: tuple[MatrixRow, ...]


@dataclass(frozen=True)
class MatrixResult:
    """All rows, in the order of the grid."""

    grid: Grid
    records: tuple[MatrixRow, ...]
    runs: int
    seconds: float


def run_matrix(
    grid: Grid,
    models: Sequence[Path],
    builds: Mapping[str, Build],
    jobs: int,
    timeout: float,
    report: Callable[[MatrixProgress], None] = lambda progress: None,
    expected: Callable[[Run], ExpectedVerdict | None] = lambda run: None,
    parts: Sequence[Grid] = (),
) -> MatrixResult:
    """Run everything.

    Args:
        builds: those that the grid names, by variant.
        jobs: runs at a time.
        timeout: seconds for each run.
        report: called after every run.
        expected: what is known of a row's run.
        parts: grids to run instead of all combinations of `grid`, which then only says what they share.

    Raises:
        PyggmlError: a build cannot be loaded.
    """
    start = time.monotonic()
    cases = expand(parts or (grid,), models)
    waiting = _Waiting(cases, grid.against, grid.bound, expected)
    runs = waiting.runs
    done = 0
    with tempfile.TemporaryDirectory(prefix="pyggml-matrix-") as scratch:

        def finished(outcome: RunOutcome) -> None:
            nonlocal done
            done += 1
            report(MatrixProgress(done, len(runs), waiting.finish(outcome)))

        with WorkerPool(builds, jobs, timeout, Path(scratch)) as pool:
            pool.submit(runs, finished)
    records = tuple(waiting.records[case] for case in cases)
    return MatrixResult(grid, records, len(runs), time.monotonic() - start)


class _Waiting:
    """Cases whose runs are not all done, and the logits that are still needed."""

    def __init__(
        self,
        cases: Sequence[Case],
        against: str | None,
        bound: float,
        expected: Callable[[Run], ExpectedVerdict | None],
    ) -> None:
        self._against = against
        self._bound = bound
        self._expected = expected
        self._needs: dict[Case, set[Run]] = {}
        for case in cases:
            needed = set(case.runs())
            if against is not None:
                needed |= set(case.elsewhere(against).runs())
            self._needs[case] = needed
        ordered = [run for case in cases for run in self._ordered(case)]
        self.runs = tuple(dict.fromkeys(ordered))
        self._missing = {case: set(needed) for case, needed in self._needs.items()}
        self._uses = Counter(run for needed in self._needs.values() for run in needed)
        self._of_run: dict[Run, list[Case]] = {}
        for case, needed in self._needs.items():
            for run in needed:
                self._of_run.setdefault(run, []).append(case)
        self._outcomes: dict[Run, RunOutcome] = {}
        self.records: dict[Case, MatrixRow] = {}

    def _ordered(self, case: Case) -> tuple[Run, ...]:
        there = () if self._against is None else (case.elsewhere(self._against).run,)
        return (case.run, *there)

    def finish(self, outcome: RunOutcome) -> tuple[MatrixRow, ...]:
        """Take an outcome and give the rows that it completes."""
        self._outcomes[outcome.run] = outcome
        rows = []
        for case in self._of_run[outcome.run]:
            missing = self._missing[case]
            missing.discard(outcome.run)
            if not missing:
                record = replace(
                    judge(case, self._outcomes, _load, self._against, self._bound),
                    expected=self._expected(case.run),
                )
                self.records[case] = record
                rows.append(record)
                self._release(case)
        return tuple(rows)

    def _release(self, case: Case) -> None:
        for run in self._needs[case]:
            self._uses[run] -= 1
            logits = self._outcomes[run].logits
            if not self._uses[run] and logits is not None:
                logits.unlink(missing_ok=True)


def _load(path: Path) -> NDArray[np.float32]:
    import numpy as np

    logits: NDArray[np.float32] = np.load(path)
    return logits
