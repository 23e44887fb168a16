"""`pyggml patch prove`: once up the stack, building each position once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.processes import UserInterruptError
from pyggml.prove.bench import Bench, first_line
from pyggml.prove.proof import NodeResult, run_node
from pyggml.prove.verdicts import BROKEN, PROVEN, UNPROVEN, Verdict, judge_proof
from pyggml.series.stack.series_file import Patch
from pyggml.series.worktree.workspace import Workspace

RunNode = Callable[[str, Mapping[str, str], Path], NodeResult]


@dataclass(frozen=True)
class ProofRow:
    """The verdict on a patch; `seconds` is the time of its tests."""

    number: int
    name: str
    verdict: str
    detail: str
    proof: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class ProofReport:
    """The verdicts on a series."""

    pin: str
    ok: bool
    patches: tuple[ProofRow, ...]


def prove_series(
    work: Workspace,
    bench: Bench,
    wanted: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    run: RunNode = run_node,
) -> ProofReport:
    """Run each patch's proof on the stack up to its parent and up to itself, then all proofs on the top.

    Args:
        wanted: numbers or names of patches; none means all.

    Raises:
        PyggmlError: no such patch, or the series does not apply.
        UserInterruptError: stopped by the user; a build that was stopped is no verdict on a patch.
    """
    series = work.series
    numbers = sorted({series.find(name) for name in wanted}) or [*range(1, len(series.patches) + 1)]
    stack = work.stack()
    heads = [(work.base, series.base), *((commit.id, commit.tree) for commit in stack)]
    tried = [number for number in numbers if series.patches[number - 1].proof]
    results: dict[tuple[int, int], list[NodeResult]] = {}
    broken: dict[int, str] = {}
    seconds: dict[int, float] = {}
    top = len(series.patches)
    for place in sorted({p for n in tried for p in (n - 1, n)} | ({top} if tried else set())):
        say(f"the stack of {place} patches" if place else "the bare pin")
        try:
            env = bench.at(*heads[place])
        except UserInterruptError:
            raise
        except PyggmlError as error:
            broken[place] = first_line(error.message.partition("\n")[2]) or error.message
            continue
        for number in tried:
            if place in (number - 1, number, top):
                patch = series.patches[number - 1]
                results[number, place], spent = _run(patch, env, work.project.root, say, run)
                seconds[number] = seconds.get(number, 0.0) + spent
    rows = []
    for number in numbers:
        patch = series.patches[number - 1]
        judged = _verdict(patch, number, top, results, broken)
        spent = round(seconds.get(number, 0.0), 1)
        rows.append(ProofRow(number, patch.name, judged.verdict, judged.detail, patch.proof, spent))
    return ProofReport(work.pin.name, all(row.verdict == PROVEN for row in rows), tuple(rows))


def _run(
    patch: Patch, env: Mapping[str, str], root: Path, say: Callable[[str], None], run: RunNode
) -> tuple[list[NodeResult], float]:
    started = time.monotonic()
    results = []
    for node in patch.proof:
        result = run(node, env, root)
        say(f"  {patch.name}: {node}: {result.outcome}")
        results.append(result)
    return results, time.monotonic() - started


def _verdict(
    patch: Patch,
    number: int,
    top: int,
    results: Mapping[tuple[int, int], list[NodeResult]],
    broken: Mapping[int, str],
) -> Verdict:
    if not patch.proof:
        return Verdict(UNPROVEN, "no proof is named in series.toml")
    for place, problem in (
        (number, "it does not build"),
        (number - 1, "the patches before it do not build"),
        (top, "the whole series does not build"),
    ):
        if place in broken:
            return Verdict(BROKEN, f"{problem}: {broken[place]}")
    return judge_proof(
        results[number, number - 1], results[number, number], results[number, top], patch.fails_with
    )
