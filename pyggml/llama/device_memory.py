"""Whether a model with split mode `tensor` fits into the memory of its devices, with the numbers of each.

With the patch meta-alloc-failure llama.cpp reports an allocation that fails; without it, the meta device asserts
(GGML_ASSERT(bufs.back() != nullptr) and others, ggml/src/ggml-backend-meta.cpp). The sizes here differ from what is
used by the rounding of slices.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.llama.devices import RegisteredDevice
from pyggml.llama.gguf_header import GgufHeader
from pyggml.native.load import Bindings

_CACHE = re.compile(r"^llama_(?:kv_cache|memory_recurrent): size = +([\d.]+) MiB")
_COMPUTE = re.compile(r"^sched_reserve: +Meta\(.*\) compute buffer size = +([\d.]+) MiB")
_MIB = 1 << 20


class DeviceMemory:
    """The memory that a model split by tensor needs on each of its devices.

    Args:
        shares: each device's part of 1.
        params: `struct llama_model_params` that the model is loaded with.
        keep: what those params point to.
    """

    def __init__(
        self,
        bindings: Bindings,
        path: Path,
        devices: Sequence[RegisteredDevice],
        shares: Sequence[float],
        params: Any,
        keep: Sequence[Any],
    ) -> None:
        self._bindings = bindings
        self._path = path
        self._devices = devices
        self._shares = shares
        self._params = params
        self._keep = keep

    def free(self) -> dict[str, int]:
        """Free bytes of each device by name."""
        return {device.name: device.memory()[0] for device in self._devices}

    def check_weights(self) -> None:
        """Raise if a device does not have enough free memory for its slice of the weights.

        Raises:
            PyggmlError: with the numbers of the device.
        """
        with GgufHeader(self._bindings, self._path) as header:
            sizes, heads = header.tensor_sizes(), header.kv_heads()
        tied = "output.weight" not in sizes
        for device, share in zip(self._devices, self._shares, strict=True):
            share_of_heads = _whole_heads(share, heads)
            need = 0.0
            for name, size in sizes.items():
                if name.startswith("token_embd.") and not tied:
                    continue  # on the CPU
                if name.endswith("norm.weight"):
                    need += size
                else:
                    need += size * (share_of_heads if ".attn_" in name else share)
            free, total = device.memory()
            if need > free:
                raise PyggmlError(
                    f"cannot load {self._path}: {device.name} needs {int(need):,} bytes for its slice of the "
                    f"tensors and has {free:,} of {total:,} bytes free",
                    "Use more devices, another tensor_split, or split_mode='layer' with fewer gpu_layers.",
                )

    def check_context(self, context_params: Any, cache_on_devices: bool) -> None:
        """Raise if a device does not have enough free memory for its part of a context.

        Loads the metadata alone and creates a context that allocates nothing: the sizes are in its log.

        Args:
            context_params: `struct llama_context_params`, without callbacks.

        Raises:
            PyggmlError: with the numbers of the device.
        """
        ffi, lib = self._bindings.ffi, self._bindings.lib
        params = ffi.new("struct llama_model_params *", self._params)[0]
        params.no_alloc = True
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        progress = self._bindings.callbacks.make("progress", lambda fraction: True)
        params.progress_callback, params.progress_callback_user_data = progress.pointer, progress.data
        sizes = _LoggedSizes()
        with _sole_handler(sizes):
            model = self._bindings.guarded(lib.llama_model_load_from_file, os.fsencode(self._path), params)
            if model == ffi.NULL:
                return
            try:
                context = self._bindings.guarded(lib.llama_init_from_model, model, context_params)
                heads = int(lib.llama_model_n_head_kv(model)) if lib.llama_model_n_layer(model) else 0
                if context == ffi.NULL:
                    return
                lib.llama_free(context)
            finally:
                lib.llama_model_free(model)
        for device, share in zip(self._devices, self._shares, strict=True):
            cache = int(sizes.cache * _whole_heads(share, heads) * _MIB) if cache_on_devices else 0
            compute = int(sizes.compute * _MIB)
            free, total = device.memory()
            if cache + compute > free:
                raise PyggmlError(
                    f"{device.name} needs {cache:,} bytes for its slice of the cache and {compute:,} to compute, "
                    f"and has {free:,} of {total:,} bytes free",
                    "Use a smaller n_ctx or n_ubatch, or more devices.",
                )


class _LoggedSizes(logging.Handler):
    """The buffer sizes that llama.cpp logs, in MiB."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.cache = 0.0
        self.compute = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if size := _CACHE.match(line):
            self.cache += float(size[1])
        elif size := _COMPUTE.match(line):
            self.compute = max(self.compute, float(size[1]))


@contextlib.contextmanager
def _sole_handler(handler: logging.Handler) -> Iterator[None]:
    """Send llama.cpp's log to `handler` and nowhere else."""
    logger = logging.getLogger("pyggml.llama")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def _whole_heads(share: float, heads: int) -> float:
    """A share rounded up to whole KV heads, as attention is split."""
    return math.ceil(share * heads - 1e-6) / heads if heads else share


def normalized_shares(tensor_split: Sequence[float] | None, count: int) -> list[float]:
    """Each device's part of 1; equal parts by default."""
    if tensor_split is None:
        return [1.0 / count] * count
    shares = [*tensor_split, *[0.0] * (count - len(tensor_split))][:count]
    return [share / sum(shares) for share in shares]
