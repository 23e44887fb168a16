"""What a call costs: pyggml's raw and typed level beside ctypes, on the active build, in one run.

python tools/bench/bindings.py
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyggml.ggml import Context, cpu, tensor_type
from pyggml.ggml.library import load

MIB = 1 << 20
SIZE = 16 * MIB
NODES = 1000
ROUNDS = 40


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def race(count: int, *works: Callable[[], Any]) -> list[float]:
    """Seconds of the quickest round of each, which does something `count` times; in turn, for the machine's sake."""
    quickest = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for number, work in enumerate(works):
            start = time.perf_counter()
            work()
            quickest[number] = min(quickest[number], (time.perf_counter() - start) / count)
    return quickest


def c_library() -> Any:
    """The same library through ctypes, types declared as one would."""
    c = ctypes.CDLL(str(load().build.bin_dir / "libggml-base.so.0"))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_row_size": (size, [ctypes.c_int, ctypes.c_int64]),
        "ggml_init": (pointer, [InitParams]),
        "ggml_free": (None, [pointer]),
        "ggml_new_tensor_1d": (pointer, [pointer, ctypes.c_int, ctypes.c_int64]),
        "ggml_scale": (pointer, [pointer, pointer, ctypes.c_float]),
        "ggml_new_graph_custom": (pointer, [pointer, size, ctypes.c_bool]),
        "ggml_build_forward_expand": (None, [pointer, pointer]),
        "ggml_backend_tensor_set": (None, [pointer, pointer, size, size]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(c, name)
        function.restype, function.argtypes = result, arguments
    return c


def calls(c: Any) -> list[float]:
    """Seconds of ggml_row_size, two numbers in and one out: raw and ctypes; typed is Tensor.nbytes."""
    kind, count = tensor_type("q8_0"), 10_000
    number, lib, context = kind.number, load().lib, Context()
    tensor = context.tensor("f32", 4096)

    def by_raw() -> None:
        function = lib.ggml_row_size
        for _ in range(count):
            function(number, 4096)

    def by_typed() -> None:
        for _ in range(count):
            tensor.nbytes  # noqa: B018

    def by_ctypes() -> None:
        function = c.ggml_row_size
        for _ in range(count):
            function(number, 4096)

    return race(count, by_raw, by_typed, by_ctypes)


def transfers(c: Any) -> list[float]:
    """Seconds of setting 16 MiB: raw, typed, ctypes, and of np.copyto."""
    context = Context()
    tensor = context.tensor("f32", SIZE // 4)
    context.allocate(cpu())
    data, target = np.random.default_rng(0).random(SIZE // 4, np.float32), np.empty(SIZE // 4, np.float32)
    bindings = load()
    lib, ffi, raw = bindings.lib, bindings.ffi, tensor.raw
    address = int(ffi.cast("uintptr_t", raw))

    def by_ctypes() -> None:
        c.ggml_backend_tensor_set(address, data.ctypes.data, 0, SIZE)

    def by_raw() -> None:
        lib.ggml_backend_tensor_set(raw, ffi.from_buffer(data), 0, SIZE)

    found = race(1, by_raw, lambda: tensor.set(data), by_ctypes, lambda: np.copyto(target, data))
    assert (tensor.view() == data).all()
    return found


def graphs(c: Any) -> list[float]:
    """Seconds of building a graph of 1,000 nodes: raw, typed, ctypes."""
    bindings = load()
    lib, ffi = bindings.lib, bindings.ffi
    overhead = lib.ggml_tensor_overhead()
    size = (NODES + 10) * overhead + lib.ggml_graph_overhead_custom(2 * NODES, False)

    def by_raw() -> None:
        context = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
        tensor = lib.ggml_new_tensor_1d(context, lib.GGML_TYPE_F32, 10)
        for _ in range(NODES):
            tensor = lib.ggml_scale(context, tensor, 2.0)
        graph = lib.ggml_new_graph_custom(context, 2 * NODES, False)
        lib.ggml_build_forward_expand(graph, tensor)
        assert lib.ggml_graph_n_nodes(graph) == NODES
        lib.ggml_free(context)

    def by_typed() -> None:
        with Context(capacity=NODES + 10) as context:
            ops = context.ops
            tensor = context.tensor("f32", 10)
            for _ in range(NODES):
                tensor = ops.scale(tensor, 2.0)
            assert len(context.graph(tensor)) == NODES

    def by_ctypes() -> None:
        context = c.ggml_init(InitParams(size, None, True))
        tensor = c.ggml_new_tensor_1d(context, 0, 10)
        for _ in range(NODES):
            tensor = c.ggml_scale(context, tensor, 2.0)
        graph = c.ggml_new_graph_custom(context, 2 * NODES, False)
        c.ggml_build_forward_expand(graph, tensor)
        c.ggml_free(context)

    return race(1, by_raw, by_typed, by_ctypes)


def main() -> None:
    c = c_library()
    raw, typed, foreign = calls(c)
    print(f"{'':<28}{'raw':>12}{'typed':>12}{'ctypes':>12}{'np.copyto':>12}")
    print(f"{'a trivial call, ns':<28}{raw * 1e9:>12.0f}{typed * 1e9:>12.0f}{foreign * 1e9:>12.0f}")
    moved = transfers(c)
    print(f"{'set 16 MiB, ms':<28}" + "".join(f"{seconds * 1e3:>12.2f}" for seconds in moved))
    print(f"{'set 16 MiB, GB/s':<28}" + "".join(f"{SIZE / seconds / 1e9:>12.1f}" for seconds in moved))
    built = graphs(c)
    print(f"{'a graph of 1,000 nodes, ms':<28}" + "".join(f"{seconds * 1e3:>12.2f}" for seconds in built))
    print(f"raw calls are {foreign / raw:.1f} times as fast as ctypes; goal: 3")


if __name__ == "__main__":
    main()
