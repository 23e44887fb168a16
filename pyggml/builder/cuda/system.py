"""CUDA toolkits installed on the machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyggml.builder.cuda.parts import toolkit_of

VARIABLES = ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH")
USUAL = (Path("/usr/local"), Path("/opt"))
"""Where installers put `cuda` and `cuda-13.0`."""


def system_toolkits(env: Mapping[str, str], usual: tuple[Path, ...] = USUAL) -> Iterator[Path]:
    """Roots of toolkits, the one most likely meant first: by environment, by PATH, at the usual places.

    Args:
        env: the environment to look in.
        usual: directories that hold `cuda` and `cuda-*`.
    """
    seen: set[Path] = set()
    for root in _candidates(env, usual):
        real = root.resolve()
        if real not in seen and (root / "bin" / "nvcc").is_file():
            seen.add(real)
            yield root


def _candidates(env: Mapping[str, str], usual: tuple[Path, ...]) -> Iterator[Path]:
    for name in VARIABLES:
        if env.get(name):
            yield Path(env[name]).absolute()
    for program in filter(None, (env.get("CUDACXX"), "nvcc")):
        found = shutil.which(program, path=env.get("PATH", ""))
        if found:
            yield toolkit_of(Path(found).absolute())
    for place in usual:
        yield place / "cuda"
        yield from sorted(place.glob("cuda-[0-9]*"), key=_numbers, reverse=True)


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]
