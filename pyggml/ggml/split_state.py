"""How a given tensor is split over the devices of a MetaDevice."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyggml.errors import PyggmlError
from pyggml.ggml.types import TensorType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_SEGMENTS = 16
"""Of a split state: ggml_backend_meta_buffer_init_tensor_impl asserts it."""


class Shaped(Protocol):
    """What a split state needs to know of a Tensor."""

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """ggml's lengths."""

    @property
    def type(self) -> TensorType:
        """The type of its elements."""

    def described(self) -> str:
        """What messages call it."""


class Axis(enum.IntEnum):
    """`enum ggml_backend_meta_split_axis`; the first four are those of ne, innermost first."""

    NE0 = 0
    NE1 = 1
    NE2 = 2
    NE3 = 3
    MIRRORED = 10
    PARTIAL = 11


@dataclass(frozen=True, eq=False)
class SplitState:
    """`struct ggml_backend_meta_split_state`.

    Attributes:
        axis: 0 to 3 for a slice along that axis of ne (numpy's last axis is 0), Axis.MIRRORED for a full copy on
            every device, Axis.PARTIAL for a sum whose summands are on the devices.
        segments: elements along the axis, an integer array of (segments, devices); one row unless the axis holds
            several parts side by side, each of which is split (a fused QKV). None if nothing is split.
        repeats: how often each segment is repeated, in upstream's order: segment, repeat, device. The elements
            times repeats of all segments and devices add up to the length of the axis.
    """

    axis: int
    segments: npt.NDArray[np.integer[Any]] | None = None
    repeats: tuple[int, ...] = ()

    @classmethod
    def mirrored(cls) -> SplitState:
        """A full copy on every device."""
        return cls(Axis.MIRRORED)

    @classmethod
    def partial(cls) -> SplitState:
        """A summand on every device; what is written is divided by the number of devices."""
        return cls(Axis.PARTIAL)

    @classmethod
    def along(cls, axis: int, *lengths: Sequence[int], repeats: Sequence[int] = ()) -> SplitState:
        """Slices along an axis of ne: for every segment, its lengths on the devices."""
        import numpy as np

        return cls(axis, np.array(lengths, np.int64), tuple(repeats))

    @classmethod
    def even(cls, tensor: Shaped, axis: int, devices: int, granularity: int = 1) -> SplitState:
        """Slices as equal as possible, in multiples of `granularity`; the first devices get the remainder.

        Raises:
            PyggmlError: there is no such axis, or its length is not a multiple of the granularity.
        """
        if axis not in range(4):
            raise PyggmlError(f"{tensor.described()} has axes 0 to 3 of ne, not {axis!r:.40}")
        length = tensor.ne[axis]
        if granularity < 1 or length % granularity:
            raise PyggmlError(
                f"{tensor.described()}: ne[{axis}] = {length} is not a multiple of {granularity!r:.40}"
            )
        share, over = divmod(length // granularity, devices)
        return cls.along(axis, [(share + (number < over)) * granularity for number in range(devices)])

    @property
    def is_split(self) -> bool:
        """Whether every device has a slice of its own."""
        return self.axis in range(4)

    @property
    def plain(self) -> bool:
        """Whether each device has one slice (upstream: n_segments == 1 and nr[0] == 1)."""
        return len(self.segments if self.segments is not None else ()) <= 1 and self.counts() in ((), (1,))

    def counts(self) -> tuple[int, ...]:
        """The repeats of each segment."""
        return self.repeats or (1,) * len(self.segments if self.segments is not None else ())

    def lengths(self, devices: int) -> list[int] | None:
        """Elements of the axis that each device has; None if each has all."""
        if not self.is_split or self.segments is None:
            return None
        totals = [0] * devices
        for row, count in zip(self.segments.tolist(), self.counts(), strict=True):
            totals = [total + length * count for total, length in zip(totals, row, strict=True)]
        return totals

    def check(self, tensor: Shaped, devices: int) -> None:
        """Raise unless it is a valid split of that tensor over that many devices.

        Raises:
            PyggmlError: an axis that does not exist, wrong counts, negative lengths, lengths that do not add up
                to ne, or that cut a block of a quantised type; the message names the tensor and the numbers.
        """
        import numpy as np

        what = f"the split of {tensor.described()}"
        if isinstance(self.axis, bool) or self.axis not in list(Axis):
            raise PyggmlError(
                f"{what} is along axis {self.axis!r:.40}; 0 to 3, Axis.MIRRORED and Axis.PARTIAL are possible"
            )
        if not self.is_split:
            if self.segments is not None or self.repeats:
                raise PyggmlError(f"{what} is {Axis(self.axis).name}, which has no segments")
            return
        segments = self.segments
        if not isinstance(segments, np.ndarray) or segments.dtype.kind not in "iu" or segments.ndim != 2:
            raise PyggmlError(f"{what} needs a 2-D integer array of segments, not {segments!r:.80}")
        if not 1 <= len(segments) <= MOST_SEGMENTS or segments.shape[1] != devices:
            raise PyggmlError(
                f"{what} has segments of shape {segments.shape}; 1 to {MOST_SEGMENTS} segments on {devices} "
                "devices are needed"
            )
        counts = self.counts()
        if len(counts) != len(segments) or any(
            not isinstance(count, int) or not 1 <= count < 1 << 31 for count in counts
        ):
            raise PyggmlError(f"{what} has {len(segments)} segments and the repeats {counts!r:.80}")
        rows = segments.tolist()
        if any(length < 0 for row in rows for length in row):
            raise PyggmlError(f"{what} has a negative length: {rows}")
        total = sum(sum(row) * count for row, count in zip(rows, counts, strict=True))
        if total != tensor.ne[self.axis]:
            times = f" times {list(counts)}" if self.repeats else ""
            raise PyggmlError(
                f"{what} adds up to {total}, not to ne[{int(self.axis)}] = {tensor.ne[self.axis]}: {rows}{times}"
            )
        block = tensor.type.block
        if self.axis == 0 and any(length % block for row in rows for length in row):
            raise PyggmlError(f"{what} cuts blocks of {block} elements: {rows}")

    def to_c(self, ffi: Any, devices: int) -> Any:
        """The struct."""
        result = ffi.new("struct ggml_backend_meta_split_state *")
        result.axis = int(self.axis)
        result.n_segments = 1
        result.nr[0] = 1
        if self.is_split and self.segments is not None:
            result.n_segments = len(self.segments)
            for number, (row, count) in enumerate(zip(self.segments.tolist(), self.counts(), strict=True)):
                result.nr[number] = count
                for place, length in enumerate(row):
                    result.ne[number * devices + place] = length
        return result[0]
