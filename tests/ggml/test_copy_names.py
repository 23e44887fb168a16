"""Patch 1: the name of an input copy keeps the source, whatever the backend is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, MetaDevice, Scheduler, SplitState, VirtualDevices, cpu
from pyggml.ggml.library import load

from .conftest import MakeDevices

pytestmark = [pytest.mark.native, pytest.mark.patch("name-truncation")]

LABELS = [*range(1, 121)]
LAYERS = [1, 12, 123]


def source_of(name: bytes) -> bytes | None:
    """What ggml reads as the source of a copy's name."""
    bindings = load()
    parse = getattr(bindings.lib, "ggml_backend_sched_parse_copy_name", None)
    assert parse is not None, "this build has no ggml_backend_sched_parse_copy_name: patch 1 is not in it"
    text, length = bindings.ffi.new("char[]", name), bindings.ffi.new("size_t *")
    found = parse(text, length)
    return None if found == bindings.ffi.NULL else bytes(bindings.ffi.buffer(found, length[0]))


def name_of(backend: bytes, source: bytes, copy: int) -> bytes:
    bindings = load()
    write = getattr(bindings.lib, "ggml_backend_sched_format_copy_name", None)
    assert write is not None, "this build has no ggml_backend_sched_format_copy_name: patch 1 is not in it"
    name = bindings.ffi.new("char[64]")
    write(name, backend, source, copy)
    text: bytes = bindings.ffi.string(name)
    return text


def check_kept(names: list[str], sources: list[str]) -> None:
    """Without pyggml's or ggml's reader: the whole source stands between two `#`."""
    for name, source in zip(names, sources, strict=True):
        assert f"#{source}#" in name, f"the copy is called {name!r} and has lost {source!r}"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("suffix", [b"", b" (view)", b" (view) (permuted)"])
def test_the_source_survives_labels_of_every_length(layer: int, suffix: bytes) -> None:
    source = b"cache_k_l%d%s" % (layer, suffix)
    for length in LABELS:
        for copy in (0, 3, 10):
            name = name_of(b"B" * length, source, copy)
            room = 63 - len(source) - len(b"#%d" % copy) - 1
            assert name == b"B" * min(length, room) + b"#" + source + b"#%d" % copy
            assert source_of(name) == source


def test_a_source_that_fills_the_name_loses_its_end_and_not_the_number() -> None:
    source = bytes(range(ord("a"), ord("z") + 1)) * 3
    assert name_of(b"B" * 20, source, 12) == b"#" + source[:59] + b"#12"
    assert source_of(name_of(b"B" * 20, source, 12)) == source[:59]


@pytest.mark.parametrize(
    ("backend", "source", "name"),
    [
        (b"A", b"a#b#c", b"A#a#b#c#0"),
        (b"A#B", b"x", b"A#x#0"),
        (b"", b"x", b"#x#0"),
        (b"A", b"", b"A##0"),
        (b"A", b"#", b"A###0"),
        (b"A", b"7", b"A#7#0"),
    ],
)
def test_hashes_in_either_part_do_not_confuse_it(backend: bytes, source: bytes, name: bytes) -> None:
    assert name_of(backend, source, 0) == name
    assert source_of(name) == source


@pytest.mark.parametrize(
    "name", [b"", b"x", b"A#x", b"A#x#", b"A#x#1a", b"A#x#-1", b"cache_k_l1 (view)", b"#"]
)
def test_other_names_are_no_copies(name: bytes) -> None:
    assert source_of(name) is None


def copies_of(vdev: VirtualDevices, meta: bool, sources: list[str]) -> list[str]:
    """The names under which a real scheduler copies tensors of the host to a device."""
    mirrored = SplitState.mirrored()
    device = MetaDevice(list(vdev), lambda tensor: mirrored) if meta else vdev[0]
    backend, host, context = device.backend(), Context(), Context()
    scheduler = Scheduler([backend, cpu().backend()])
    tensors = [host.tensor("f32", 4, name) for name in sources]
    host.allocate(cpu())
    for tensor in tensors:
        tensor.set(np.ones(4, np.float32))
        made = context.ops.scale(tensor, 1.0)
        scheduler.assign(made, backend)
    graph = context.graph()
    for made in context.tensors():
        graph.add(made)
    scheduler.compute(graph)
    return [copy.name for split in scheduler.splits for copy in split.inputs]


@pytest.mark.parametrize(
    "length", [1, 2, 30, 43, 44, 45, 46, 47, 48, 49, 60, 61, 62, 63, 64, 65, 90, 119, 120]
)
def test_a_schedulers_copies_name_their_sources_on_devices_of_any_name(
    length: int, devices: MakeDevices
) -> None:
    sources = [f"cache_k_l{layer}" for layer in LAYERS]
    names = copies_of(devices(names=("D" * length,)), False, sources)
    check_kept(names, sources)
    assert [source_of(name.encode()) for name in names] == [name.encode() for name in sources]
    assert [name[0] for name in names] == ["D"] * 3


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_a_meta_devices_copies_name_their_sources(count: int, devices: MakeDevices) -> None:
    sources = [f"cache_v_l{layer} (view) (permuted)"[:60] for layer in LAYERS]
    names = copies_of(devices(count), True, sources)
    check_kept(names, sources)
    assert [source_of(name.encode()) for name in names] == [name.encode() for name in sources]
    assert all(name.startswith("Meta(VDEV0") for name in names)


def test_all_sources_of_many_splits_are_told_apart(devices: MakeDevices, rng: Any) -> None:
    sources = [f"cache_k_l{layer}" for layer in range(128)]
    names = copies_of(devices(8), True, sources)
    check_kept(names, sources)
    assert [(source_of(name.encode()) or b"").decode() for name in names] == sources
