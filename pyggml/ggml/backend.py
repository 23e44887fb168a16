"""Backends: streams of work on a device."""

from __future__ import annotations

from typing import Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import BufferType, Device
from pyggml.ggml.graph import Graph
from pyggml.ggml.handle import Handle
from pyggml.ggml.library import load


class Backend(Handle):
    """A stream of a device (`ggml_backend_t`).

    Attributes:
        device: the device.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        """
        Args:
            threads: of the CPU's computation, 1 to 512; not for other devices.

        Raises:
            PyggmlError: the device cannot be used, or has no threads to set.
        """
        if not isinstance(device, Device):
            raise PyggmlError(f"a backend is of a Device, not of a {type(device).__name__}")
        if threads is not None:
            if device.kind != "cpu":
                raise PyggmlError(f"{device.name} has no threads that can be set here")
            if not isinstance(threads, int) or not 1 <= threads <= 512:
                raise PyggmlError(f"{threads!r} threads are asked for; 1 to 512 are possible")
        self.device = device
        self._bindings = load()
        ffi, lib = self._bindings.ffi, self._bindings.lib
        self.raw: Any = lib.ggml_backend_dev_init(device.raw, ffi.NULL)
        if not self.raw:
            raise PyggmlError(f"the device {device.name} cannot be used", "ggml's log says why.")
        if threads is not None:
            lib.ggml_backend_cpu_set_n_threads(self.raw, threads)
        super().__init__(f"backend {device.name}")

    @property
    def name(self) -> str:
        """What the scheduler calls it."""
        self.check()
        text: bytes = self._bindings.ffi.string(self._bindings.lib.ggml_backend_name(self.raw))
        return text.decode("utf-8", "surrogateescape")

    def supports(self, buffer_type: BufferType) -> bool:
        """Whether it computes on tensors in that kind of memory."""
        self.check()
        return bool(self._bindings.lib.ggml_backend_supports_buft(self.raw, buffer_type.raw))

    def supports_op(self, raw: Any) -> bool:
        """Whether it computes that raw tensor's operation."""
        self.check()
        return bool(self._bindings.lib.ggml_backend_supports_op(self.raw, raw))

    def compute(self, graph: Graph) -> None:
        """Compute a graph all of whose tensors have memory that this backend uses (see Allocator).

        Raises:
            PyggmlError: a tensor has no memory or the wrong one, an operation is not supported, or the device
                failed. What only the data shows ends the process: indices out of range in get_rows and set_rows.
            ClosedError, StaleError: memory of a tensor is gone.
        """
        from pyggml.ggml.placement import check_for_backend, running

        with self.using(), graph.using():
            check_for_backend(graph, self)
            with running(graph):
                status = self._bindings.guarded(
                    self._bindings.lib.ggml_backend_graph_compute, self.raw, graph.raw
                )
        check_status(status, f"{self.label} computing {graph.label}")

    def synchronize(self) -> None:
        """Wait for everything that was begun."""
        with self.using():
            self._bindings.lib.ggml_backend_synchronize(self.raw)

    def _release(self) -> None:
        self._bindings.lib.ggml_backend_free(self.raw)


def check_status(status: int, what: str) -> None:
    """Raise unless an `enum ggml_status` says that all went well."""
    names = {-2: "could not get memory", -1: "failed", 1: "was aborted"}
    if status != 0:
        raise PyggmlError(f"{what} {names.get(status, f'ended with status {status}')}")
