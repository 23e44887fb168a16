"""What `-sm tensor` cannot compute is refused, with the reason, and not computed wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.matrix.run import MatrixResult

pytestmark = pytest.mark.native


@pytest.mark.parametrize("arch", ["bloom", "jais", "refact"])
def test_alibi_is_refused_on_more_than_one_device(
    arch: str, lively: Callable[[str], Path], matrix: Callable[..., MatrixResult]
) -> None:
    """The slope of a head depends on its number among all heads, and each device counts its own from 0."""
    result = matrix(lively(arch), devices=(1, 2), kv=("device",))
    rows = {record.case.run.devices: record for record in result.records}
    assert rows[1].verdict == "within", rows[1].reason
    assert rows[2].verdict == "unsupported", rows[2].reason
    assert "with ALiBi on more than one device" in rows[2].reason
