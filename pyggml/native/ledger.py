"""The ledger of the virtual devices: what was transferred, where to, how many bytes, for which split."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyggml.errors import PyggmlError
from pyggml.files import whole_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KINDS = ("alloc", "free", "set", "get", "set_2d", "get_2d", "cpy", "memset", "clear", "compute")
"""In the order of `enum pyggml_vdev_kind`."""

TRANSFERS = ("set", "get", "set_2d", "get_2d", "cpy")
ASYNC, REFUSED, FLIPPED = 1, 2, 4

GroupKey = Literal["kind", "device", "peer", "tensor", "split"]

_HEADER = "pyggml_vdev_ledger"
_NAME_BYTES = 64


@dataclass(frozen=True)
class LedgerRecord:
    """One event, as `struct pyggml_vdev_record` in words.

    Attributes:
        device: of a copy, the destination.
        peer: the source device of a copy.
        tensor: name of the tensor; of a copy's destination; of a graph's last node.
        bytes: payload; 0 for a compute.
        rows: 1; rows of a 2-D transfer; nodes of a compute.
        offset, stride: bytes in the tensor; the stride is that of a 2-D transfer's rows.
        split: graphs that the device had computed before, so a split's inputs carry its compute's number.
        asynchronous: came through the backend's asynchronous function.
        refused: it did not happen (no memory, copy refused, graph failed).
        flipped: an injected fault changed one byte.
    """

    sequence: int
    kind: str
    device: str
    peer: str | None
    tensor: str
    bytes: int
    rows: int
    offset: int
    stride: int
    split: int
    asynchronous: bool
    refused: bool
    flipped: bool


@dataclass(frozen=True)
class LedgerDifference:
    """A difference between two ledgers: a group with another number of records or bytes.

    Attributes:
        kind, device, tensor: the group.
        count, bytes: (in the first ledger, in the second).
    """

    kind: str
    device: str
    tensor: str
    count: tuple[int, int]
    bytes: tuple[int, int]


def record_dtype() -> np.dtype[Any]:
    """numpy's view of `struct pyggml_vdev_record`; 128 bytes."""
    import numpy as np

    return np.dtype(
        [
            ("sequence", "<u8"),
            ("bytes", "<u8"),
            ("rows", "<u8"),
            ("offset", "<u8"),
            ("stride", "<u8"),
            ("kind", "<i4"),
            ("device", "<i4"),
            ("peer", "<i4"),
            ("split", "<u4"),
            ("flags", "<u4"),
            ("reserved", "<u4"),
            ("tensor", f"S{_NAME_BYTES}"),
        ]
    )


