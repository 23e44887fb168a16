"""`pyggml-build.json`: what a build directory holds, kept beside the objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyggml.builder.features import missing_features
from pyggml.builder.machine import Machine, read_machine
from pyggml.errors import PyggmlError, did_you_mean
from pyggml.files import write_atomic
from pyggml.project import Project

FILE = "pyggml-build.json"
FORMAT = 1
STATES = ("configured", "building", "done", "failed")


@dataclass(frozen=True)
class BuildRecord:
    """One build directory in words.

    Attributes:
        state: `configured`, `building` (also after a kill: it never got further), `done` or `failed`.
        head, tree, dirty: the source (see `source.Source`).
        fingerprint: of the plan that CMake was last configured with.
        features: processor features that the code needs.
        tools: versions and paths of compilers, CMake and Ninja.
        steps: steps that the last run compiled or linked; 0 when there was nothing to do.
        seconds: what the last run took.
        built_steps, built_seconds: of the last run that did something.
        check: the result of the last check of exactly these binaries, as JSON, or None.
    """

    variant: str
    pin: str
    state: str
    head: str
    tree: str
    dirty: bool
    fingerprint: str
    arch: str
    features: tuple[str, ...]
    options: Mapping[str, str]
    targets: tuple[str, ...]
    tools: Mapping[str, str]
    steps: int = 0
    seconds: float = 0.0
    built_steps: int = 0
    built_seconds: float = 0.0
    check: Mapping[str, Any] | None = field(default=None)

    @property
    def command(self) -> str:
        """What makes or finishes this build: `pyggml build` with the options it was made with."""
        return self.tools.get("command", "pyggml build")


@dataclass(frozen=True)
class Build:
    """A build on disk."""

    directory: Path
    record: BuildRecord

    @property
    def bin_dir(self) -> Path:
        """Where upstream puts programs and shared libraries alike."""
        return self.directory / "bin"

    @property
    def log(self) -> Path:
        return self.directory / "build.log"


def write_record(directory: Path, record: BuildRecord) -> None:
    """Write the record; the old one or the new one, never half of it."""
    document = {"format": FORMAT, **asdict(record)}
    write_atomic(directory / FILE, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def read_record(directory: Path) -> BuildRecord | None:
    """The record in `directory`; None if there is none, or none that this version understands."""
    try:
        document = json.loads((directory / FILE).read_bytes())
        if document.pop("format") != FORMAT or document["state"] not in STATES:
            return None
        for name in ("features", "targets"):
            document[name] = tuple(document[name])
        return BuildRecord(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def find_build(project: Project, variant: str | None = None, pin: str | None = None) -> Build:
    """A finished build of the project.

    Args:
        variant: its name; by default `<pin>-cpu`, or where there is no such build, the pin's newest finished
            one without sanitizers, a CUDA build above all.
        pin: by default the pin that the work tree is at.

    Raises:
        PyggmlError: there is none, or it is not finished.
    """
    if variant is None:
        from pyggml.builder.plan import BuildOptions, variant_name

        if pin is None:
            from pyggml.builder.source import read_source

            pin = read_source(project).pin
        variant = variant_name(pin, BuildOptions())
        if read_record(project.build_dir / variant) is None:
            other = next((one for one in finished_builds(project) if one.record.pin == pin), None)
            if other is not None:
                return other
    directory = project.build_dir / variant
    record = read_record(directory)
    if record is None:
        there = sorted(file.parent.name for file in project.build_dir.glob(f"*/{FILE}"))
        known = f"; or use one that there is: {', '.join(there)}" if there else ""
        raise PyggmlError(
            f"there is no build {variant}",
            f"{did_you_mean(variant, there)}Make one with: pyggml build{known}",
        )
    if record.state != "done":
        raise PyggmlError(
            f"the build {variant} is not finished ({record.state})", f"Finish it with: {record.command}"
        )
    return Build(directory, record)


def finished_builds(project: Project) -> list[Build]:
    """The project's finished builds that any process can load, so without sanitizers; the newest first."""
    found = []
    for file in project.build_dir.glob(f"*/{FILE}"):
        record = read_record(file.parent)
        sanitized = record is not None and any("_SANITIZE_" in name for name in record.options)
        if record is not None and record.state == "done" and not sanitized:
            found.append((file.stat().st_mtime, Build(file.parent, record)))
    return [build for _, build in sorted(found, key=lambda pair: pair[0], reverse=True)]


def check_instruction_set(build: Build | BuildRecord, machine: Machine | None = None) -> None:
    """Refuse to load a build whose code this processor cannot run; it would die with SIGILL.

    A machine whose features cannot be read (no /proc/cpuinfo) is given the benefit of the doubt.

    Raises:
        PyggmlError: another architecture, or the features that are missing.
    """
    record = build.record if isinstance(build, Build) else build
    machine = machine or read_machine()
    if record.arch != machine.arch:
        raise PyggmlError(
            f"the build {record.variant} is for {record.arch}, and this machine is {machine.arch}",
            "Build it here: pyggml build --clean",
        )
    missing = missing_features(record.features, machine.features) if machine.features else ()
    if missing:
        raise PyggmlError(
            f"the build {record.variant} needs a processor with {', '.join(missing)}; this one lacks "
            + ("it" if len(missing) == 1 else "them"),
            "Build it for this machine: pyggml build",
        )
