"""The verdict on a patch, from the results of its proof."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyggml.prove.proof import CRASHED, FAILED, MISSING, PASSED, SKIPPED, NodeResult

PROVEN, NOT_NEEDED, WRONG_REASON, BROKEN, UNPROVEN = (
    "proven",
    "not needed any more",
    "wrong reason",
    "broken",
    "unproven",
)


@dataclass(frozen=True)
class Verdict:
    """The verdict and the reason, in a line."""

    verdict: str
    detail: str


def judge_proof(
    without: Sequence[NodeResult],
    with_it: Sequence[NodeResult],
    on_top: Sequence[NodeResult],
    fails_with: str,
) -> Verdict:
    """Every test must fail without the patch, for the stated reason, and pass with it and on the top.

    Args:
        fails_with: the stated reason, a regular expression; without one, any failed assertion or crash counts,
            but not an error in a fixture.
    """
    for where, results in (("with it", with_it), ("on the top", on_top)):
        for result in results:
            if result.outcome == SKIPPED:
                return Verdict(UNPROVEN, f"{result.node} is skipped {where}: {result.summary}")
            if result.outcome == MISSING:
                return Verdict(BROKEN, f"{result.node}: there is no such test")
            if result.outcome != PASSED:
                return Verdict(BROKEN, f"{result.node} {result.outcome} {where}: {result.summary}")
    if without and all(result.outcome == PASSED for result in without):
        return Verdict(NOT_NEEDED, "its proof passes without it")
    for result in without:
        if result.outcome == PASSED:
            return Verdict(WRONG_REASON, f"{result.node} passes without it")
        if result.outcome == SKIPPED:
            return Verdict(UNPROVEN, f"{result.node} is skipped without it: {result.summary}")
        if result.outcome == MISSING:
            return Verdict(BROKEN, f"{result.node}: there is no such test")
        stated = re.search(fails_with, result.text) if fails_with else result.outcome in (FAILED, CRASHED)
        if not stated:
            return Verdict(WRONG_REASON, f"{result.node} {result.outcome} without it: {result.summary}")
    if not fails_with:
        return Verdict(PROVEN, f"no reason is stated (fails-with); it fails with: {without[0].summary}")
    match = re.search(fails_with, without[0].text)
    return Verdict(PROVEN, match[0].splitlines()[0][:120] if match and match[0] else "")
