"""Devices as ggml's registry knows them, their memory (buffer types and buffers) and their backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyggml.errors import PyggmlError
from pyggml.ggml.graph import Graph
from pyggml.ggml.graph_memory import GraphMemory, check_stamps, running, survey
from pyggml.ggml.handle import Handle
from pyggml.ggml.library import load
from pyggml.ggml.mirrored import kernel_refusal, wrong_view
from pyggml.ggml.ownership import Owner, TensorPool
from pyggml.ggml.tensor import Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.native.c_library import (
        ggml_backend_buffer,
        ggml_backend_buffer_type,
        ggml_backend_device,
        ggml_tensor,
    )

_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")
_USAGES = ("any", "weights", "compute")


class Device:
    """A device (`ggml_backend_dev_t`). It is never freed, so it cannot be closed."""

    def __init__(self, raw: ggml_backend_device) -> None:
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<Device {self.name} ({self.kind})>"

    @property
    def name(self) -> str:
        """Its name; a MetaDevice's lists all of its devices."""
        return _text(load().lib.ggml_backend_dev_name(self.raw))

    @property
    def description(self) -> str:
        """What it is, in words."""
        return _text(load().lib.ggml_backend_dev_description(self.raw))

    @property
    def kind(self) -> str:
        """`cpu`, `gpu`, `igpu`, `accel` or `meta`."""
        number: int = load().lib.ggml_backend_dev_type(self.raw)
        return _KINDS[number] if number < len(_KINDS) else str(number)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and in all; 0 if the device does not say."""
        bindings = load()
        numbers = bindings.ffi.new("size_t[2]")
        bindings.lib.ggml_backend_dev_memory(self.raw, numbers, numbers + 1)
        return numbers[0], numbers[1]

    @property
    def buffer_type(self) -> BufferType:
        """Its own memory."""
        return BufferType(load().lib.ggml_backend_dev_buffer_type(self.raw), self)

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory that is fast to transfer, if it offers some."""
        raw = load().lib.ggml_backend_dev_host_buffer_type(self.raw)
        return BufferType(raw, self) if raw else None

    def backend(self, threads: int | None = None) -> Backend:
        """A stream of work on this device; see Backend."""
        return Backend(self, threads)

    def allocate(self, context: TensorPool, buffer_type: BufferType, without: list[ggml_tensor]) -> Buffer:
        """Memory for the tensors of a context that have none; see Context.allocate.

        Args:
            without: raw tensors without memory, views included.
        """
        buffer_type.check_free(0)
        bindings = load()
        total = bindings.lib.ggml_backend_alloc_ctx_tensors_from_buft_size(context.raw, buffer_type.raw)
        raw = bindings.guarded(
            bindings.lib.ggml_backend_alloc_ctx_tensors_from_buft, context.raw, buffer_type.raw
        )
        if not raw:
            # Upstream frees what it had got but leaves the tensors pointing there.
            for one in without:
                one.data = one.buffer = bindings.ffi.NULL
            raise PyggmlError(
                too_little(context, [one for one in without if not one.view_src], total, buffer_type)
            )
        return Buffer(raw, buffer_type)

    def check_free(self, buffer_type: BufferType, size: int, held: int) -> None:
        """See BufferType.check_free."""
        if buffer_type.is_meta:
            raise PyggmlError(f"{buffer_type.name} does not belong to a MetaDevice that pyggml made")


class BufferType:
    """A kind of memory (`ggml_backend_buffer_type_t`).

    Attributes:
        device: its device; kept because memory of a MetaDevice calls the device's split function.
    """

    def __init__(self, raw: ggml_backend_buffer_type, device: Device) -> None:
        self.raw = raw
        self.device = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferType) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return _text(load().lib.ggml_backend_buft_name(self.raw))

    @property
    def alignment(self) -> int:
        """Bytes that tensors are aligned to."""
        return load().lib.ggml_backend_buft_get_alignment(self.raw)

    @property
    def max_size(self) -> int:
        """Bytes of the largest buffer."""
        return load().lib.ggml_backend_buft_get_max_size(self.raw)

    @property
    def is_host(self) -> bool:
        """Whether the host reads and writes it directly."""
        return load().lib.ggml_backend_buft_is_host(self.raw)

    @property
    def is_meta(self) -> bool:
        """Whether it is spread over several devices."""
        return load().lib.ggml_backend_buft_is_meta(self.raw)

    def buffer(self, size: int) -> Buffer:
        """A buffer without tensors.

        Args:
            size: bytes, 1 or more; on a MetaDevice that many on each device.

        Raises:
            PyggmlError: there is not enough memory; the message says how much is free.
        """
        if not isinstance(size, int) or not 1 <= size < 1 << 62:
            raise PyggmlError(f"a buffer of {size!r:.40} bytes is asked for; at least 1 is needed")
        bindings = load()
        self.check_free(size)
        raw = bindings.guarded(bindings.lib.ggml_backend_buft_alloc_buffer, self.raw, size)
        if not raw:
            raise PyggmlError(f"no memory for {size} bytes in {free_memory(self)}")
        return Buffer(raw, self)

    def check_free(self, size: int, held: int = 0) -> None:
        """Raise where upstream asserts that an allocation succeeds, and it would not.

        Args:
            size: bytes on each device of a MetaDevice; other devices report a failure themselves.
            held: bytes that are given back first.

        Raises:
            PyggmlError: with the numbers of the device; or it belongs to a MetaDevice that pyggml did not make.
        """
        self.device.check_free(self, size, held)


