"""Collects the output of gpu_check.sh's steps in one JSON document: python tools/gpu_report.py STEPS SECONDS FILE.

Standard library only. `ratios` compares the rates with the patches to those without, after divided by before:
tokens per second of llama-bench (prompt and generation) and of llama-batched-bench (all streams together).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TAIL = 2000
"""Characters kept of the log of a failed step."""
_PERPLEXITY = re.compile(r"Final estimate: PPL = ([0-9.]+|nan|-nan) \+/- ([0-9.]+|nan|-nan)")


def main(steps: Path, seconds: int, file: Path) -> None:
    rows = [row_of(steps, *line.split("\t")) for line in read(steps / "steps.tsv").splitlines()]
    documents = {
        path.name.partition(".")[0]: loaded
        for path in sorted(steps.glob("*.json*"))
        if (loaded := load(path)) is not None
    }
    document = {
        "seconds": seconds,
        "ok": bool(rows)
        and all(
            row["status"] == 0 or row["step"].endswith(("-before.json", "-before.jsonl")) for row in rows
        ),
        "gpu": read(steps / "gpu.log").splitlines()[1:],
        "steps": rows,
        "perplexity": {
            path.stem: value for path in sorted(steps.glob("perplexity-*.log")) if (value := perplexity(path))
        },
        "ratios": ratios(documents),
        "documents": documents,
    }
    file.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    for name, figures in document["ratios"].items():
        print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in figures.items()))
    failed = [row["step"] for row in rows if row["status"] != 0]
    print(
        f"{file}: {len(rows)} steps in {seconds} s, "
        + (f"failed: {', '.join(failed)}" if failed else "all passed")
    )


def row_of(steps: Path, name: str, status: str, seconds: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": name,
        "status": int(status) if status.isdigit() else status,
        "seconds": int(seconds),
    }
    if row["status"] != 0:
        row["tail"] = read(steps / f"{name.partition('.json')[0]}.log")[-TAIL:]
    return row


def perplexity(log: Path) -> dict[str, str] | None:
    estimate = _PERPLEXITY.search(read(log))
    return {"ppl": estimate[1], "error": estimate[2]} if estimate else None


def ratios(documents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """After divided by before, for every `X-after` with an `X-before`."""
    table = {}
    for name, after in documents.items():
        before = documents.get(name.removesuffix("-after") + "-before")
        if name.endswith("-after"):
            old = rates(before)
            table[name.removesuffix("-after")] = {
                what: round(rate / old[what], 3) if old.get(what) else f"{rate:.1f} t/s, before: nothing"
                for what, rate in rates(after).items()
            }
    return table


def rates(document: Any) -> dict[str, float]:
    """Tokens per second of each kind of run."""
    speeds = {}
    for row in document if isinstance(document, list) else []:
        if "avg_ts" in row:
            speeds[f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"] = float(row["avg_ts"])
        elif "speed_tg" in row:
            speeds[f"{row['pl']} streams"] = float(row["speed_tg"])
    return speeds


def load(path: Path) -> Any:
    """The JSON document in a file, or the list of those in a .jsonl file; None if there is none."""
    text = read(path)
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return json.loads(text[min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0) :])
    except ValueError:
        return None


def read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
