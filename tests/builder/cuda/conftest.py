"""Toolkits, wheels and drivers that are made of directories and scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver, Gpu

HOST_CONFIG = """\
#if defined(__GNUC__)
#if __GNUC__ > 13
#error -- unsupported GNU version! gcc versions later than 13 are not supported!
#endif
#if (__GRCO_CLANG_COMPILER__ == 1) && ((__clang_major__ < 16) || (__clang_major__ > 17))
#error
#endif
#if (__clang_major__ >= 18) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#error -- unsupported clang version!
#endif
#endif
"""
CUDA_H = """\
#define CUDA_VERSION 12040
#define cuDeviceTotalMem                    cuDeviceTotalMem_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuStreamWait __CUDA_API_PTSZ(cuStreamWait)
#define CU_IPC_HANDLE_SIZE 64
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr);
CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size);
CUresult CUDAAPI
cuDeviceGet(CUdevice *device, int ordinal);
typedef void (CUDA_CB *CUhostFn)(void *userData);
"""
FILES = (
    "bin/nvcc.profile", "bin/ptxas", "bin/fatbinary", "bin/cudafe++", "bin/nvlink",
    "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc",
    "include/cuda_runtime.h", "include/cublas_v2.h", "include/cccl/cub/cub.cuh",
)  # fmt: skip
LIBRARIES = ("cudart", "cublas", "cublasLt")

MakeToolkit = Callable[..., Path]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def script(path: Path, body: str) -> Path:
    write(path, f"#!{sys.executable}\n{body}\n").chmod(0o755)
    return path


def make_toolkit(
    root: Path,
    version: str = "12.4.131",
    numbers: Iterable[int] = (50, 60, 70, 75, 80, 86, 89, 90),
    *,
    without: Iterable[str] = (),
    raw: bool = False,
) -> Path:
    """A toolkit; `raw` as the wheels lay it out, `without` files whose path holds one of these words."""
    release = ".".join(version.split(".")[:2])
    archs = "\\n".join(f"compute_{number}" for number in numbers)
    nvcc = (
        "import os, sys\n"
        "here = os.path.dirname(sys.argv[0])\n"
        "if '--version' in sys.argv:\n"
        f"    print('Cuda compilation tools, release {release}, V{version}')\n"
        f"elif '--list-gpu-arch' in sys.argv:\n    print('{archs}')\n"
        "elif '-v' in sys.argv:\n    print('#$ _HERE_=' + here)\n    print('#$ TOP=' + here + '/..')\n"
        "    sys.exit(1)\n"
    )
    script(root / "bin" / "nvcc", nvcc)
    for name in FILES:
        write(root / name)
    write(root / "include" / "crt" / "host_config.h", HOST_CONFIG)
    write(root / "include" / "cuda.h", CUDA_H)
    for name in LIBRARIES:
        write(root / ("lib" if raw else "lib64") / f"lib{name}.so{'.12' if raw else ''}")
    if not raw:
        write(root / "lib64" / "stubs" / "libcuda.so")
    for path in list(root.rglob("*")):
        if any(word in str(path.relative_to(root)) for word in without) and path.is_file():
            path.unlink()
    return root


def make_wheel(site: Path, name: str, version: str) -> None:
    directory = site / f"{name.replace('-', '_')}-{version}.dist-info"
    write(directory / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def make_wheels(site: Path, versions: dict[str, str] | None = None, release: str = "13.0.88") -> Path:
    """The six wheels in a site-packages directory; `versions` replaces single ones, empty leaves one out."""
    names = ("nvcc", "crt", "runtime", "cccl")
    all_versions = {f"nvidia-cuda-{name}": release for name in names}
    all_versions |= {"nvidia-nvvm": release, "nvidia-cublas": "13.0.2.14", **(versions or {})}
    for name, version in all_versions.items():
        if version:
            make_wheel(site, name, version)
    make_toolkit(site / "nvidia" / "cu13", release, (75, 80, 86, 89, 90, 100, 120), raw=True)
    return site


def gpu(name: str, major: int, minor: int) -> Gpu:
    return Gpu(name, (major, minor), 1 << 34)


H200 = gpu("NVIDIA H200", 9, 0)
NO_DRIVER = Driver("absent", problem="libcuda.so.1: cannot open shared object file")


@pytest.fixture
def toolkit(tmp_path: Path) -> MakeToolkit:
    def make(name: str = "cuda", version: str = "12.4.131", **options: object) -> Path:
        return make_toolkit(tmp_path / "opt ü" / name, version, **options)  # type: ignore[arg-type]

    return make
