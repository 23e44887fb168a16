"""The machine of test_fuzz.py: `fuzz_child.py SEED EXAMPLES JOURNAL`."""

from __future__ import annotations

import faulthandler
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pyggml.errors import PyggmlError
from pyggml.ggml import (
    Allocator,
    Context,
    MetaDevice,
    Scheduler,
    SplitState,
    Tensor,
    VirtualDevices,
    cpu,
)

JOURNAL: Any = None
DONE: Counter[str] = Counter()
# From the latest handle backwards, so that sequences that make sense come up.
pick = st.integers(0, 3) | st.integers(0, 1 << 30)
SHAPES = [[4], [4], [3, 4], [3, 4], [4, 4], [2, 3, 4], [1, 2, 3, 4], [32], [2, 64]]
lengths = st.sampled_from(SHAPES).map(list) | st.lists(st.integers(-1, 9), min_size=0, max_size=5)
numbers = st.integers(-3, 70)
kinds = st.sampled_from(["f32", "f32", "f32", "f16", "i32", "i64", "q8_0", "q4_0", "nothing"])


class Handles(RuleBasedStateMachine):
    """Every rule picks from all handles ever made, closed ones as well."""

    @initialize(
        count=st.integers(1, 3), memory=st.sampled_from([1 << 12, 1 << 16, 1 << 24]), poison=st.booleans()
    )
    def begin(self, count: int, memory: int, poison: bool) -> None:
        JOURNAL.seek(0)
        JOURNAL.truncate()
        self.note("begin", count, memory, poison)
        self.vdev = VirtualDevices(count, memory=memory, poison=poison).open()
        self.contexts: list[Context] = [Context(capacity=200)]
        self.tensors: list[Tensor] = []
        self.graphs: list[Any] = []
        self.buffers: list[Any] = []
        self.views: list[Any] = []
        self.backends: list[Any] = [cpu().backend(threads=1)]
        self.runners: list[Any] = []
        self.places: list[Any] = [cpu(), *self.vdev]
        for kind, shape in (("f32", (4, 4)), ("f32", (3, 4)), ("f32", (3, 4)), ("q8_0", (2, 32))):
            self.tensors.append(self.contexts[0].tensor(kind, shape))
        self.meta(0, [1], False)
        for place in [*self.vdev, self.places[-1]]:
            self.backends.append(place.backend())
        self.scheduler([0, 1, 2], False)

    def teardown(self) -> None:
        if hasattr(self, "vdev"):
            self.vdev.close()

    def note(self, *words: Any) -> None:
        JOURNAL.write(" ".join(map(str, words)) + "\n")
        JOURNAL.flush()

    def attempt(self, what: str, function: Callable[[], Any], keep: list[Any] | None = None) -> Any:
        """Whatever happens must be a value or a PyggmlError."""
        self.note(what)
        try:
            made = function()
        except PyggmlError as error:
            self.note("   ", type(error).__name__, str(error).split("\n")[0][:100])
            return None
        DONE[re.sub(r"<.*>|\W.*", "", what) or what.rpartition(">.")[2].partition("(")[0]] += 1
        if keep is not None:
            keep.append(made)
        return made

    def one(self, handles: list[Any], number: int) -> Any:
        return handles[-1 - number % len(handles)] if handles else None

    @rule(capacity=st.sampled_from([1, 5, 200]))
    def context(self, capacity: int) -> None:
        self.attempt(f"Context({capacity})", lambda: Context(capacity=capacity), self.contexts)

    @rule(at=pick, kind=kinds, shape=lengths)
    def tensor(self, at: int, kind: str, shape: list[int]) -> None:
        if "q" in kind and shape:
            shape[-1] *= 32
        name = f"t{len(self.tensors)}"
        context = self.one(self.contexts, at)
        self.attempt(
            f"{context}.tensor({kind}, {shape})", lambda: context.tensor(kind, shape, name), self.tensors
        )

    @rule(at=pick, where=pick)
    def allocate(self, at: int, where: int) -> None:
        context, place = self.one(self.contexts, at), self.one(self.places, where)
        self.attempt(f"{context}.allocate({place})", lambda: context.allocate(place), self.buffers)

    @rule(
        axis=st.integers(-1, 4),
        share=st.lists(st.integers(-1, 6), min_size=1, max_size=4),
        trust=st.booleans(),
    )
    def meta(self, axis: int, share: list[int], trust: bool) -> None:
        def split(tensor: Tensor) -> SplitState:
            if axis == -1:
                return SplitState.mirrored()
            if sum(share) % 5 == 0:
                return SplitState.along(axis, share)
            return SplitState.even(tensor, axis, len(self.vdev), tensor.type.block)

        self.attempt(
            f"MetaDevice({axis}, {share}, {trust})",
            lambda: MetaDevice(list(self.vdev), split, trust_upstream=trust),
            self.places,
        )

    @rule(where=pick)
    def backend(self, where: int) -> None:
        place = self.one(self.places, where)
        self.attempt(f"backend({place})", place.backend, self.backends)

    @rule(a=pick, b=pick, name=st.sampled_from(["mul_mat", "add", "mul", "cpy", "get_rows", "reshape"]))
    def binary(self, a: int, b: int, name: str) -> None:
        x, y = self.one(self.tensors, a), self.one(self.tensors, b)
        if x is None or (name == "get_rows"):
            # Indices are data: what is in them is the user's business.
            return
        self.attempt(f"{name}({x}, {y})", lambda: getattr(x.context.ops, name)(x, y), self.tensors)

    @rule(
        a=pick,
        name=st.sampled_from(["scale", "rms_norm", "silu", "cont", "transpose", "sum_rows", "soft_max"]),
    )
    def unary(self, a: int, name: str) -> None:
        x = self.one(self.tensors, a)
        if x is not None:
            more = (2.0,) if name in ("scale", "rms_norm") else ()
            self.attempt(f"{name}({x})", lambda: getattr(x.context.ops, name)(x, *more), self.tensors)

    @rule(a=pick, name=st.sampled_from(["view_1d", "view_2d", "reshape_2d", "permute", "cont_2d"]), more=st.lists(
        numbers, min_size=2, max_size=5))  # fmt: skip
    def shaped(self, a: int, name: str, more: list[int]) -> None:
        x = self.one(self.tensors, a)
        if x is not None:
            self.attempt(f"{name}({x}, {more})", lambda: getattr(x.context.ops, name)(x, *more), self.tensors)

    @rule(a=pick, name=st.integers(0, 1 << 30), more=st.lists(pick, min_size=6, max_size=6), small=numbers)
    def any_operation(self, a: int, name: int, more: list[int], small: int) -> None:
        """Built only: what a kernel asserts of it is not known for all of them."""
        x = self.one(self.tensors, a)
        if x is None:
            return
        ops = x.context.ops
        operation = self.one(sorted(dir(ops)), name)
        count = 1 + sum(one >= 0 for one in more[: small % 6])
        values = [self.one(self.tensors, one) if one % 3 else small for one in more]
        self.attempt(
            f"{operation}({x}, {values[:count]})", lambda: getattr(ops, operation)(x, *values[:count])
        )

    @rule(a=pick, offset=numbers)
    def window(self, a: int, offset: int) -> None:
        x = self.one(self.tensors, a)
        if x is not None:
            self.attempt(f"window({x})", lambda: x.context.ops.view_1d(x, 2, offset * 4), self.tensors)

    @rule(a=pick, b=pick, size=st.sampled_from([None, None, 1, 4]))
    def graph(self, a: int, b: int, size: int | None) -> None:
        x, y = self.one(self.tensors, a), self.one(self.tensors, b)
        if x is not None:
            self.attempt(f"graph({x}, {y})", lambda: x.context.graph(x, y, size=size), self.graphs)

    @rule(picks=st.lists(pick, min_size=0, max_size=3), parallel=st.booleans())
    def scheduler(self, picks: list[int], parallel: bool) -> None:
        backends = [*dict.fromkeys(self.one(self.backends, number) for number in picks), self.backends[0]]
        self.attempt(
            f"Scheduler({backends})",
            lambda: Scheduler(list(dict.fromkeys(backends)), graph_size=64, parallel=parallel),
            self.runners,
        )

    @rule(where=pick)
    def allocator(self, where: int) -> None:
        place = self.one(self.places, where)
        self.attempt(f"Allocator({place})", lambda: Allocator(place), self.runners)

    @rule(
        at=pick,
        which=pick,
        what=st.sampled_from(["allocate", "compute", "compute", "reserve", "reset", "splits"]),
    )
    def run_graph(self, at: int, which: int, what: str) -> None:
        runner, graph = self.one(self.runners, at), self.one(self.graphs, which)
        if runner is None or graph is None or not hasattr(type(runner), what):
            return
        if what == "splits":
            self.attempt(f"{runner}.splits", lambda: runner.splits)
        elif what == "reset":
            self.attempt(f"{runner}.reset()", runner.reset)
        else:
            self.attempt(f"{runner}.{what}({graph})", lambda: getattr(runner, what)(graph))

    @rule(at=pick, a=pick, data=st.booleans(), closed=st.booleans())
    def whole(self, at: int, a: int, data: bool, closed: bool) -> None:
        """What a program would do, with whatever is at hand."""
        runner, x = self.one(self.runners, at), self.one(self.tensors, a)
        if not isinstance(runner, Scheduler) or x is None:
            return

        def look(tensor: Tensor, ask: bool) -> bool:
            return ask or tensor.read().size > 0

        self.attempt("whole: mark", x.mark_input)
        made = self.attempt("whole: scale", lambda: x.context.ops.scale(x, 2.0), self.tensors)
        graph = made and self.attempt("whole: graph", lambda: x.context.graph(made, x), self.graphs)
        if graph is not None:
            self.attempt(f"whole: {runner}.allocate {x}", lambda: runner.allocate(graph))
            if data:
                self.attempt("whole: set", lambda: x.set(np.ones(x.shape, np.float32)))
            if closed:
                self.attempt("whole: on_eval", lambda: runner.on_eval(look))
            self.attempt("whole: compute", lambda: runner.compute(graph))
            self.attempt("whole: compute", lambda: runner.compute(graph))
            self.attempt("whole: numpy", made.numpy)
            self.attempt("whole: on_eval", lambda: runner.on_eval(None))

    @rule(at=pick, which=pick)
    def compute(self, at: int, which: int) -> None:
        backend, graph = self.one(self.backends, at), self.one(self.graphs, which)
        if graph is not None:
            self.attempt(f"{backend}.compute({graph})", lambda: backend.compute(graph))

    @rule(at=pick, a=pick, b=pick)
    def assign(self, at: int, a: int, b: int) -> None:
        runner, x, backend = self.one(self.runners, at), self.one(self.tensors, a), self.one(self.backends, b)
        if isinstance(runner, Scheduler) and x is not None:
            self.attempt(f"{runner}.assign({x}, {backend})", lambda: runner.assign(x, backend))
            self.attempt(f"{runner}.assignment({x})", lambda: runner.assignment(x))

    @rule(
        a=pick, what=st.sampled_from(["zeros", "numpy", "read", "view", "wrong", "fill", "sources", "floats"])
    )
    def data(self, a: int, what: str) -> None:
        x = self.one(self.tensors, a)
        if x is None:
            return
        calls: dict[str, Callable[[], Any]] = {
            "zeros": lambda: x.set(np.zeros_like(x.numpy())),
            "numpy": x.numpy,
            "read": lambda: x.read(4, 8),
            "view": lambda: self.views.append(x.view()),
            "wrong": lambda: x.set(np.zeros((2, 2), np.float32)),
            "fill": lambda: x.fill(0),
            "sources": lambda: x.sources,
            "floats": x.dequantized,
        }
        self.attempt(f"{what}({x})", calls[what])

    @rule(a=pick)
    def mark(self, a: int) -> None:
        x = self.one(self.tensors, a)
        if x is not None:
            self.attempt(f"mark({x})", x.mark_input if a % 2 else x.mark_output)

    @rule(a=pick)
    def touch_views(self, a: int) -> None:
        view = self.one(self.views, a)
        if view is not None:
            view[...] = 1
            if a % 3 == 0:
                self.views.remove(view) if len(self.views) == 1 else self.views.pop()

    @rule(which=st.sampled_from(["contexts", "buffers", "graphs", "runners", "backends"]), at=pick)
    def close(self, which: str, at: int) -> None:
        handle = self.one(getattr(self, which), at)
        if handle is not None and handle is not self.backends[0]:
            self.attempt(f"close {handle}", handle.close)
            self.attempt(f"close {handle}", handle.close)

    @rule(which=st.sampled_from(["contexts", "buffers", "graphs", "runners", "tensors"]), at=pick)
    def drop(self, which: str, at: int) -> None:
        handles = getattr(self, which)
        if len(handles) > 1:
            self.note(f"drop {which} {at % len(handles)}")
            handles.pop(at % len(handles))

    @rule(fault=st.sampled_from(["compute:nth=1", "copy:nth=1", "set:nth=1,byte=1,mask=1"]))
    def fault(self, fault: str) -> None:
        self.attempt(f"fault {fault}", lambda: self.vdev.fault(fault))


def main() -> None:
    global JOURNAL
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    number, examples = int(sys.argv[1]), int(sys.argv[2])
    JOURNAL = Path(sys.argv[3]).open("w", encoding="utf-8")  # noqa: SIM115
    every = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Handles), settings=every)
    print(*(f"{what} {count}" for what, count in sorted(DONE.items())), sep="\n")


if __name__ == "__main__":
    main()