class Buffer(Owner):
    """Memory of a device (`ggml_backend_buffer_t`), made by Context.allocate or BufferType.buffer.

    Closing it makes its tensors unreadable at once; the memory itself is freed with the last numpy view of it.

    Attributes:
        type: the kind of memory.
    """

    permanent: ClassVar[bool] = True

    def __init__(self, raw: ggml_backend_buffer, buffer_type: BufferType) -> None:
        self._bindings = load()
        self.raw = raw
        self.type = buffer_type
        size = self._bindings.lib.ggml_backend_buffer_get_size(raw)
        super().__init__(f"buffer {buffer_type.name} of {size} bytes")

    @property
    def size(self) -> int:
        """Bytes; on a MetaDevice, those of the largest share."""
        self.check()
        return self._bindings.lib.ggml_backend_buffer_get_size(self.raw)

    @property
    def is_host(self) -> bool:
        """Whether the host reads and writes it directly."""
        return self.type.is_host

    @property
    def usage(self) -> str:
        """`any`, `weights` (a scheduler computes where they are) or `compute`."""
        self.check()
        return _USAGES[self._bindings.lib.ggml_backend_buffer_get_usage(self.raw)]

    @usage.setter
    def usage(self, usage: str) -> None:
        if usage not in _USAGES:
            raise PyggmlError(f"a buffer's usage is one of {', '.join(_USAGES)}, not {usage!r:.40}")
        if usage == "compute" and self.type.is_meta:
            # The meta backend would take its tensors for results and look for their sources.
            raise PyggmlError(f"{self.label} is on a MetaDevice and holds given tensors, not results")
        with self.using():
            self._bindings.lib.ggml_backend_buffer_set_usage(self.raw, _USAGES.index(usage))

    def clear(self, value: int = 0) -> None:
        """Set every byte to `value`, 0 to 255."""
        if not isinstance(value, int) or not 0 <= value <= 255:
            raise PyggmlError(f"a byte is 0 to 255, not {value!r:.40}")
        with self.using():
            self._bindings.lib.ggml_backend_buffer_clear(self.raw, value)

    def _release(self) -> None:
        self._bindings.lib.ggml_backend_buffer_free(self.raw)


class Backend(Handle):
    """A stream of a device (`ggml_backend_t`).

    Attributes:
        device: the device.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        """
        Args:
            threads: that the CPU computes with, 1 to 512; not for other devices.

        Raises:
            PyggmlError: the device cannot be used, or has no threads to set.
        """
        if not isinstance(device, Device):
            raise PyggmlError(f"a backend is of a Device, not of a {type(device).__name__}")
        if threads is not None:
            if device.kind != "cpu":
                raise PyggmlError(f"the number of threads of {device.name} cannot be set")
            if not isinstance(threads, int) or not 1 <= threads <= 512:
                raise PyggmlError(f"{threads!r} threads are asked for; 1 to 512 are possible")
        self.device = device
        self._bindings = load()
        ffi, lib = self._bindings.ffi, self._bindings.lib
        self.raw = lib.ggml_backend_dev_init(device.raw, ffi.NULL)
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
        return self._bindings.lib.ggml_backend_supports_buft(self.raw, buffer_type.raw)

    def supports_op(self, raw: ggml_tensor) -> bool:
        """Whether it computes that raw tensor's operation."""
        self.check()
        return self._bindings.lib.ggml_backend_supports_op(self.raw, raw)

    def compute(self, graph: Graph) -> None:
        """Compute a graph all of whose tensors have memory that this backend uses (see Allocator).

        Raises:
            PyggmlError: a tensor has no memory or the wrong one, an operation is not supported, or the device
                failed. Wrong data ends the process: indices out of range in get_rows and set_rows.
            ClosedError, StaleError: memory of a tensor is gone.
        """
        with self.using(), graph.using():
            self._check(graph)
            with running(graph):
                status = self._bindings.guarded(
                    self._bindings.lib.ggml_backend_graph_compute, self.raw, graph.raw
                )
        check_status(status, f"{self.label} computing {graph.label}")

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        with self.using():
            self._bindings.lib.ggml_backend_synchronize(self.raw)

    def _check(self, graph: Graph) -> None:
        """Raise unless it can compute all of the graph where its tensors are."""
        if graph.bound is not None:
            graph.bound.check(graph.label)
        if graph.ready_for is self:
            check_stamps(graph)
            return
        memory = survey(graph)
        graph.stamps |= memory.stamps
        if self.device.kind == "meta":
            _check_for_meta(graph, memory)
        bindings = load()
        lib = bindings.lib
        supported: dict[Any, bool] = {}
        for raw in memory.all():
            root = raw.view_src or raw
            if not root.buffer or (not raw.data and not raw.buffer):
                raise PyggmlError(
                    f"{Tensor(graph.context, raw).described()} has no memory yet",
                    "Allocate the graph with an Allocator, or compute it with a Scheduler.",
                )
            kind = root.buffer.buft
            if kind not in supported:
                supported[kind] = lib.ggml_backend_supports_buft(self.raw, kind)
            if not supported[kind]:
                name = bindings.ffi.string(lib.ggml_backend_buft_name(kind)).decode("utf-8", "replace")
                raise PyggmlError(
                    f"{Tensor(graph.context, raw).described()} is in {name}, which {self.label} cannot use",
                    "A Scheduler copies what is elsewhere.",
                )
        for raw in memory.nodes:
            check_op(graph.context, raw, [self])
        graph.ready_for = self

    def _release(self) -> None:
        self._bindings.lib.ggml_backend_free(self.raw)


