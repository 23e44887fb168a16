"""The CUDA backend of a build (a plugin that libggml.so loads where there is a driver), and why it has no device."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pyggml.builder.cuda.loadable import LIBRARY, load_problem
from pyggml.builder.record import Build, finished_builds
from pyggml.errors import PyggmlError
from pyggml.native.programs import seen_devices

if TYPE_CHECKING:
    from pyggml.native.load import Bindings
    from pyggml.project import Project

BACKEND = "CUDA"
"""Its name in ggml's registry."""
DEVICES = "GGML_CUDA_DEVICES"
"""How many devices ggml's CUDA backend makes out of the GPUs (ggml_cuda_init, ggml/src/ggml-cuda/ggml-cuda.cu)."""


def has_cuda(build: Build) -> bool:
    """Whether the build was made with `pyggml build --cuda`."""
    return (build.bin_dir / LIBRARY).is_file()


def explain_absence(project: Project, build: Build) -> str | None:
    """Why a build sees no CUDA device here, or that another build has CUDA; None if no build has it."""
    if has_cuda(build):
        return why_no_device(build)
    other = next((one for one in finished_builds(project) if has_cuda(one)), None)
    if other is None:
        return None
    name, there = build.record.variant, other.record.variant
    if any(one.backend == BACKEND for one in seen_devices(other, os.environ)):
        return f"{name} was built without CUDA; for the build that has it: pyggml devices --variant {there}"
    return f"{name} was built without CUDA, and {there}, which has it, sees none: {why_no_device(other)}"


def find_cuda_build(project: Project) -> Build:
    """The active build if it has CUDA, else the project's newest finished build that does.

    Raises:
        PyggmlError: there is none.
    """
    from pyggml.native.load import active_build

    with contextlib.suppress(PyggmlError):
        active = active_build(project.root)
        if has_cuda(active):
            return active
    build = next((one for one in finished_builds(project) if has_cuda(one)), None)
    if build is None:
        raise PyggmlError("there is no finished build with CUDA", "Make one with: pyggml build --cuda")
    return build


def load_cuda(bindings: Bindings | None = None) -> tuple[str, ...]:
    """Load the CUDA backend into this process and list its devices.

    ggml loads the backend when its registry is first used, unless PYGGML_CUDA=0 keeps it out; this loads it
    even then. `GGML_CUDA_DEVICES=4` in the environment makes four devices out of the GPUs, in backends that
    know it.

    Args:
        bindings: by default the active build's.

    Returns:
        The names of its devices, `CUDA0`, …

    Raises:
        PyggmlError: the build has no CUDA backend, or there is no device; the message says why.
    """
    if bindings is None:
        from pyggml.native.load import load

        bindings = load()
    ffi, lib, build = bindings.ffi, bindings.lib, bindings.build
    registry = lib.ggml_backend_reg_by_name(BACKEND.encode())
    if not registry and has_cuda(build):
        registry = lib.ggml_backend_load(str(build.bin_dir / LIBRARY).encode("utf-8", "surrogateescape"))
    count = lib.ggml_backend_reg_dev_count(registry) if registry else 0
    if not count:
        raise PyggmlError(
            f"no CUDA device: {why_no_device(build)}", "List what a build sees with: pyggml devices"
        )
    devices = (lib.ggml_backend_reg_dev_get(registry, index) for index in range(count))
    return tuple(
        ffi.string(lib.ggml_backend_dev_name(device)).decode("utf-8", "replace") for device in devices
    )


def open_cuda(count: int, bindings: Bindings | None = None) -> tuple[str, ...]:
    """As load_cuda, but with exactly `count` devices; GPUs are divided where there are too few.

    CUDA must not be loaded in this process yet: ggml counts its devices once.

    Raises:
        PyggmlError: there is no GPU, or the backend cannot divide one.
    """
    os.environ[DEVICES] = str(count)
    names = load_cuda(bindings)
    if len(names) != count:
        raise PyggmlError(
            f"{count} CUDA devices were requested, but the build has {len(names)}",
            f"Either CUDA was already loaded in this process, or this upstream does not know {DEVICES}.",
        )
    return names


def why_no_device(build: Build) -> str:
    """Why the build sees no CUDA device here, in a line."""
    from pyggml.builder.cuda.driver import read_driver

    library = build.bin_dir / LIBRARY
    if not library.is_file():
        return f"the build {build.record.variant} has no CUDA; make one that does with: pyggml build --cuda"
    driver = read_driver()
    if driver.state != "ready" or not driver.gpus:
        return driver.describe()
    problem = load_problem(library, None)
    if problem:
        return f"{problem}; if the virtual environment was moved or changed, run: {build.record.command}"
    built = build.record.tools.get("cuda_version", "")
    if (
        driver.cuda is not None
        and built.partition(".")[0].isdigit()
        and int(built.partition(".")[0]) > driver.cuda[0]
    ):
        return f"built with CUDA {built}, and {driver.describe()}"
    return f"the CUDA runtime does not accept the driver ({driver.describe()})"