@dataclass(frozen=True, eq=False)
class Ledger:
    """Records in the order in which they happened.

    Attributes:
        array: a structured numpy array of `record_dtype()`; read-only.
        devices: names, by the index that the array's device column holds.
    """

    array: npt.NDArray[Any]
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.array.dtype != record_dtype() or self.array.ndim != 1:
            raise PyggmlError(f"not an array of ledger records: {self.array.dtype}, {self.array.ndim}-D")
        # A view, so that making it read-only leaves the caller's array alone.
        view = self.array.view()
        view.flags.writeable = False
        object.__setattr__(self, "array", view)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read a file that PYGGML_VDEV_LEDGER made, without a last line that was cut off.

        Raises:
            PyggmlError: the file cannot be read or is not a ledger; the message names the line.
        """
        return _parse(whole_lines(path, "ledger"), path)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[LedgerRecord]:
        return iter(self.records())

    @property
    def bytes(self) -> int:
        """Bytes of all records that were not refused."""
        return int(self.array["bytes"][~self._refused].sum())

    @property
    def tensors(self) -> npt.NDArray[np.str_]:
        """Tensor names as text, one for every record."""
        return self._texts(self.array["tensor"])

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of the array: sequence, bytes, rows, offset, stride, kind, device, peer, split, flags, tensor.

        Raises:
            PyggmlError: there is no such column.
        """
        names = self.array.dtype.names or ()
        if name not in names:
            raise PyggmlError(f"a ledger has no column {name!r}; it has {', '.join(names)}")
        column: npt.NDArray[Any] = self.array[name]
        return column

    def filter(
        self,
        kind: str | Iterable[str] | None = None,
        device: str | int | None = None,
        name: str | None = None,
        split: int | None = None,
        refused: bool | None = None,
    ) -> Ledger:
        """The records that meet all given conditions.

        Args:
            kind: one kind, or several.
            device: name or index.
            name: a regular expression to search for in the tensor's name.

        Raises:
            PyggmlError: there is no such kind or device, or `name` is not a regular expression.
        """
        import numpy as np

        keep = np.ones(len(self), bool)
        if kind is not None:
            kinds = [kind] if isinstance(kind, str) else list(kind)
            keep &= np.isin(self.array["kind"], [_kind_index(one) for one in kinds])
        if device is not None:
            keep &= self.array["device"] == self._device_index(device)
        if split is not None:
            keep &= self.array["split"] == split
        if refused is not None:
            keep &= self._refused == refused
        if name is not None:
            try:
                pattern = re.compile(name)
            except re.error as error:
                raise PyggmlError(f"{name!r} is not a regular expression: {error}") from error
            unique, inverse = np.unique(self.array["tensor"], return_inverse=True)
            matches = [pattern.search(text) is not None for text in self._texts(unique)]
            keep &= np.array(matches, bool)[inverse] if len(self) else keep
        return Ledger(self.array[keep], self.devices)

    def transfers(self) -> Ledger:
        """Sets, gets and copies: transfers to, from and between devices."""
        return self.filter(kind=TRANSFERS, refused=False)

    def sums(self, *keys: GroupKey, of: Literal["bytes", "rows", "count"] = "bytes") -> dict[Any, int]:
        """Sums by group, without refused records.

        Args:
            keys: what a group has in common; with one key the dictionary's keys are its values, with several
                tuples of them.
            of: what is summed; `count` counts records.
        """
        totals: dict[Any, int] = {}
        columns = [self._column_values(key) for key in keys]
        numbers = [1] * len(self) if of == "count" else self.array[of].tolist()
        for number, refused, *values in zip(numbers, self._refused.tolist(), *columns, strict=True):
            if not refused:
                group = values[0] if len(values) == 1 else tuple(values)
                totals[group] = totals.get(group, 0) + number
        return totals

    def diff(self, other: Ledger) -> list[LedgerDifference]:
        """The differences to `other`, by kind, device and tensor, in order of appearance."""
        groups: tuple[GroupKey, ...] = ("kind", "device", "tensor")
        ours, theirs = self.sums(*groups, of="count"), other.sums(*groups, of="count")
        our_bytes, their_bytes = self.sums(*groups), other.sums(*groups)
        changes = []
        for group in dict.fromkeys([*ours, *theirs]):
            count = (ours.get(group, 0), theirs.get(group, 0))
            moved = (our_bytes.get(group, 0), their_bytes.get(group, 0))
            if count[0] != count[1] or moved[0] != moved[1]:
                kind, device, tensor = group
                changes.append(LedgerDifference(kind, device, tensor, count, moved))
        return changes

    def records(self) -> list[LedgerRecord]:
        """All records as Python objects."""
        return [
            LedgerRecord(
                sequence=sequence,
                kind=KINDS[kind],
                device=self._device_name(device),
                peer=self._device_name(peer) if peer >= 0 else None,
                tensor=_text(tensor),
                bytes=moved,
                rows=rows,
                offset=offset,
                stride=stride,
                split=split,
                asynchronous=bool(flags & ASYNC),
                refused=bool(flags & REFUSED),
                flipped=bool(flags & FLIPPED),
            )
            for (
                sequence, moved, rows, offset, stride, kind, device, peer, split, flags, _, tensor,
            ) in self.array.tolist()
        ]  # fmt: skip

    def summary(self) -> str:
        """A table of what every device did, as text."""
        count = self.sums("device", "kind", of="count")
        rows, moved = self.sums("device", "kind", of="rows"), self.sums("device", "kind")
        lines = [f"{'device':<16} {'kind':<8} {'count':>10} {'rows':>14} {'bytes':>18}"]
        order = {name: number for number, name in enumerate((*self.devices, *KINDS))}
        for group in sorted(count, key=lambda pair: (order[pair[0]], order[pair[1]])):
            numbers = f"{count[group]:>10,} {rows[group]:>14,} {moved[group]:>18,}"
            lines.append(f"{group[0]:<16} {group[1]:<8} {numbers}")
        refused = int(self._refused.sum())
        if refused:
            lines.append(f"refused or failed: {refused:,}")
        return "\n".join(lines)

    @property
    def _refused(self) -> npt.NDArray[np.bool_]:
        refused: npt.NDArray[np.bool_] = (self.array["flags"] & REFUSED) != 0
        return refused

    def _column_values(self, key: GroupKey) -> list[Any]:
        if key == "kind":
            return [KINDS[kind] for kind in self.array["kind"].tolist()]
        if key == "device":
            return [self._device_name(index) for index in self.array["device"].tolist()]
        if key == "peer":
            return [self._device_name(i) if i >= 0 else None for i in self.array["peer"].tolist()]
        if key == "tensor":
            return [_text(name) for name in self.array["tensor"].tolist()]
        values: list[Any] = self.array[key].tolist()
        return values

    def _device_name(self, index: int) -> str:
        return self.devices[index] if index < len(self.devices) else f"device {index}"

    def _device_index(self, device: str | int) -> int:
        if isinstance(device, int):
            return device
        if device not in self.devices:
            raise PyggmlError(f"there is no device {device!r}; the ledger has {', '.join(self.devices)}")
        return self.devices.index(device)

    def _texts(self, names: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
        import numpy as np

        return np.array([_text(name) for name in names.tolist()], dtype=np.str_)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _kind_index(kind: str) -> int:
    if kind not in KINDS:
        raise PyggmlError(f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
    return KINDS.index(kind)


def _parse(lines: Sequence[bytes], path: Path) -> Ledger:
    import numpy as np

    devices: dict[str, int] = {}
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            # A name that was cut inside a character must not make the rest unreadable.
            entry = json.loads(line.decode("utf-8", "surrogateescape"))
            if number == 1 and entry[_HEADER] != 1:
                raise ValueError("another version")
            if _HEADER in entry:
                for name in entry["devices"]:
                    devices.setdefault(name, len(devices))
                continue
            peer = entry.get("peer")
            rows.append(
                (
                    *(entry[key] for key in ("sequence", "bytes", "rows", "offset", "stride")),
                    KINDS.index(entry["kind"]),
                    devices[entry["device"]],
                    -1 if peer is None else devices[peer],
                    entry["split"],
                    entry["flags"],
                    0,
                    entry["tensor"].encode("utf-8", "surrogateescape"),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise PyggmlError(
                f"{path}, line {number} is not a line of a ledger",
                "PYGGML_VDEV_LEDGER=FILE, or pyggml run --ledger FILE, makes one.",
            ) from error
    try:
        array = np.array(rows, dtype=record_dtype())
    except (ValueError, OverflowError, TypeError) as error:
        raise PyggmlError(f"{path} is not a ledger: {error}") from error
    return Ledger(array, tuple(devices))
