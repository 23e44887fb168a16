"""Virtual devices, and meta devices whose splits a test names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, MetaDevice, SplitState, Tensor, VirtualDevices

MakeDevices = Callable[..., VirtualDevices]


@pytest.fixture
def devices() -> Iterator[MakeDevices]:
    """`devices(4, memory=…)`: virtual devices until the test ends; a second call replaces the first's."""
    opened: list[VirtualDevices] = []

    def make(count: int | None = None, **settings: Any) -> VirtualDevices:
        for one in opened:
            one.close()
        opened.append(VirtualDevices(count, **settings).open())
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def by_name(devices: VirtualDevices, trust: bool = False, **states: SplitState) -> MetaDevice:
    """A meta device over all of them, tensors spread by name, the others mirrored."""
    mirrored = SplitState.mirrored()
    return MetaDevice(list(devices), lambda tensor: states.get(tensor.name, mirrored), trust_upstream=trust)


def one_tensor(
    devices: VirtualDevices, state: SplitState, shape: tuple[int, ...], kind: str = "f32"
) -> tuple[Tensor, MetaDevice]:
    """A tensor `t` of its own on a meta device."""
    meta = by_name(devices, t=state)
    context = Context("one", capacity=4)
    tensor = context.tensor(kind, shape, "t")
    context.allocate(meta)
    return tensor, meta


def data_for(tensor: Tensor, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random data of a tensor's shape, or of its blocks' bytes."""
    kind = tensor.type
    if kind.dtype is None:
        shape = (*tensor.shape[:-1], kind.row_bytes(tensor.shape[-1]))
        return rng.integers(0, 256, shape, np.uint8)
    if kind.name.startswith("i"):
        return rng.integers(-100, 100, tensor.shape).astype(kind.dtype)
    return rng.standard_normal(tensor.shape).astype(kind.dtype)
