"""What the machine offers: instruction set, cores, memory."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

BYTES_PER_JOB = 3 * 512 * 1024 * 1024
"""What one compiler takes at its worst on llama.cpp (the big C++ files of tools and tests): 1.5 GiB."""


@dataclass(frozen=True)
class Machine:
    """Facts that a build is planned from.

    Attributes:
        system: `Linux`, `Darwin`, …
        arch: `x86_64`, `aarch64`, …
        features: instruction set extensions as the kernel names them; empty where they are not known.
        cores: processors this process may use.
        memory: bytes available now; 0 where not known.
    """

    system: str
    arch: str
    features: frozenset[str]
    cores: int
    memory: int


def run_path_here(system: str) -> str:
    """How a run path names the directory of what is loaded; `system` as in Machine."""
    return "@loader_path" if system == "Darwin" else "$ORIGIN"


def parse_cpuinfo(text: str) -> frozenset[str]:
    """The features that every processor in a `/proc/cpuinfo` text has (`flags` on x86, `Features` on Arm)."""
    lists = re.findall(r"^(?:flags|Features)[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    if not lists:
        return frozenset()
    return frozenset.intersection(*(frozenset(line.split()) for line in lists))


def parse_available_memory(meminfo: str) -> int:
    """`MemAvailable` of a `/proc/meminfo` text in bytes; 0 if it is not there."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def read_machine(
    cpuinfo: Path = Path("/proc/cpuinfo"),
    meminfo: Path = Path("/proc/meminfo"),
    memory_limit: Path = Path("/sys/fs/cgroup/memory.max"),
) -> Machine:
    """Ask the running system; a file that it does not have leaves that fact unknown."""
    memory = parse_available_memory(_read(meminfo))
    limit = _read(memory_limit).strip()
    if limit.isdigit():
        memory = min(memory or int(limit), int(limit))
    return Machine(
        system=platform.system(),
        arch=platform.machine(),
        features=parse_cpuinfo(_read(cpuinfo)),
        cores=_cores(),
        memory=memory,
    )


def default_jobs(machine: Machine, bytes_per_job: int = BYTES_PER_JOB) -> int:
    """One job a core, fewer where memory would not hold as many compilers."""
    if machine.memory == 0:
        return machine.cores
    return max(1, min(machine.cores, machine.memory // bytes_per_job))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
