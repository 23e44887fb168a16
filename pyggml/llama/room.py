"""Whether a model split by tensor fits: the meta device asserts on an allocation that a device refuses.

(GGML_ASSERT(bufs.back() != nullptr) and its like, ggml/src/ggml-backend-meta.cpp. With the other splits
llama.cpp reports the failure itself.) What is computed here is a little more or less than what is used, by
the rounding of slices; an allocation within that margin still ends the process.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pyggml.errors import PyggmlError
from pyggml.llama.devices import Found
from pyggml.llama.header import Header
from pyggml.native.load import Bindings

_CACHE = re.compile(r"^llama_(?:kv_cache|memory_recurrent): size = +([\d.]+) MiB")
_COMPUTE = re.compile(r"^sched_reserve: +Meta\(.*\) compute buffer size = +([\d.]+) MiB")
_MIB = 1 << 20


def check_weights(bindings: Bindings, path: Path, devices: Sequence[Found], shares: Sequence[float]) -> None:
    """Raise if the slices of a model are more than what a device has free.

    Raises:
        PyggmlError: with the numbers of the device.
    """
    with Header(bindings, path) as header:
        sizes, heads = header.tensor_sizes(), header.kv_heads()
    tied = "output.weight" not in sizes
    for device, share in zip(devices, shares, strict=True):
        grouped = math.ceil(share * heads - 1e-6) / heads if heads else share
        need = 0.0
        for name, size in sizes.items():
            if name.startswith("token_embd.") and not tied:
                continue  # on the CPU
            if name.endswith("norm.weight"):
                need += size
            else:
                need += size * (grouped if ".attn_" in name else share)
        free, total = device.memory()
        if need > free:
            raise PyggmlError(
                f"cannot load {path}: {device.name} needs {int(need):,} bytes for its slice of the tensors and "
                f"has {free:,} of {total:,} bytes free",
                "Use more devices, another tensor_split, or split_mode='layer' with fewer gpu_layers.",
            )


class Rehearsal:
    """Collects what a context without memory behind it says it would use, in a `with` block, silently."""

    def __init__(self) -> None:
        self._handler = logging.Handler(logging.INFO)
        self._handler.emit = self._read  # type: ignore[method-assign]
        self._before: list[tuple[logging.Logger, int, bool]] = []
        self.cache = 0.0
        self.compute = 0.0

    def check(self, devices: Sequence[Found], shares: Sequence[float], heads: int, on_devices: bool) -> None:
        """Raise if cache and compute buffers are more than what a device has free.

        Args:
            on_devices: the cache is.

        Raises:
            PyggmlError: with the numbers of the device.
        """
        for device, share in zip(devices, shares, strict=True):
            grouped = math.ceil(share * heads - 1e-6) / heads if heads else share
            cache = int(self.cache * grouped * _MIB) if on_devices else 0
            compute = int(self.compute * _MIB)
            free, total = device.memory()
            if cache + compute > free:
                raise PyggmlError(
                    f"{device.name} needs {cache:,} bytes for its slice of the cache and {compute:,} to compute, "
                    f"and has {free:,} of {total:,} bytes free",
                    "Use a smaller n_ctx or n_ubatch, or more devices.",
                )

    def _read(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if found := _CACHE.match(line):
            self.cache += float(found[1])
        elif found := _COMPUTE.match(line):
            self.compute = max(self.compute, float(found[1]))

    def __enter__(self) -> Self:
        logger = logging.getLogger("pyggml.llama")
        self._before.append((logger, logger.level, logger.propagate))
        self._others = logger.handlers[:]
        logger.handlers[:] = [self._handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for logger, level, propagate in self._before:
            logger.handlers[:] = self._others
            logger.propagate = propagate
            logger.setLevel(level)


def shares_of(values: Sequence[float] | None, count: int) -> list[float]:
    """Each device's part of 1; equal parts by default."""
    if values is None:
        return [1.0 / count] * count
    given = [*values, *[0.0] * (count - len(values))][:count]
    return [value / sum(given) for value in given]