def devices() -> list[Device]:
    """All devices in ggml's registry, in its order."""
    lib = load().lib
    return [Device(lib.ggml_backend_dev_get(number)) for number in range(lib.ggml_backend_dev_count())]


def device(name: str) -> Device:
    """The device of that name, in upper or lower case.

    Raises:
        PyggmlError: there is none; the message lists the devices.
    """
    raw = load().lib.ggml_backend_dev_by_name(name.encode("utf-8", "surrogateescape"))
    if not raw:
        raise PyggmlError(
            f"there is no device {name!r}",
            f"There are: {', '.join(one.name for one in devices()) or 'none'}.",
        )
    return Device(raw)


def cpu() -> Device:
    """The processor.

    Raises:
        PyggmlError: the build has no CPU backend, or it was not loaded.
    """
    lib = load().lib
    raw = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    if not raw:
        raise PyggmlError("this build has no CPU device", "Load it with: lib.ggml_backend_load_all()")
    return Device(raw)


def buffer_type_of(place: Any) -> BufferType:
    """The buffer type behind a Device, a Backend or a BufferType.

    Raises:
        PyggmlError: it is something else.
        ClosedError: it is a backend that is closed.
    """
    if isinstance(place, BufferType):
        return place
    if isinstance(place, Device):
        return place.buffer_type
    if isinstance(place, Backend):
        place.check()
        return place.device.buffer_type
    raise PyggmlError(
        f"memory is allocated on a Device, Backend or BufferType, not on a {type(place).__name__}"
    )


def check_op(context: TensorPool, raw: ggml_tensor, backends: list[Backend]) -> None:
    """Raise if no backend computes a node's operation, or the CPU's kernel would end the process."""
    tensor = Tensor(context, raw)
    lib = load().lib
    names = ", ".join(one.device.name for one in backends)
    if any(lib.ggml_backend_supports_op(one.raw, raw) for one in backends):
        refusal = kernel_refusal(tensor)
        if refusal is not None:
            of = ", ".join(one.described() for one in tensor.sources)
            raise PyggmlError(f"{tensor.op.lower()} of {of} cannot be computed on {names}: {refusal}")
    elif not is_view_op(tensor.op):
        of = ", ".join(one.described() for one in tensor.sources)
        raise PyggmlError(f"{tensor.op.lower()} of {of} is not supported by {names}")


def check_status(status: int, what: str) -> None:
    """Raise unless an `enum ggml_status` says that all went well."""
    names = {-2: "could not get memory", -1: "failed", 1: "was aborted"}
    if status != 0:
        raise PyggmlError(f"{what} {names.get(status, f'ended with status {status}')}")


def too_little(context: TensorPool, roots: list[ggml_tensor], total: int, buffer_type: BufferType) -> str:
    """The message for an allocation that failed."""
    largest = Tensor(context, max(roots, key=load().lib.ggml_nbytes))
    return (
        f"no memory for the tensors of {context.label} ({total} bytes) in "
        f"{free_memory(buffer_type)}; the largest is {largest.described()} with {largest.nbytes} bytes"
    )


def free_memory(buffer_type: BufferType) -> str:
    """A buffer type and what its device has free, for a message."""
    free, total = buffer_type.device.memory
    limit = buffer_type.max_size
    most = f", buffers of at most {limit}" if limit < 1 << 62 else ""
    return f"{buffer_type.name} ({free} of {total} bytes free{most})"


def _check_for_meta(graph: Graph, memory: GraphMemory) -> None:
    if graph.bound is None:
        raise PyggmlError(
            f"{graph.label} has no memory from an Allocator or Scheduler; a MetaDevice computes no other graphs"
        )
    wrong = wrong_view(memory.nodes)
    for raw in memory.nodes:
        if not raw.buffer:
            wrong = f"has no memory for {Tensor(graph.context, raw).described()}"
    if wrong:
        raise PyggmlError(f"a MetaDevice cannot compute {graph.label}: it {wrong}")


def _text(raw: Any) -> str:
    text: bytes = load().ffi.string(raw)
    return text.decode("utf-8", "surrogateescape")
