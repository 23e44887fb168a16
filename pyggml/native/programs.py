"""Running a program of a build with virtual devices, and asking a build which devices it sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError, UsageError

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
    """What can be run, sorted."""
    try:
        files = sorted(build.bin_dir.iterdir())
    except OSError:
        return []
    return [f.name for f in files if f.is_file() and ".so" not in f.suffixes and os.access(f, os.X_OK)]


def find_program(build: Build, name: str) -> Path:
    """A program of the build by its name.

    Raises:
        UsageError: there is none of that name; the hint lists those that there are.
    """
    programs = programs_of(build)
    if name in programs:
        return build.bin_dir / name
    listed = f"It has: {', '.join(programs)}." if programs else "It has no programs: pyggml build"
    raise UsageError(f"the build {build.record.variant} has no program {name}", listed)


def run_program(program: Path, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it on our own standard streams and wait.

    Returns:
        As `subprocess`: the exit status, or minus the number of the signal that ended it.

    Raises:
        PyggmlError: it cannot be started.
    """
    try:
        child = subprocess.Popen([str(program), *arguments], env=dict(env))
    except OSError as error:
        raise PyggmlError(f"cannot start {program}: {error.strerror or error}") from error
    # Ctrl-C reaches the program as well; what it makes of that is what counts.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def signal_name(number: int) -> str:
    """`SIGABRT`, or `signal 50` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def seen_devices(build: Build, env: Mapping[str, str]) -> list[SeenDevice]:
    """The devices that the build's libraries see, asked for in a process of its own.

    Raises:
        PyggmlError: that process failed; what it said last is in the message.
    """
    probe = Path(__file__).with_name("probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(probe), str(build.bin_dir)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            # A library may print as well; the document is the last line.
            devices = json.loads(done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
            return [SeenDevice(**device) for device in devices]
        why = f"ended by {signal_name(-done.returncode)}" if done.returncode < 0 else "failed"
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        why, said = f"no answer within {PROBE_SECONDS} s", ""
    except (ValueError, TypeError) as error:
        why, said = "its answer cannot be read", str(error)
    raise PyggmlError(
        f"the build {build.record.variant} cannot be asked for its devices: {why}"
        + (f": {said}" if said else "")
    )
