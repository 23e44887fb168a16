"""CUDA: toolkit, driver, GPUs. None of it is needed for the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyggml.build.cuda.driver import Driver, read_driver
from pyggml.build.cuda.toolkit import choose_toolkit
from pyggml.doctor.report import Row
from pyggml.errors import PyggmlError

_GROUP = "cuda"


def cuda_rows(env: Mapping[str, str], driver: Driver | None = None) -> Iterator[Row]:
    """What `pyggml build --cuda` would find."""
    driver = read_driver(env) if driver is None else driver
    yield _toolkit(env, driver)
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


def _toolkit(env: Mapping[str, str], driver: Driver) -> Row:
    try:
        found = choose_toolkit(None, driver, env=env)
    except PyggmlError as error:
        return Row(_GROUP, "toolkit", "optional", error.message, error.hint or "")
    kind = "from the NVIDIA wheels in" if found.kind == "wheels" else "in"
    if found.completed_by is not None:
        completed = ", ".join(f"{name} {version}" for name, version in found.wheels.items())
        return Row(
            _GROUP,
            "toolkit",
            "ok",
            f"CUDA {found.version} in {found.root}, completed by the NVIDIA wheels {completed}",
        )
    passed_over = "".join(f" (not {root}: {why})" for root, why in found.rejected)
    return Row(_GROUP, "toolkit", "ok", f"CUDA {found.version} {kind} {found.root}{passed_over}")
