"""The NVIDIA wheels of the `cuda` extra, as installed for this Python."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.cuda.parts import PARTS
from pyggml.errors import PyggmlError

INSTALL = "pip install 'pyggml[cuda]' (in a checkout of pyggml: pip install '.[cuda]')"
INSTALL_NCCL = "pip install 'pyggml[cuda,nccl]' (in a checkout of pyggml: pip install '.[cuda,nccl]')"
NCCL = "nvidia-nccl-cu13"
_HOME = "nvidia/cu13"
_NCCL_HOME = "nvidia/nccl"
_LOOSE = "nvidia-cublas"
"""Its versions only share their first number with the toolkit's (cuBLAS 13.2 belongs to CUDA 13.1)."""


@dataclass(frozen=True)
class Wheels:
    """What is installed.

    Attributes:
        root: the one directory that they unpack into, `nvidia/cu13`; None if none is installed.
        versions: wheel name to version.
        missing: names of wheels that are not installed.
        nccl: where the NCCL wheel lies.
    """

    root: Path | None
    versions: dict[str, str]
    missing: tuple[str, ...]
    nccl: Path | None = None

    @property
    def complete(self) -> bool:
        return self.root is not None and not self.missing


def find_wheels(path: list[str] | None = None) -> Wheels:
    """Look for the wheels where Python looks for modules.

    Args:
        path: directories instead of `sys.path`.

    Raises:
        PyggmlError: their versions do not belong together, or they are in different directories.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    for name in (*(part.wheel for part in PARTS), NCCL):
        distributions = importlib.metadata.distributions(name=name, path=sys.path if path is None else path)
        first = next(iter(distributions), None)
        if first is not None and first.version:
            found[name] = first
    nccl = found.pop(NCCL, None)
    versions = {name: one.version for name, one in found.items()}
    roots = {Path(str(one.locate_file(_HOME))) for one in found.values()}
    _check(versions, roots)
    if nccl is not None:
        versions[NCCL] = nccl.version
    return Wheels(
        root=next(iter(roots), None),
        versions=versions,
        missing=tuple(part.wheel for part in PARTS if part.wheel not in found),
        nccl=None if nccl is None else Path(str(nccl.locate_file(_NCCL_HOME))),
    )


def fits(wheel: str, version: str, toolkit: str) -> bool:
    """Whether a wheel of that version goes with a toolkit: same release, of cuBLAS the same first number."""
    count = 1 if wheel == _LOOSE else 2
    return bool(version) and version.split(".")[:count] == toolkit.split(".")[:count]


def _check(versions: dict[str, str], roots: set[Path]) -> None:
    kinds: dict[str, list[str]] = {}
    for name, version in versions.items():
        if name != _LOOSE:
            kinds.setdefault(".".join(version.split(".")[:2]), []).append(name)
    majors = {version.split(".")[0] for version in versions.values()}
    if len(kinds) > 1 or len(majors) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise PyggmlError(
            f"the NVIDIA wheels are of different CUDA versions: {listed}",
            f"Install them together: {INSTALL}",
        )
    if len(roots) > 1:
        listed = " and ".join(sorted(str(root) for root in roots))
        raise PyggmlError(
            f"the NVIDIA wheels are in different directories: {listed}",
            f"Install all of them into the virtual environment: {INSTALL}",
        )
