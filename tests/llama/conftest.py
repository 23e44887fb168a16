"""Upstream's tiny models, models of a chosen shape, and contexts that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.builder.record import Build
from pyggml.llama import LlamaContext, Model
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.models.tiny import tiny_models
from pyggml.testing.fixtures import MakeDevices

Floats = npt.NDArray[np.float32]
Open = Callable[..., LlamaContext]


@pytest.fixture(scope="session")
def tiny(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny(arch)`: upstream's tiny random model of an architecture, the dense one if there are two."""
    place = tmp_path_factory.mktemp("tiny")

    def path(arch: str) -> Path:
        return sorted(tiny_models(pyggml_build, arch, place=place).files)[0]

    return path


@pytest.fixture(scope="session")
def made(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`made(heads=3, ...)`: a model of a chosen shape."""
    place = tmp_path_factory.mktemp("made")

    def path(**shape: Any) -> Path:
        wanted = ModelShape(**{"embd": 64, "k_size": 16, "ff": 96, "vocab": 300, **shape})
        target = place / f"{wanted.name}.gguf"
        return target if target.exists() else make_llama(wanted, target)

    return path


@pytest.fixture
def open_context(pyggml_build: Build) -> Iterator[Open]:
    """`open_context(path, devices=(), split_mode=..., n_ctx=...)`: a context with its own model."""
    models = []

    def make(path: Path, devices: Any = (), split_mode: str = "layer", **options: Any) -> LlamaContext:
        models.append(Model.load(path, devices=devices, split_mode=split_mode))
        return LlamaContext(models[-1], **{"n_ctx": 256, "threads": 1, **options})

    yield make
    for model in models:
        model.close()


def placement(place: str, virtual_devices: MakeDevices) -> dict[str, Any]:
    """Options of `open_context` for a place such as cpu, layer-host or tensor-device; two virtual devices."""
    if place == "cpu":
        return {}
    virtual_devices(2)
    mode, _, where = place.partition("-")
    return {"devices": ["VDEV0", "VDEV1"], "split_mode": mode, "offload_kqv": where == "device"}


def nmse(expected: Floats, actual: Floats) -> float:
    """Upstream's measure (tests/test-llama-archs.cpp): squared error divided by the squares of the expected values."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    return float(np.square(actual - expected).sum() / np.square(expected).sum())


def prompt(context: LlamaContext, count: int, seed: int = 1) -> list[int]:
    """Random tokens."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, context.model.n_vocab, count)]
