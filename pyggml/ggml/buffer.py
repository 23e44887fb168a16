"""Buffers: memory of a device that holds the data of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import BufferType, buffer_type_of
from pyggml.ggml.library import load
from pyggml.ggml.memory import Owner, Stamp
from pyggml.ggml.tensor import Tensor

if TYPE_CHECKING:
    from pyggml.ggml.context import Context
    from pyggml.ggml.split import SplitState

_USAGES = ("any", "weights", "compute")


class Buffer(Owner):
    """Memory of a device (`ggml_backend_buffer_t`), made by Context.allocate or BufferType.buffer.

    Closing it makes its tensors unreadable at once; with numpy views left, the memory itself is freed with the
    last of them.

    Attributes:
        type: the kind of memory.
        split_states: on a MetaDevice, how each tensor (raw) is spread.
    """

    def __init__(
        self, raw: Any, buffer_type: BufferType, states: dict[Any, SplitState] | None = None
    ) -> None:
        self._bindings = load()
        self.raw = raw
        self.type = buffer_type
        self.split_states: dict[Any, SplitState] = states or {}
        size = self._bindings.lib.ggml_backend_buffer_get_size(raw)
        super().__init__(f"buffer {buffer_type.name} of {size} bytes")

    @property
    def size(self) -> int:
        """Bytes; of a MetaDevice's buffer, those of the device that has most."""
        self.check()
        return int(self._bindings.lib.ggml_backend_buffer_get_size(self.raw))

    @property
    def is_host(self) -> bool:
        """Whether the host reads and writes it directly."""
        return self.type.is_host

    @property
    def usage(self) -> str:
        """`any`, `weights` (a scheduler computes where its tensors are) or `compute`."""
        self.check()
        return _USAGES[self._bindings.lib.ggml_backend_buffer_get_usage(self.raw)]

    @usage.setter
    def usage(self, usage: str) -> None:
        if usage not in _USAGES:
            raise PyggmlError(f"a buffer's usage is one of {', '.join(_USAGES)}, not {usage!r:.40}")
        if usage == "compute" and self.type.is_meta:
            # The meta backend would take its tensors for results and look for sources that they have not.
            raise PyggmlError(f"{self.label} is on a MetaDevice and holds given tensors: not for compute")
        with self.using():
            self._bindings.lib.ggml_backend_buffer_set_usage(self.raw, _USAGES.index(usage))

    def clear(self, value: int = 0) -> None:
        """Every byte becomes `value`, 0 to 255."""
        if not isinstance(value, int) or not 0 <= value <= 255:
            raise PyggmlError(f"a byte is 0 to 255, not {value!r:.40}")
        with self.using():
            self._bindings.lib.ggml_backend_buffer_clear(self.raw, value)

    def _release(self) -> None:
        self._bindings.lib.ggml_backend_buffer_free(self.raw)


def empty_buffer(buffer_type: BufferType, size: Any) -> Buffer:
    """See BufferType.buffer."""
    if not isinstance(size, int) or not 1 <= size < 1 << 62:
        raise PyggmlError(f"a buffer of {size!r:.40} bytes is asked for; at least 1 is needed")
    bindings = load()
    if buffer_type.is_meta:
        from pyggml.ggml.meta import check_memory

        check_memory(buffer_type, size)
    raw = bindings.guarded(bindings.lib.ggml_backend_buft_alloc_buffer, buffer_type.raw, size)
    if not raw:
        raise PyggmlError(f"{size} bytes are not to be had in {free_memory(buffer_type)}")
    return Buffer(raw, buffer_type)


def allocate_context(context: Context, place: Any) -> Buffer:
    """See Context.allocate."""
    buffer_type = buffer_type_of(place)
    bindings = load()
    lib = bindings.lib
    with context.using(), context.lease():
        without = [raw for raw in context._all_raw() if not raw.data and not raw.buffer]
        roots = [raw for raw in without if not raw.view_src]
        if not roots:
            raise PyggmlError(f"{context.label} has no tensor that needs memory")
        for raw in (one for one in context._all_raw() if not one.buffer):
            Tensor(context, raw).check_usable()
            if raw.view_src and lib.ggml_backend_buffer_is_meta(raw.view_src.buffer):
                raise PyggmlError(
                    f"{Tensor(context, raw).described()} is a view of a tensor on a MetaDevice",
                    "It gets its memory from the graph that needs it: make it in a context of its own.",
                )
            if raw.view_src and not raw.view_src.buffer and raw.view_src not in roots:
                viewed = Tensor(context, raw.view_src)
                raise PyggmlError(
                    f"{Tensor(context, raw).described()} is a view of {viewed.described()}, "
                    "which is of another context and has no memory yet",
                    "Allocate that context first.",
                )
        states: dict[Any, SplitState] = {}
        if buffer_type.is_meta:
            from pyggml.ggml.meta import allocate_meta

            buffer = allocate_meta(context, buffer_type, roots, without, states)
        else:
            total = lib.ggml_backend_alloc_ctx_tensors_from_buft_size(context.raw, buffer_type.raw)
            raw_buffer = bindings.guarded(
                lib.ggml_backend_alloc_ctx_tensors_from_buft, context.raw, buffer_type.raw
            )
            if not raw_buffer:
                # Upstream frees what it had got but leaves the tensors pointing there.
                for raw in without:
                    raw.data = raw.buffer = bindings.ffi.NULL
                raise PyggmlError(too_little(context, roots, total, buffer_type))
            buffer = Buffer(raw_buffer, buffer_type)
        stamp = Stamp(buffer, keep=True)
        for raw in roots:
            context.memory[raw] = stamp
        return buffer


def too_little(context: Context, roots: list[Any], total: int, buffer_type: BufferType) -> str:
    """The message for an allocation that failed."""
    largest = Tensor(context, max(roots, key=load().lib.ggml_nbytes))
    return (
        f"{total} bytes for {len(roots)} tensors of {context.label} are not to be had in "
        f"{free_memory(buffer_type)}; the largest is {largest.described()} with {largest.nbytes} bytes"
    )


def free_memory(buffer_type: BufferType) -> str:
    """A buffer type and what its device has free, for a message."""
    free, total = buffer_type.device.memory
    limit = buffer_type.max_size
    most = f", buffers of at most {limit}" if limit < 1 << 62 else ""
    return f"{buffer_type.name} ({free} of {total} bytes free{most})"
