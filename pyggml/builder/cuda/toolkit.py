"""The choice of a toolkit: the one asked for, a complete one of the system, or the NVIDIA wheels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyggml.builder.cuda.driver import Driver, newest_toolkit_text, update_text
from pyggml.builder.cuda.parts import PARTS, compiler_version, inspect
from pyggml.builder.cuda.system import system_toolkits
from pyggml.builder.cuda.wheels import INSTALL, Wheels, find_wheels, fits
from pyggml.errors import PyggmlError, UsageError

OLDEST = (11, 7)
"""The oldest CUDA that upstream publishes builds with; its sources use C++17 and guard what came later."""


@dataclass(frozen=True)
class Toolkit:
    """A toolkit that ggml can be built with.

    Attributes:
        kind: `system`, `wheels` or `given` (--toolkit); the first and the last may be completed by wheels.
        version: of its nvcc, `13.0.88`.
        raw: linking needs a root of links over it (see root.py).
        wheels: wheel name to version, of kind `wheels` and of those that complete another toolkit.
        completed_by: the directory of the wheels that complete it.
        rejected: (directory, why) of those that were looked at before.
    """

    kind: str
    root: Path
    version: str
    raw: bool
    wheels: Mapping[str, str] = field(default_factory=dict)
    rejected: tuple[tuple[Path, str], ...] = ()
    completed_by: Path | None = None

    @property
    def roots(self) -> tuple[Path, ...]:
        """Where its parts lie."""
        return (self.root,) if self.completed_by is None else (self.root, self.completed_by)

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def key(self) -> str:
        """Everything that has a version in it."""
        return " ".join([self.version, *(f"{name}=={version}" for name, version in self.wheels.items())])


def choose_toolkit(
    asked: Path | None,
    driver: Driver,
    *,
    for_here: bool = True,
    env: Mapping[str, str] | None = None,
    roots: Iterable[Path] | None = None,
    wheels: Wheels | None = None,
) -> Toolkit:
    """Find a toolkit.

    Args:
        asked: `--toolkit`.
        driver: the driver here; a toolkit whose programs it cannot run is no choice.
        for_here: the build is to run on this machine's GPUs.
        env: the environment to look in, by default the process's.
        roots: system toolkits to look at instead of looking for them.
        wheels: what to take for the installed wheels.

    Raises:
        UsageError: `asked` is no toolkit.
        PyggmlError: there is none, or none that fits; why each was refused is in the message.
    """
    limit = driver if for_here else Driver("absent")
    if asked is not None:
        return _given(asked, limit, wheels)
    rejected: list[tuple[Path, str]] = []
    found_roots = list(system_toolkits(os.environ if env is None else env) if roots is None else roots)
    for root in found_roots:
        found, why = _usable(root, limit)
        if found is not None:
            version, raw = found
            return Toolkit("system", root, version, raw, rejected=tuple(rejected))
        rejected.append((root, why))
    installed = find_wheels() if wheels is None else wheels
    if installed.root is not None and installed.complete:
        found, why = _usable(installed.root, limit)
        if found is not None:
            return Toolkit("wheels", installed.root, *found, installed.versions, tuple(rejected))
        rejected.append((installed.root, f"the NVIDIA wheels: {why}"))
    elif installed.root is not None:
        rejected.append((installed.root, f"the NVIDIA wheels lack {', '.join(installed.missing)}"))
    for root in found_roots:
        completed = _completed("system", root, limit, installed)
        if completed is not None:
            return replace(completed, rejected=tuple(one for one in rejected if one[0] != root))
    raise _none(rejected, installed, limit)


def _given(asked: Path, driver: Driver, wheels: Wheels | None) -> Toolkit:
    root = asked.absolute()
    if root.name == "nvcc" and root.is_file():
        root = root.parent
    if root.name == "bin" and (root / "nvcc").is_file():
        root = root.parent
    if not (root / "bin" / "nvcc").is_file():
        raise UsageError(f"{asked} is no CUDA toolkit: it has no bin/nvcc", "Name its top directory.")
    found, why = _usable(root, driver)
    if found is None:
        completed = _completed("given", root, driver, find_wheels() if wheels is None else wheels)
        if completed is not None:
            return completed
        hint = update_text(driver) if "driver" in why else "Name another one, or leave --toolkit away."
        raise PyggmlError(f"the toolkit {root} cannot be used: {why}", hint)
    return Toolkit("given", root, *found)


def _usable(root: Path, driver: Driver) -> tuple[tuple[str, bool] | None, str]:
    """((version, raw), "") or (None, why not)."""
    version = compiler_version(root / "bin" / "nvcc")
    if not version:
        return None, "its nvcc does not run"
    inspection = inspect(root)
    why = _refusal(version, None)
    if not why and inspection.missing:
        why = f"CUDA {version} has no {' and no '.join(part.name for part in inspection.missing)}"
    why = why or _refusal(version, driver)
    return (None, why) if why else ((version, inspection.raw), "")


def _refusal(version: str, driver: Driver | None) -> str:
    """Why a version is no choice, or one for this driver; empty if it is."""
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST:
        return f"CUDA {version} is older than the sources need ({OLDEST[0]}.{OLDEST[1]})"
    # Within a major version older drivers run newer programs ("minor version compatibility").
    if driver is not None and driver.cuda is not None and release[0] > driver.cuda[0]:
        return f"CUDA {version} is too new for {newest_toolkit_text(driver)}"
    return ""


def _completed(kind: str, root: Path, driver: Driver, wheels: Wheels) -> Toolkit | None:
    """A toolkit whose missing parts are installed as wheels of its version, as beside other CUDA packages.

    Not its compiler: a directory with nothing but an nvcc may hold a script that starts another toolkit's.
    """
    missing = inspect(root).missing
    if wheels.root is None or not missing or PARTS[0] in missing:
        return None
    version = compiler_version(root / "bin" / "nvcc")
    versions = {part.wheel: wheels.versions.get(part.wheel, "") for part in missing}
    if not version or not all(fits(name, one, version) for name, one in versions.items()):
        return None
    if inspect(wheels.root, only=missing).missing or _refusal(version, driver):
        return None
    return Toolkit(kind, root, version, True, versions, completed_by=wheels.root)


def _none(rejected: list[tuple[Path, str]], installed: Wheels, driver: Driver) -> PyggmlError:
    told = "; ".join(f"{root}: {why}" for root, why in rejected)
    too_new = [why for _, why in rejected if "too new" in why]
    if too_new and len(too_new) == len(rejected):
        return PyggmlError(f"no CUDA toolkit that the driver runs: {told}", update_text(driver))
    if installed.complete:
        return PyggmlError(f"no usable CUDA toolkit: {told}", f"Reinstall the wheels: {INSTALL}")
    return PyggmlError(
        f"no complete CUDA toolkit ({told or 'none was found'})",
        f"Get one without installing CUDA: {INSTALL}, or name one with --toolkit DIR.",
    )
