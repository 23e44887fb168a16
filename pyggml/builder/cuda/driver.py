"""The NVIDIA driver and the GPUs of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROBE_SECONDS = 60
_KERNEL = Path("/proc/driver/nvidia/version")
_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""The first driver of each CUDA major version (NVIDIA's CUDA Compatibility guide, minor version table)."""


@dataclass(frozen=True)
class Gpu:
    """A GPU; memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True)
class Driver:
    """The driver as a process sees it.

    Attributes:
        state: `ready`, `absent` (no libcuda.so.1), `no-gpu`, or `broken`.
        cuda: the newest CUDA version that it runs, (13, 0); None where not known.
        version: of the kernel module, `580.65.06`; empty where not known.
        gpus: those that CUDA_VISIBLE_DEVICES leaves.
        problem: why it is not ready.
    """

    state: str
    cuda: tuple[int, int] | None = None
    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""

    def describe(self) -> str:
        """In a line: `driver 580.65.06 for CUDA up to 13.0, 1 GPU: NVIDIA H200 (9.0)`."""
        if self.state == "absent":
            return "no NVIDIA driver here (libcuda.so.1 cannot be loaded)"
        what = f"driver {self.version}".strip()
        if self.cuda is not None:
            what += f" for CUDA up to {self.cuda[0]}.{self.cuda[1]}"
        if self.state == "no-gpu" or (self.state == "ready" and not self.gpus):
            return f"{what}, but no GPU is visible"
        if self.state == "broken":
            return f"{what} does not work: {self.problem}"
        names = ", ".join(f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in self.gpus)
        return f"{what}, {len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''}: {names}"


def read_driver(env: Mapping[str, str] | None = None, kernel: Path = _KERNEL) -> Driver:
    """Ask the driver, in a process of its own.

    Args:
        env: the environment of that process (LD_LIBRARY_PATH, CUDA_VISIBLE_DEVICES).
        kernel: where the kernel module says its version.
    """
    probe = Path(__file__).with_name("gpu_probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(probe)],
            env=dict(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        told = json.loads(done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
        gpus = tuple(
            Gpu(one["name"], (one["capability"][0], one["capability"][1]), one["memory"])
            for one in told.get("gpus", [])
        )
        cuda = (told["cuda"][0], told["cuda"][1]) if told.get("cuda") else None
        return Driver(told["state"], cuda, _module_version(kernel), gpus, told.get("problem", ""))
    except (OSError, subprocess.TimeoutExpired):
        problem = f"no answer within {PROBE_SECONDS} s"
    except (ValueError, KeyError, IndexError, TypeError):
        problem = "asking it ended the process"
    return Driver("broken", version=_module_version(kernel), problem=problem)


def newest_toolkit_text(driver: Driver) -> str:
    """`driver 535.54.03, which runs CUDA up to 12.2`."""
    cuda = "" if driver.cuda is None else f", which runs CUDA up to {driver.cuda[0]}.{driver.cuda[1]}"
    return f"driver {driver.version}".strip() + cuda


def update_text(driver: Driver) -> str:
    """What to do about a driver that is too old for the toolkit."""
    here = driver.cuda[0] if driver.cuda else 0
    newer = [f"{branch} or newer for CUDA {major}" for major, branch in _DRIVERS.items() if major > here]
    return (
        f"Update the driver ({', '.join(newer) or 'to the newest'}), name an older toolkit with --toolkit DIR, "
        "or build for another machine with --arch."
    )


def _module_version(kernel: Path) -> str:
    try:
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", kernel.read_text("utf-8", "replace"))
    except OSError:
        return ""
    return found[1] if found else ""
