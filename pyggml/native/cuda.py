"""The CUDA backend of a build, a plugin that libggml.so loads where there is a driver; why there is no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyggml.build.cuda.loadable import LIBRARY, load_problem
from pyggml.build.record import Build
from pyggml.errors import PyggmlError

if TYPE_CHECKING:
    from pyggml.native.load import Bindings


def has_cuda(build: Build) -> bool:
    """Whether the build was made with `pyggml build --cuda`."""
    return (build.bin_dir / LIBRARY).is_file()


def load_cuda(bindings: Bindings | None = None) -> tuple[str, ...]:
    """The CUDA devices in this process, or the reason why there are none.

    ggml loads the backend when its registry is first looked at, unless PYGGML_CUDA=0 keeps it out; this
    loads it even then. `GGML_CUDA_DEVICES=4` in the environment makes four devices of the GPUs
    there are, for backends that know it.

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
    registry = lib.ggml_backend_reg_by_name(b"CUDA")
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


def why_no_device(build: Build) -> str:
    """Why the build sees no CUDA device here, in a line."""
    from pyggml.build.cuda.driver import read_driver

    library = build.bin_dir / LIBRARY
    if not library.is_file():
        return f"the build {build.record.variant} is without CUDA; make one with: pyggml build --cuda"
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
    return f"the CUDA runtime refuses what the driver offers ({driver.describe()})"
