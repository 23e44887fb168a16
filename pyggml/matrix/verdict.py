"""The verdict on a case: what the outcomes of its runs mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyggml.matrix.cases import AT_ONCE, Case, Run
from pyggml.matrix.compare import BOUND, LogitDifference, compare, count_nan
from pyggml.matrix.run_outcome import Assertion, RunOutcome
from pyggml.native.races import Race

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BAD = ("died", "hung", "failed", "nan", "differs", "unordered", "race", "over")
NOT_RUN = ("refused", "unsupported")
GOOD = ("identical", "within", "reference")
VERDICTS = (*BAD, *NOT_RUN, "fixed", *GOOD)
"""The worst first. `differs`: bits that should be the same are not; `unordered`: they depend on when queued work runs,
so a wait is missing; `race`: operations that nothing orders; `over`: above upstream's bound; `refused`: a kind of cache
that cannot be laid out per stream, with a message that says so; `unsupported`: by the model or the build; `fixed`: did
not work in the other build, and may therefore differ from it; `within`: the bound."""


@dataclass(frozen=True)
class LogitPosition:
    """The position of a logit: step (0 is the prompt), sequence, token of the sequence, index in the vocabulary."""

    step: int
    sequence: int
    token: int
    logit: int


@dataclass(frozen=True)
class RowCheck:
    """The comparison of a row's run with another run.

    Attributes:
        against: `cpu`, `device` (the cache there), `one` (tensor for all sequences), `at-once` (the schedule), or
            the other build's variant.
        nmse, ulp, differing: see compare.Comparison; None if there was nothing to compare.
    """

    against: str
    verdict: str
    reason: str = ""
    nmse: float | None = None
    ulp: int | None = None
    differing: int | None = None
    first: LogitPosition | None = None


@dataclass(frozen=True)
class ExpectedVerdict:
    """What a row is known to be.

    Attributes:
        at: upstream's file and line, where known.
        says: text that the row's reason must contain, so that another death is not taken for the known one.
    """

    verdict: str
    reason: str
    at: str = ""
    says: str = ""


@dataclass(frozen=True)
class MatrixRow:
    """A row of the matrix: a case and its result.

    Attributes:
        verdict: one of VERDICTS, the worst of its checks.
        reason: why the row is not good, in a line.
        note: what is special about the configuration.
        sensitivity: NMSE by which a token's logits change on the CPU when all tokens before it change; below
            upstream's bound, even a cache full of garbage would pass.
        seconds: of the run's own process.
        races: operations that nothing orders, if they were looked for.
        expected: what is known of the row; None if it should be right.
    """

    case: Case
    verdict: str
    reason: str
    checks: tuple[RowCheck, ...]
    seconds: float
    assertion: Assertion | None = None
    phase: str = ""
    note: str = ""
    architecture: str | None = None
    sensitivity: float | None = None
    races: tuple[Race, ...] = ()
    expected: ExpectedVerdict | None = None

    @property
    def as_expected(self) -> bool:
        """Whether it is known not to be right, and is as it is known."""
        known = self.expected
        return known is not None and self.verdict == known.verdict and known.says in self.reason

    @property
    def bad(self) -> bool:
        """Whether it is wrong and not known, or no longer as it is known."""
        wrong = self.verdict in BAD if self.expected is None else not self.as_expected
        return self.case.judged and wrong

    @property
    def why(self) -> str:
        """The reason; of a row that is not as expected, also what was expected."""
        if self.expected is None or self.as_expected:
            return self.reason
        known = self.expected
        says = f' with "{known.says}"' if known.verdict == self.verdict else ""
        mine = "right" if self.verdict in (*GOOD, "fixed") else self.reason
        return f'{mine}, but "{known.verdict}" is expected{says}: {known.reason}'

    def check(self, against: str) -> RowCheck | None:
        return next((one for one in self.checks if one.against == against), None)


_LAYOUT = re.compile(r"kv_per_stream|kv-per-stream|per[- ]stream")
"""What llama.cpp says when it refuses a layout."""
_NOT_BUILT = "has no kv_per_stream"
"""What pyggml.llama.params says when the build lacks the patch."""

Load = Callable[["Path"], "Floats"]
Outcomes = Mapping[Run, RunOutcome]


def judge(
    case: Case, outcomes: Outcomes, load: Load, against: str | None = None, bound: float = BOUND
) -> MatrixRow:
    """The row of a case.

    Args:
        outcomes: of all its runs, and of those of the same case in the other build.
        load: reads a file of logits.
        against: the other build.
        bound: largest NMSE against the CPU.
    """
    record = _alone(case, outcomes, load, bound)
    if against is None:
        return record
    other = _alone(case.elsewhere(against), outcomes, load, bound)
    check = _beside(record, other, outcomes, load, against)
    worst = min(record.verdict, check.verdict, key=VERDICTS.index)
    if record.verdict == "reference" or (record.verdict in GOOD and check.verdict not in BAD):
        # A row that is good by itself is judged by the comparison with the other build.
        worst = check.verdict
    reason = record.reason or check.reason
    if check.verdict in BAD and record.verdict not in BAD:
        reason = check.reason
    return MatrixRow(
        case,
        worst,
        reason,
        (*record.checks, check),
        record.seconds,
        record.assertion,
        record.phase,
        record.note,
        record.architecture,
        record.sensitivity,
        record.races,
    )


def _alone(case: Case, outcomes: Outcomes, load: Load, bound: float) -> MatrixRow:
    mine = outcomes[case.run]

    def record(verdict: str, reason: str, *checks: RowCheck) -> MatrixRow:
        about = {**(outcomes[case.cpu or case.run].about or {}), **(mine.about or {})}
        return MatrixRow(
            case,
            verdict,
            reason,
            checks,
            mine.seconds,
            mine.assertion,
            mine.phase if verdict in ("died", "hung", "failed") else "",
            _note(case.run, about.get("kv_heads")),
            about.get("architecture"),
            (outcomes[case.cpu or case.run].about or {}).get("sensitivity"),
            tuple(Race.from_dict(values) for values in about.get("races", ())),
        )

    if mine.logits is None:
        return record(*_ended(case, outcomes))
    logits = load(mine.logits)
    nans, row = count_nan(logits)
    if row is not None:
        step, sequence, token = case.run.work.rows(case.run.streams)[row]
        where = f"step {step}, sequence {sequence}, token {token}"
        return record("nan", f"{nans:,} of {logits.size:,} logits are NaN, the first at {where}")
    checks = [
        _check(case, against, outcomes[other], logits, load, bound)
        for against, other in (
            ("cpu", case.cpu),
            ("device", case.twin),
            ("one", case.one),
            (AT_ONCE, case.at_once),
        )
        if other is not None
    ]
    if not checks:
        return record("reference", "")
    # Being identical to a run that is itself over the bound (which has its own row) is all that can be asked.
    exact = [check for check in checks if check.against != "cpu" and check.verdict != "failed"]
    counting = min(exact, key=lambda check: VERDICTS.index(check.verdict)) if exact else checks[0]
    races = (mine.about or {}).get("races")
    if races and VERDICTS.index("race") < VERDICTS.index(counting.verdict):
        more = f" (and {len(races) - 1} more)" if len(races) > 1 else ""
        return record("race", races[0]["text"] + more, *checks)
    return record(counting.verdict, counting.reason, *checks)


def _ended(case: Case, outcomes: Outcomes) -> tuple[str, str]:
    mine = outcomes[case.run]
    if mine.kind != "refused":
        return mine.kind, mine.reason
    if case.one is not None and _LAYOUT.search(mine.reason):
        return "unsupported" if _NOT_BUILT in mine.reason else "refused", mine.reason
    if mine.supported or any(
        run is not None and outcomes[run].kind == "done" for run in (case.twin, case.one, case.at_once)
    ):
        # It works with the cache on the devices, or in one tensor, so it should work here.
        return "failed", mine.reason
    return "unsupported", mine.reason


def _check(case: Case, against: str, other: RunOutcome, logits: Floats, load: Load, bound: float) -> RowCheck:
    if other.logits is None:
        return RowCheck(against, "failed", f"nothing to compare with: {against}: {other.reason}")
    expected = load(other.logits)
    if expected.shape != logits.shape:
        return RowCheck(against, "failed", f"{logits.shape} logits, {expected.shape} expected")
    difference = compare(expected, logits)
    if against == "cpu":
        verdict = "within" if difference.nmse <= bound else "over"
        reason = (
            ""
            if difference.nmse <= bound
            else f"NMSE {difference.nmse:.1e} against the CPU, {bound:.1g} allowed"
        )
    else:
        differs = "unordered" if against == AT_ONCE else "differs"
        verdict = "identical" if difference.identical else differs
        reason = "" if difference.identical else _difference(case.run, difference, against)
    return _with_numbers(RowCheck(against, verdict, reason), case.run, difference)


def _beside(mine: MatrixRow, other: MatrixRow, outcomes: Outcomes, load: Load, against: str) -> RowCheck:
    here, there = outcomes[mine.case.run], outcomes[other.case.run]
    worked = other.verdict in GOOD
    if here.logits is None or there.logits is None:
        if here.logits is None and mine.case.one is not None and mine.verdict in NOT_RUN:
            return RowCheck(against, mine.verdict, mine.reason)
        if here.logits is None and worked:
            return RowCheck(against, "failed", f"works in {against}, and here: {mine.reason}")
        how = f"{there.kind if there.kind != 'refused' else other.verdict} in {against}: {there.reason}"
        if here.logits is None:
            return RowCheck(against, mine.verdict, mine.reason)
        return RowCheck(against, "fixed", how)
    a, b = load(there.logits), load(here.logits)
    if a.shape != b.shape:
        return RowCheck(against, "failed", f"{b.shape} logits, {a.shape} in {against}")
    difference = compare(a, b)
    if difference.identical:
        verdict, reason = "identical", ""
    elif worked:
        verdict, reason = "differs", _difference(mine.case.run, difference, against)
    else:
        verdict, reason = "fixed", f"{other.verdict} in {against}: {other.reason}"
    return _with_numbers(RowCheck(against, verdict, reason), mine.case.run, difference)


def _with_numbers(check: RowCheck, run: Run, difference: LogitDifference) -> RowCheck:
    return RowCheck(
        check.against,
        check.verdict,
        check.reason,
        difference.nmse,
        difference.ulp,
        difference.differing,
        _position(run, difference.first),
    )


def _position(run: Run, first: tuple[int, int] | None) -> LogitPosition | None:
    if first is None:
        return None
    return LogitPosition(*run.work.rows(run.streams)[first[0]], first[1])


def _difference(run: Run, difference: LogitDifference, against: str) -> str:
    position = _position(run, difference.first)
    assert position is not None  # noqa: S101
    size = "only the sign of zero" if difference.ulp == 0 else f"NMSE {difference.nmse:.1e}"
    if difference.ulp:
        size += f", up to {difference.ulp:,} ULP"
    where = f"step {position.step}, sequence {position.sequence}, token {position.token}"
    return f"{size} against {against}; {difference.differing:,} logits, first at {where}"


def _note(run: Run, heads: int | None) -> str:
    if run.split_mode != "tensor":
        return ""
    if run.split is not None and 0 in run.split:
        return "a device without a share"
    if heads and heads < run.devices:
        return f"{run.devices} devices, {heads} KV head{'s' if heads > 1 else ''}"
    return ""
