"""Which of the points at which a command can be killed a test takes: a third by default, all in the slow tier."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

SEED = "PYGGML_TESTS_KILL_SEED"
"""Names the third; the header of a run shows it, and --kill-seed sets it."""

every = pytest.mark.parametrize(
    "every", [pytest.param(3, id="third"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def chosen(points: Sequence[int], every: int) -> list[int]:
    """One in `every` of the points."""
    return list(points[int(os.environ[SEED]) % every :: every])
