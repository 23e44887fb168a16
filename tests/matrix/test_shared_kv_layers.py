"""Gemma 4, whose last layers use the KV cache of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.builder.record import Build
from pyggml.matrix.run import MatrixResult
from pyggml.models.tiny import tiny_models

pytestmark = pytest.mark.native


def test_gemma4_is_among_the_tiny_models(pyggml_build: Build, tmp_path: Path) -> None:
    (path,) = tiny_models(pyggml_build, "^gemma4$", place=tmp_path).files
    assert path.name == "gemma4-dense.gguf"


@pytest.mark.parametrize("devices", [2, 3])
def test_a_layer_is_split_like_the_owner_of_its_cache(
    devices: int, lively: Callable[[str], Path], matrix: Callable[..., MatrixResult]
) -> None:
    """Which device gets an uneven head depends on the layer, and Q has to follow K and V."""
    result = matrix(lively("^gemma4$"), devices=(devices,))
    rows = {record.case.run.kv: record for record in result.records if record.case.run.devices}
    for kv, verdict in (("device", "within"), ("host", "identical")):
        assert rows[kv].verdict == verdict, rows[kv].reason
