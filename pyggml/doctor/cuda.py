"""Checks CUDA: toolkit, driver, GPUs. The CPU build needs none of it."""

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
    """What `pyggml build --cuda` would use."""
    driver = read_driver(env) if driver is None else driver
    yield from _toolkit(env, driver)
    text = driver.describe().partition(", but ")[0].partition(", ")[0] if driver.cuda else driver.describe()
    fix = (
        ""
        if driver.state in ("ready", "no-gpu")
        else "if there is an NVIDIA GPU, install its driver (580 or newer for CUDA 13)"
    )
    yield Row(_GROUP, "driver", "optional" if fix else "ok", text, fix)
    for index, gpu in enumerate(driver.gpus):
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
        yield Row(
            _GROUP, f"GPU {index}", "ok", f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, capability {capability}"
        )
    if not driver.gpus:
        yield Row(
            _GROUP,
            "GPU",
            "optional",
            "none; pyggml build --cuda works without one, but the programs need one",
        )


def _toolkit(env: Mapping[str, str], driver: Driver) -> Iterator[Row]:
    try:
        toolkit = choose_toolkit(None, driver, env=env)
    except PyggmlError as error:
        yield Row(_GROUP, "toolkit", "optional", error.message, error.hint or "")
        return
    kind = "from the NVIDIA wheels in" if toolkit.kind == "wheels" else "in"
    text = f"CUDA {toolkit.version} {kind} {toolkit.root}"
    if toolkit.completed_by is not None:
        wheels = ", ".join(f"{name} {version}" for name, version in toolkit.wheels.items())
        text += f", completed by the wheels {wheels}"
    elif toolkit.rejected:
        text += "".join(f" (not {root}: {why})" for root, why in toolkit.rejected)
    yield Row(_GROUP, "toolkit", "ok", text)
    yield from _host_compiler(env, toolkit)


def _host_compiler(env: Mapping[str, str], toolkit: Toolkit) -> Iterator[Row]:
    """Whether nvcc accepts the host compiler; a missing one is reported among the tools."""
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
