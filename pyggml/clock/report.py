"""A prediction in words."""

from __future__ import annotations

import statistics

from pyggml.clock.prediction import ClockStep, Prediction

_MOST_PARTS = 8


def report_lines(prediction: Prediction, costs: str) -> list[str]:
    """What `pyggml run --clock` prints.

    Args:
        costs: their name.
    """
    lines = [f"clock {costs}: a model, not a measurement (docs/clock.md)"]
    groups = prediction.steps_by_tokens()
    for tokens, steps in groups.items():
        seconds = statistics.median(step.seconds for step in steps)
        what = "no tokens" if not tokens else "1 token" if tokens == 1 else f"{tokens} tokens"
        each = f", {_time(seconds / tokens)} a token" if tokens > 1 else ""
        many = f"median of {len(steps)} steps" if len(steps) > 1 else "1 step"
        lines.append(f"{what}: {_time(seconds)}{each} ({many})")
    step: ClockStep | None = None
    where, total = "everything", prediction.seconds
    if groups:
        step = next((steps for tokens, steps in groups.items() if tokens), next(iter(groups.values())))[-1]
        where, total = f"the last step of {step.tokens} token{'s' * (step.tokens != 1)}", step.seconds
    else:
        lines.append(f"no logits were read from a device; all of it: {_time(total)}")
    if total <= 0:
        return lines
    lines.append(f"critical path of {where}, {_time(total)}:")
    shares = prediction.path_shares(step)
    for share in shares[:_MOST_PARTS]:
        lines.append(f"  {share.seconds / total:6.1%}  {share.where}: {share.what} ({share.count:,} times)")
    if len(shares) > _MOST_PARTS:
        rest = sum(share.seconds for share in shares[_MOST_PARTS:])
        lines.append(f"  {rest / total:6.1%}  the rest")
    lines.append("busy in that time:")
    for busy in prediction.busy(step):
        moved = f", {busy.bytes:,} bytes" if busy.bytes else ""
        lines.append(f"  {busy.seconds / total:6.1%}  {busy.lane}{moved}")
    return lines


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"
