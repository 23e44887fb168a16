"""What the user asks of a CUDA build, checked as far as it can be without a toolkit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import UsageError

_ARCH = re.compile(r"(?:sm_|compute_)?(?P<number>[1-9][0-9]{1,2})(?P<suffix>[af]?)(?P<kind>-real|-virtual)?")
_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9])")


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability to compile for.

    Attributes:
        number: 90 for capability 9.0.
        suffix: `a` (this one GPU generation only) or `f` (its family only), else empty.
        kind: `-real` (machine code), `-virtual` (PTX, compiled by the driver), empty for both; as in
            CMake's CUDA_ARCHITECTURES.
    """

    number: int
    suffix: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.number}{self.suffix}{self.kind}"

    @property
    def capability(self) -> tuple[int, int]:
        return divmod(self.number, 10)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of that capability runs what is compiled for this one.

        Machine code runs on the same major version from its minor version on, PTX on everything newer
        (CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility").
        """
        if self.suffix == "a":
            return capability == self.capability
        same = capability[0] == self.capability[0] and capability >= self.capability
        if self.suffix == "f":
            return same
        return (same and self.kind != "-virtual") or (self.kind != "-real" and capability >= self.capability)


@dataclass(frozen=True)
class CudaOptions:
    """A CUDA build as asked for.

    Attributes:
        archs: what to compile for; empty means the GPUs present, else a default.
        toolkit: the directory of a CUDA toolkit, taken instead of looking for one.
        nccl: use NVIDIA's communication library between GPUs.
        minimal: leave out the FlashAttention kernels for mixed types of quantised K and V caches.
    """

    archs: tuple[Arch, ...] = ()
    toolkit: Path | None = None
    nccl: bool = False
    minimal: bool = False


def parse_archs(text: str | None) -> tuple[Arch, ...]:
    """`80,90`, `sm_90`, `8.6`, `90a-real` as architectures without repetitions, in order.

    Raises:
        UsageError: one cannot be read.
    """
    found = []
    for part in re.split(r"[,;\s]+", text or ""):
        if not part:
            continue
        dotted = _DOTTED.fullmatch(part)
        match = _ARCH.fullmatch(f"{dotted[1]}{dotted[2]}" if dotted else part.lower())
        if match is None:
            raise UsageError(
                f"{part!r} is no CUDA architecture",
                "Write compute capabilities joined by commas: --arch 80,90 (9.0 and sm_90 mean 90 as well).",
            )
        found.append(Arch(int(match["number"]), match["suffix"], match["kind"] or ""))
    if text is not None and not found:
        raise UsageError("--arch names no architecture", "Write for example: --arch 80,90")
    return tuple(sorted(set(found)))
