"""The rows of the matrix, for people and for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyggml.matrix.cases import AT_ONCE
from pyggml.matrix.run import MatrixResult
from pyggml.matrix.verdict import BAD, NOT_RUN, VERDICTS, ExpectedVerdict, MatrixRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WORDS = {
    "died": "died",
    "hung": "hung",
    "failed": "failed",
    "nan": "NaN",
    "differs": "differ",
    "unordered": "depend on the schedule",
    "race": "with a race",
    "over": "over the bound",
    "refused": "refused",
    "unsupported": "unsupported",
    "fixed": "did not work before",
    "identical": "identical",
    "within": "within the bound",
    "reference": "references",
}
_COLOURS = {**dict.fromkeys(BAD, "red"), **dict.fromkeys(NOT_RUN, "yellow"), "fixed": "cyan"}
_MOST_NAMES = 12


def exit_code(records: Iterable[MatrixRow]) -> int:
    """1 if a row is bad, else 0."""
    return int(any(record.bad for record in records))


def ordered(records: Iterable[MatrixRow]) -> list[MatrixRow]:
    """The worst first; rows with the same verdict keep their order."""
    return sorted(records, key=lambda record: VERDICTS.index(record.verdict))


def shown(records: Iterable[MatrixRow], everything: bool) -> list[MatrixRow]:
    """The rows of the table, in order: the bad ones, or with `everything` all.

    A failure on the CPU that repeats on devices for the same reason is one row.
    """
    rows = ordered(records)
    if everything:
        return rows
    failed = {record.case.run: record.reason for record in rows if record.case.cpu is None and record.bad}
    return [
        record
        for record in rows
        if record.bad and (record.case.cpu is None or failed.get(record.case.cpu) != record.reason)
    ]


def line_of(record: MatrixRow) -> str:
    """A row in one line of text."""
    run = record.case.run
    words = f"{run.name} ({run.configuration()}): {WORDS[record.verdict]}"
    reason = " ".join(filter(None, (record.why, _where(record))))
    return f"{words}: {reason}" if reason else words


def print_result(result: MatrixResult, console: Console, everything: bool = False) -> None:
    """Print the table, what is unsupported and why, and the counts."""
    rows = shown(result.records, everything)
    if rows:
        console.print(_table(rows, result.grid.against))
    for verdict in NOT_RUN:
        for reason, names in _not_run(result.records, verdict):
            console.print(f"{len(names)} {verdict}: {reason}: ", style="yellow", end="", markup=False)
            console.print(_listed(names), markup=False, highlight=False)
    for known, records in _expected(result.records):
        names = list(dict.fromkeys(record.case.run.name for record in records))
        at = f" ({known.at})" if known.at else ""
        text = f"{len(records)} {WORDS[known.verdict]} as expected: {known.reason}{at}: "
        console.print(text, style="yellow", end="", markup=False)
        console.print(_listed(names), markup=False, highlight=False)
    if result.grid.left_out:
        numbers = ", ".join(str(streams) for streams in result.grid.left_out)
        console.print(
            f"not run: per-stream with a unified cache of {numbers} sequences, which has one stream",
            style="yellow", markup=False,
        )  # fmt: skip
    numb = _numb(result.records, result.grid.bound)
    if numb:
        depend = "model hardly depends" if len(numb) == 1 else "models hardly depend"
        text = f"{len(numb)} {depend} on earlier tokens, which proves little about the cache: "
        console.print(text, style="yellow", end="", markup=False)
        console.print(_listed(numb), markup=False, highlight=False)
    reasons = Counter(record.reason for record in rows if record.bad and _is_end(record))
    if len(rows) > len(reasons) > 0 and len(rows) > 4:
        for reason, count in reasons.most_common():
            console.print(f"{count} times {reason}", markup=False, highlight=False)
    for configuration, counts in _by_configuration(result.records):
        words = ", ".join(f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict])
        console.print(f"{configuration}: {words}", markup=False, highlight=False)


def summary(result: MatrixResult) -> str:
    """The last line."""
    models = len({record.case.run.model for record in result.records})
    judged = [record for record in result.records if record.case.judged and record.case.cpu is not None]
    bad = sum(record.bad for record in result.records)
    known = sum(len(records) for _, records in _expected(result.records))
    end = _count(bad, "bad row") if bad else "nothing else is wrong" if known else "nothing is wrong"
    if known:
        end = f"{_count(known, 'row')} as expected, {end}"
    if not bad and all(record.verdict in NOT_RUN for record in judged):
        end = "nothing could be compared"
    counts = (_count(models, "model"), _count(len(judged), "row"), _count(result.runs, "run"))
    return f"{', '.join(counts)} in {result.seconds:.0f} s: {end}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def document(result: MatrixResult) -> dict[str, Any]:
    """For `--json`: the options, the counts and every row, the worst first."""
    grid = result.grid
    counts = Counter(record.verdict for record in result.records if record.case.judged)
    return {
        "build": grid.build,
        "against": grid.against,
        "cuda": grid.cuda,
        "work": asdict(grid.work),
        "poison": grid.poison,
        "bound": grid.bound,
        "runs": result.runs,
        "seconds": round(result.seconds, 2),
        "ok": not exit_code(result.records),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "expected": [{**asdict(known), "rows": len(records)} for known, records in _expected(result.records)],
        "cases": [_record(record) for record in ordered(result.records)],
    }


def _record(record: MatrixRow) -> dict[str, Any]:
    run = record.case.run
    return {
        "model": str(run.model),
        "name": run.name,
        "architecture": record.architecture,
        "devices": run.devices,
        "split_mode": run.split_mode,
        "tensor_split": run.split,
        "kv": run.kv,
        "kv_type": run.kv_type,
        "streams": run.streams,
        "unified": run.unified,
        "layout": run.layout,
        "shift": run.work.shift,
        "schedule": run.schedule,
        "traits": run.traits,
        "flash_attn": run.flash_attn,
        "swa_full": run.swa_full,
        "judged": record.case.judged,
        "verdict": record.verdict,
        "bad": record.bad,
        "reason": record.reason,
        "expected": None if record.expected is None else asdict(record.expected),
        "note": record.note,
        "sensitivity": _finite(record.sensitivity),
        "phase": record.phase,
        "assertion": None if record.assertion is None else asdict(record.assertion),
        "checks": [{**asdict(check), "nmse": _finite(check.nmse)} for check in record.checks],
        "races": [asdict(race) for race in record.races],
        "seconds": round(record.seconds, 3),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _table(rows: Sequence[MatrixRow], against: str | None) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    one = any(record.case.one is not None for record in rows)
    scheduled = any(record.case.at_once is not None for record in rows)
    beside = [
        "cpu",
        "device",
        *(["one"] if one else []),
        *([AT_ONCE] if scheduled else []),
        *([against] if against else []),
    ]
    columns = ["model", "configuration", "", "CPU", *beside[1:], "why"]
    for name in columns:
        table.add_column(name, no_wrap=name != "why", overflow="fold")
    for record in rows:
        run = record.case.run
        why = " ".join(filter(None, (record.why, _where(record), record.note and f"[{record.note}]")))
        cells = [run.name, run.configuration(), record.verdict, *(_cell(record, other) for other in beside)]
        texts = [Text(cell) for cell in (*cells, why)]
        texts[2].stylize(_COLOURS.get(record.verdict, "green"))
        table.add_row(*texts)
    return table


def _cell(record: MatrixRow, against: str) -> str:
    check = record.check(against)
    if check is None or check.nmse is None:
        return "" if check is None or check.verdict in BAD else check.verdict
    return "=" if not check.differing else f"{check.nmse:.1e}"


def _where(record: MatrixRow) -> str:
    return f"({record.phase})" if record.phase else ""


def _is_end(record: MatrixRow) -> bool:
    return record.verdict in ("died", "hung", "failed")


def _not_run(records: Iterable[MatrixRow], verdict: str) -> list[tuple[str, list[str]]]:
    """Names by reason, the most frequent first."""
    by_reason: dict[str, dict[str, None]] = {}
    for record in records:
        if record.verdict == verdict:
            run = record.case.run
            reason = record.reason.replace(f" of context of model '{run.model.name}'", "")
            reason = reason.replace(f" '{run.name.rpartition('-')[0]}'", "").replace(str(run.model), "it")
            by_reason.setdefault(reason, {})[run.name] = None
    return sorted(
        ((reason, list(names)) for reason, names in by_reason.items()), key=lambda one: -len(one[1])
    )


def _expected(records: Iterable[MatrixRow]) -> list[tuple[ExpectedVerdict, list[MatrixRow]]]:
    """The rows that are as expected, by what is known of them."""
    rows: dict[ExpectedVerdict, list[MatrixRow]] = {}
    for record in records:
        if record.case.judged and record.expected is not None and record.as_expected:
            rows.setdefault(record.expected, []).append(record)
    return list(rows.items())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _numb(records: Iterable[MatrixRow], bound: float) -> list[str]:
    """Models of compared rows that stay within the bound whatever is in their cache."""
    names = {
        record.case.run.name: None
        for record in records
        if record.case.cpu is not None
        and record.verdict not in NOT_RUN
        and record.sensitivity is not None
        and record.sensitivity < bound
    }
    return list(names)


def _by_configuration(records: Iterable[MatrixRow]) -> list[tuple[str, Counter[str]]]:
    counts: dict[str, Counter[str]] = {}
    for record in records:
        if record.case.judged:
            counts.setdefault(record.case.run.configuration(), Counter())[record.verdict] += 1
    return list(counts.items())
