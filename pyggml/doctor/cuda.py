"""CUDA: toolkit, driver, GPUs. None of it is needed for the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyggml.builder.cuda.driver import Driver, read_driver
from pyggml.builder.cuda.setup import host_for
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.toolchain import find_compilers
from pyggml.doctor.report import Row
from pyggml.errors import PyggmlError

_GROUP = "cuda"


def cuda_rows(env: Mapping[str, str], driver: Driver | None = None) -> Iterator[Row]:
    """What `pyggml build --cuda` would find."""
    driver = read_driver(env) if driver is None else driver
    yield from _toolkit(env, driver)
    text = driver.describe().partition(", but ")[0].partition(", ")[0] if driver.cuda else driver.describe()
    fix = (
        ""
        if driver.state in ("ready", "no-gpu")
        else "with an NVIDIA GPU: install its driver (580 or newer for CUDA 13)"
    )
    yield Row(_GROUP, "driver", "optional" if fix else "ok", text, fix)
    for index, gpu in enumerate(driver.gpus):
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
        yield Row(
            _GROUP, f"GPU {index}", "ok", f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, capability {capability}"
        )
    if not driver.gpus:
        yield Row(_GROUP, "GPU", "optional", "none; pyggml build --cuda works without, the programs need one")


def _toolkit(env: Mapping[str, str], driver: Driver) -> Iterator[Row]:
    try:
        found = choose_toolkit(None, driver, env=env)
    except PyggmlError as error:
        yield Row(_GROUP, "toolkit", "optional", error.message, error.hint or "")
        return
    kind = "from the NVIDIA wheels in" if found.kind == "wheels" else "in"
    text = f"CUDA {found.version} {kind} {found.root}"
    if found.completed_by is not None:
        wheels = ", ".join(f"{name} {version}" for name, version in found.wheels.items())
        text += f", completed by the wheels {wheels}"
    elif found.rejected:
        text += "".join(f" (not {root}: {why})" for root, why in found.rejected)
    yield Row(_GROUP, "toolkit", "ok", text)
    yield from _host(env, found)


def _host(env: Mapping[str, str], toolkit: Toolkit) -> Iterator[Row]:
    """A host compiler that nvcc would refuse; that there is none at all is said among the tools."""
    try:
        (_, (cxx, _, _)) = find_compilers(env, env.get("PATH", ""))
    except PyggmlError:
        return
    try:
        host = host_for(toolkit, cxx, env)
    except PyggmlError as error:
        yield Row(_GROUP, "host compiler", "optional", error.message, error.hint or "")
        return
    if host.path != cxx.absolute():
        yield Row(_GROUP, "host compiler", "ok", f"{host.path} ({host.family} {host.major}), not {cxx}")
