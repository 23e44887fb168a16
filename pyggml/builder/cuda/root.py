"""A toolkit root made of links, over files that are laid out for Python and must stay as they are.

The NVIDIA wheels have everything but what linking needs: unversioned library names, `lib64`, and a driver
to link against. nvcc finds its parts from the path that it was started by, so links to files will do.
The links are relative: project and virtual environment can be moved together.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pyggml.builder.cuda.parts import INCLUDE_DIRS, LIBRARY_DIRS, find_header
from pyggml.builder.cuda.stub import make_stub
from pyggml.errors import PyggmlError

_MARK = "pyggml-toolkit.json"
_FORMAT = 1


def assemble(
    root: Path,
    toolkit: Path,
    version: str,
    compiler: Path,
    nccl: Path | None = None,
    completed_by: Sequence[Path] = (),
) -> bool:
    """Make `root` a complete toolkit of links over `toolkit`, unless it is already.

    Args:
        root: the directory to make; one that is there is replaced as a whole.
        toolkit: what to link to.
        version: of the toolkit, in full; with another one the root is made again.
        compiler: a C compiler, for the driver stub.
        nccl: a directory with NCCL's `include` and `lib`, linked as `nccl/`.
        completed_by: other toolkits, for what `toolkit` has not got.

    Returns:
        Whether it was made now.

    Raises:
        PyggmlError: the stub cannot be compiled.
        OSError: no space, no permission.
    """
    mark: dict[str, object] = {
        "format": _FORMAT,
        "toolkit": str(toolkit),
        "version": version,
        "nccl": str(nccl or ""),
    }
    parts = (toolkit, *completed_by)
    if completed_by:
        mark["completed_by"] = [str(one) for one in completed_by]
    if _is(root, mark):
        return False
    fresh = root.with_name(f"{root.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    # Links are relative to where the root will lie, which has the same parent.
    for name, target in _links(parts, nccl):
        _link(fresh / name, target)
    (fresh / "lib64").symlink_to("lib")
    header = next(filter(None, (find_header(part, "cuda.h") for part in parts)), None)
    if header is None:
        raise PyggmlError(f"{toolkit} has no cuda.h", "Reinstall the toolkit.")
    stubs = fresh / "lib" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    make_stub(header, stubs / "libcuda.so", compiler)
    (fresh / _MARK).write_text(json.dumps(mark, indent=2) + "\n", "utf-8")
    # A version of the root that is half gone has no mark, or one with dangling links: it is made again.
    shutil.rmtree(root, ignore_errors=True)
    fresh.rename(root)
    return True


def _links(parts: Sequence[Path], nccl: Path | None) -> Iterator[tuple[str, Path]]:
    for name in ("bin", "nvvm/bin", "nvvm/libdevice"):
        yield from _entries(name, (part / name for part in parts))
    includes = [part / name for part in parts for name in INCLUDE_DIRS if (part / name).is_dir()]
    if len(parts) == 1:
        yield "include", next(one for one in includes if (one / "cuda.h").is_file())
    else:
        yield from _entries("include", includes)
    seen: set[str] = set()
    for part in parts:
        for name in LIBRARY_DIRS:
            yield from _libraries("lib", part / name, seen)
    if nccl is not None:
        yield "nccl/include", nccl / "include"
        yield from _libraries("nccl/lib", nccl / "lib", set())


def _entries(name: str, directories: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """What the directories hold; of entries with the same name the first."""
    seen: set[str] = set()
    for directory in directories:
        for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
            if entry.name not in seen:
                seen.add(entry.name)
                yield f"{name}/{entry.name}", entry


def _libraries(name: str, directory: Path, seen: set[str]) -> Iterator[tuple[str, Path]]:
    """The files of a library directory, and for each `libX.so.1` without a `libX.so` that name as well."""
    if not directory.is_dir():
        return
    entries = [entry for entry in sorted(directory.iterdir()) if entry.name != "stubs"]
    aliases = [
        (found[1], entry)
        for entry in entries
        if (found := re.fullmatch(r"(lib.+\.so)\.\d[\d.]*", entry.name))
    ]
    for alias, entry in [*((entry.name, entry) for entry in entries), *aliases]:
        if alias not in seen:
            seen.add(alias)
            yield f"{name}/{alias}", entry


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    # `..` in a link counts from the directory's true place.
    start = os.path.realpath(link.parent)
    link.symlink_to(os.path.relpath(Path(os.path.realpath(target.parent)) / target.name, start))


def _is(root: Path, mark: dict[str, object]) -> bool:
    try:
        if json.loads((root / _MARK).read_bytes()) != mark:
            return False
    except (OSError, ValueError):
        return False
    links = (path for name in ("", "bin", "lib", "nvvm", "nvvm/bin") for path in (root / name).iterdir())
    return all(path.exists() for path in links) and (root / "lib" / "stubs" / "libcuda.so").is_file()
