"""What to compile for: the GPUs present, the user's choice, or a default; and what a toolkit cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyggml.builder.cuda.driver import Driver, Gpu
from pyggml.builder.cuda.options import Arch
from pyggml.errors import PyggmlError, UsageError

DEFAULT = (Arch(80),)
"""Without a GPU and without --arch: machine code for 8.x GPUs, and PTX that the driver compiles for all later
ones; one architecture only, because the time to compile is in proportion to their number."""

_FIRST_A, _FIRST_F = 90, 100
"""Capabilities from which on the suffixes `a` and `f` exist (CUDA C++ Programming Guide, "Feature Set
Compiler Targets")."""


@dataclass(frozen=True)
class ArchChoice:
    """What is compiled for, why in words, and what else there is to say about it."""

    archs: tuple[Arch, ...]
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def cmake(self) -> str:
        """As CMAKE_CUDA_ARCHITECTURES."""
        return ";".join(map(str, self.archs))


def choose_archs(asked: Sequence[Arch], driver: Driver, known: Sequence[int], version: str) -> ArchChoice:
    """Decide for which architectures to compile.

    Args:
        asked: `--arch`.
        known: the compute capabilities that the toolkit's nvcc compiles for; empty where it does not say.
        version: of the toolkit, for messages.

    Raises:
        UsageError: an architecture that was asked for is unknown to the toolkit.
        PyggmlError: the toolkit compiles for none of the GPUs present.
    """
    if asked:
        for arch in asked:
            _check(arch, known, version)
        idle = [gpu for gpu in driver.gpus if not any(arch.runs_on(gpu.capability) for arch in asked)]
        notes = tuple(f"{_named(gpu)} will not run what is compiled for {_joined(asked)}" for gpu in idle)
        return ArchChoice(tuple(asked), "asked for", notes)
    if not driver.gpus:
        return ArchChoice(
            DEFAULT, "the default without a GPU: runs on 8.0 and everything newer; --arch names others"
        )
    fit = [gpu for gpu in driver.gpus if not known or _number(gpu) in known]
    others = [gpu for gpu in driver.gpus if gpu not in fit]
    if not fit:
        raise _unsupported(others[0], known, version)
    numbers = sorted({_number(gpu) for gpu in fit})
    notes = tuple(f"{_named(gpu)} is left out: CUDA {version} does not compile for it" for gpu in others)
    names = ", ".join(dict.fromkeys(_named(gpu) for gpu in fit))
    return ArchChoice(tuple(Arch(number, kind="-real") for number in numbers), f"of {names}", notes)


def _check(arch: Arch, known: Sequence[int], version: str) -> None:
    first = {"a": _FIRST_A, "f": _FIRST_F}.get(arch.suffix, 0)
    if arch.number < first:
        raise UsageError(f"there is no architecture {arch}: the suffix {arch.suffix} begins with {first}")
    if known and arch.number not in known:
        raise UsageError(
            f"CUDA {version} does not compile for architecture {arch.number}",
            f"It knows {', '.join(map(str, known))}; another toolkit can be named with --toolkit DIR.",
        )


def _unsupported(gpu: Gpu, known: Sequence[int], version: str) -> PyggmlError:
    number = _number(gpu)
    if number < min(known):
        return PyggmlError(
            f"CUDA {version} no longer compiles for {_named(gpu)}: it begins at {_dotted(min(known))}",
            "Name an older toolkit with --toolkit DIR"
            + (" (CUDA 12 was the last for 5.0 to 7.2)." if number >= 50 else "."),
        )
    older = max((one for one in known if one < number), default=min(known))
    return PyggmlError(
        f"CUDA {version} does not know {_named(gpu)}",
        f"Name a newer toolkit with --toolkit DIR, or let the driver translate: --arch {older}-virtual",
    )


def _number(gpu: Gpu) -> int:
    return gpu.capability[0] * 10 + gpu.capability[1]


def _named(gpu: Gpu) -> str:
    return f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})"


def _dotted(number: int) -> str:
    return f"{number // 10}.{number % 10}"


def _joined(archs: Sequence[Arch]) -> str:
    return ", ".join(map(str, archs))
