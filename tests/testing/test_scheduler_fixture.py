"""The fixtures `scheduler` and `tiny_model` as a user's test takes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import ClosedError, Context, Scheduler, VirtualDevices

pytestmark = pytest.mark.native

MADE: list[Scheduler] = []


@pytest.fixture
def two() -> Iterator[VirtualDevices]:
    with VirtualDevices(2) as devices:
        yield devices


def test_a_scheduler_computes_on_its_devices(two: VirtualDevices, scheduler: Any) -> None:
    made = scheduler(*two)
    MADE.append(made)
    assert [one.device.kind for one in made.backends] == ["gpu", "gpu", "cpu"]
    context = Context()
    x = context.tensor("f32", (3, 4), "x").mark_input()
    result = context.ops.scale(x, 2.0).mark_output()
    made.allocate(graph := context.graph(result))
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.set(data)
    made.compute(graph)
    assert (result.numpy() == 2 * data).all()


def test_it_was_closed_with_the_test() -> None:
    if not MADE:
        pytest.skip("the test before it did not run")
    with pytest.raises(ClosedError):
        MADE[0].check()


def test_a_tiny_model_is_a_file(tiny_model: Any) -> None:
    path: Path = tiny_model("llama")
    assert path.read_bytes()[:4] == b"GGUF"
