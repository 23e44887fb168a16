"""The programs of a build, and the devices that it sees."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError, UsageError, did_you_mean
from pyggml.processes import run, signal_name

PROBE_SECONDS = 60


@dataclass(frozen=True)
class SeenDevice:
    """A device in ggml's registry; memory in bytes."""

    name: str
    description: str
    type: str
    backend: str
    memory_free: int
    memory_total: int


def programs_of(build: Build) -> list[str]:
    """The names of the programs, sorted."""
    try:
        files = sorted(build.bin_dir.iterdir())
    except OSError:
        return []
    return [f.name for f in files if f.is_file() and ".so" not in f.suffixes and os.access(f, os.X_OK)]


def find_program(build: Build, name: str) -> Path:
    """A program of the build by its name.

    Raises:
        UsageError: there is none; the hint lists the programs that there are.
    """
    programs = programs_of(build)
    if name in programs:
        return build.bin_dir / name
    listed = f"It has: {', '.join(programs)}." if programs else "It has no programs: pyggml build"
    raise UsageError(
        f"the build {build.record.variant} has no program {name}", did_you_mean(name, programs) + listed
    )


def seen_devices(build: Build, env: Mapping[str, str]) -> list[SeenDevice]:
    """The devices that the build's libraries see, found out in a process of its own.

    Raises:
        PyggmlError: that process failed; the message has its last line.
    """
    command = [sys.executable, "-I", str(Path(__file__).with_name("probe.py")), str(build.bin_dir)]
    finished = run(command, env=env, limit=PROBE_SECONDS)
    said = ""
    if finished.status == 0:
        try:
            # A library may print as well; the document is the last line.
            devices = json.loads(finished.text.rstrip().rpartition("\n")[2])
            return [SeenDevice(**device) for device in devices]
        except (ValueError, TypeError) as error:
            why, said = "its answer cannot be read", str(error)
    elif finished.status is None:
        why = f"no answer within {PROBE_SECONDS} s"
    else:
        why = f"ended by {signal_name(-finished.status)}" if finished.status < 0 else "failed"
        said = finished.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
    raise PyggmlError(
        f"cannot ask the build {build.record.variant} for its devices: {why}" + (f": {said}" if said else "")
    )
