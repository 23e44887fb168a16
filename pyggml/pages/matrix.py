"""The matrix as a heat map: models against configurations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyggml.matrix.report import WORDS
from pyggml.matrix.verdict import BAD, NOT_RUN, VERDICTS
from pyggml.pages.render import render

SIGNS = {
    "died": "✗",
    "hung": "…",
    "failed": "!",
    "nan": "N",
    "differs": "≠",
    "unordered": "↯",
    "race": "⇄",
    "over": ">",
    "refused": "⊘",
    "unsupported": "-",
    "fixed": "+",
    "identical": "=",
    "within": "≈",
    "reference": "·",
}
_TONES = {**dict.fromkeys(BAD, "bad"), **dict.fromkeys(NOT_RUN, "warn"), "fixed": "calm", "reference": "none"}


def matrix_page(document: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> bytes:
    """The page of a run of the matrix.

    Args:
        document: what `pyggml matrix --json` writes (`pyggml.matrix.report.document`).
        before: the document of an earlier run; the page then shows what changed since.
    """
    cases = [case for case in document["cases"] if case["judged"]]
    earlier = {_key(case): case["verdict"] for case in (before or {}).get("cases", ()) if case["judged"]}
    names = sorted({case["name"] for case in cases})
    configurations = list(dict.fromkeys(_configuration(case) for case in sorted(cases, key=_order)))
    cells = {}
    for case in cases:
        was = earlier.get(_key(case)) if before is not None else case["verdict"]
        cells[case["name"], _configuration(case)] = {
            "verdict": case["verdict"],
            "sign": SIGNS[case["verdict"]],
            "tone": _tone(case["verdict"]),
            "words": WORDS[case["verdict"]],
            "level": _level(case),
            "was": was,
            "changed": was != case["verdict"],
            "detail": _detail(case),
        }
    counts = Counter(cell["verdict"] for cell in cells.values())
    gone = sorted(f"{name}, {configuration}" for name, configuration in earlier.keys() - cells.keys())
    return render(
        "matrix",
        document=document,
        before=before,
        names=names,
        configurations=configurations,
        cells=cells,
        details=[
            [cell and cell["detail"] for cell in (cells.get((name, words)) for words in configurations)]
            for name in names
        ],
        judged=sum(counts.values()) - counts["reference"],
        gone=gone,
        changed=sum(cell["changed"] for cell in cells.values()),
        legend=[
            {"verdict": verdict, "sign": SIGNS[verdict], "tone": _tone(verdict), "words": WORDS[verdict],
             "count": counts[verdict]}
            for verdict in VERDICTS
            if counts[verdict]
        ],
    )  # fmt: skip


def _tone(verdict: str) -> str:
    return _TONES.get(verdict, "good")


def _key(case: Mapping[str, Any]) -> tuple[str, str]:
    return case["name"], _configuration(case)


def _configuration(case: Mapping[str, Any]) -> str:
    """What tells the rows of a model apart, in words."""
    words = [f"{case['split_mode']} {case['devices']}" if case["devices"] else "cpu"]
    if case["tensor_split"]:
        words.append(":".join(f"{share:g}" for share in case["tensor_split"]))
    if case["devices"]:
        words.append(case["kv"])
    words.append(case["kv_type"])
    if case["streams"] > 1:
        kind = case["layout"] if case["layout"] != "one" else "unified" if case["unified"] else "streams"
        words.append(f"{case['streams']} {kind}")
    if case.get("schedule", "at-once") != "at-once":
        words.append(case["schedule"])
    if case.get("traits"):
        words.append(f"[{case['traits']}]")
    if case["flash_attn"] != "on":
        words.append(f"flash {case['flash_attn']}")
    if case["swa_full"]:
        words.append("full window")
    return " ".join(words)


def _order(case: Mapping[str, Any]) -> tuple[Any, ...]:
    """The CPU first, then few devices before many, one sequence before several."""
    return (
        case["devices"], case["split_mode"], case["tensor_split"] or [], case["kv_type"], case["streams"],
        case["layout"], case["unified"], case["kv"], case.get("schedule", ""), case.get("traits", ""),
        case["flash_attn"], case["swa_full"],
    )  # fmt: skip


def _level(case: Mapping[str, Any]) -> int | None:
    """The distance from the CPU in five steps: 0 the same bits, 4 an NMSE of 1e-3 or more; None if it is not known."""
    values = [check["nmse"] for check in case["checks"] if check["against"] == "cpu"]
    nmse = values[0] if values else None
    if nmse is None:
        return None
    return 0 if nmse == 0 else min(4, max(1, math.floor(math.log10(nmse) / 3) + 5))


def _detail(case: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """What a click shows: names and texts."""
    rows = [("why", case["reason"]), ("when", case["phase"]), ("note", case["note"])]
    if case["assertion"]:
        file = case["assertion"]["file"].replace("\\", "/").rpartition("vendor/llama.cpp/")[2]
        rows.append(("where", f"{file}:{case['assertion']['line']}"))
        rows.append(("assertion", case["assertion"]["text"]))
    for check in case["checks"]:
        if check["nmse"] is None:
            text = check["reason"] or WORDS[check["verdict"]]
        elif not check["differing"]:
            text = "the same bits"
        else:
            text = f"NMSE {check['nmse']:.2e}, {check['differing']:,} logits differ"
        rows.append((f"against {check['against']}", text))
    rows += [("race", race["text"]) for race in case.get("races", ())[:3]]
    rows.append(("time", f"{case['seconds']:.2f} s"))
    return [(name, text) for name, text in rows if text]
