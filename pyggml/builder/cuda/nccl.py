"""NCCL, NVIDIA's library for communication between GPUs: its wheel, or one that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.cuda.toolkit import Toolkit
from pyggml.builder.cuda.wheels import INSTALL_NCCL, NCCL, Wheels, find_wheels
from pyggml.errors import PyggmlError

_LIBRARIES = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")


@dataclass(frozen=True)
class Nccl:
    """Where `include/nccl.h` and the library lie."""

    root: Path
    version: str


def find_nccl(
    toolkit: Toolkit,
    wheels: Wheels | None = None,
    places: Iterable[Path] = (Path("/usr"), Path("/usr/local")),
) -> Nccl:
    """NCCL for a toolkit.

    The wheel only goes with the other wheels: it has no library name that a linker finds, and is linked
    into the same root.

    Args:
        wheels: what to take for the installed wheels.
        places: where the system may have it, beside the toolkit itself.

    Raises:
        PyggmlError: there is none.
    """
    if toolkit.raw:
        installed = find_wheels() if wheels is None else wheels
        if installed.nccl is not None and (installed.nccl / "include" / "nccl.h").is_file():
            return Nccl(installed.nccl, installed.versions[NCCL])
        raise PyggmlError("NCCL is not installed among the NVIDIA wheels", f"Get it: {INSTALL_NCCL}")
    for root in (toolkit.root, *places):
        header = root / "include" / "nccl.h"
        if header.is_file() and any((root / name / "libnccl.so").is_file() for name in _LIBRARIES):
            return Nccl(root, _version(header))
    raise PyggmlError(
        f"NCCL is not installed beside the CUDA toolkit {toolkit.root} or in the system",
        "Install it (Debian: apt install libnccl-dev), or build without --nccl.",
    )


def _version(header: Path) -> str:
    text = header.read_text("utf-8", "replace")
    numbers = [re.search(rf"#define NCCL_{name}\s+(\d+)", text) for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(found[1] for found in numbers if found)
