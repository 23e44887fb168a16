"""Compiling the virtual devices (the C++ in vdev/) against one build."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.files import remove_file
from pyggml.native.preprocess import first_error, run_compiler, source_of

LIBRARY = "libpyggml-vdev.so"
SOURCES = Path(__file__).parent / "vdev"

_HEADERS = ("ggml/include/*.h", "ggml/src/ggml-backend-impl.h", "ggml/src/ggml-impl.h")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_LINKED = ("libggml.so", "libggml-base.so")
_FINGERPRINT = re.compile(rb"pyggml-vdev-fingerprint:([0-9a-f]{16})-([0-9a-f]{16});")


def compile_vdev(
    build: Build,
    source: Path | None = None,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """The virtual devices of a build, compiled (4 s) if sources, headers or compiler have changed.

    Args:
        source: the tree that was built; by default the one that CMake was configured with.
        directory: where the library goes; by default the build's python/.
        say: called with a line when it compiles.

    Returns:
        The library.

    Raises:
        PyggmlError: the build has no shared ggml, a header is missing, or the compiler fails (with its first
            error); a library that was there stays.
    """
    source = source or source_of(build)
    directory = (directory or build.directory / "python").resolve()
    library = directory / LIBRARY
    fingerprint = (_own_key(build, directory), _header_key(source))
    if _fingerprint_of(library) != fingerprint:
        say("compiling the virtual devices")
        _compile(build, source, library, fingerprint)
    return library


def find_vdev(build: Build, say: Callable[[str], None] = lambda text: None) -> Path:
    """The virtual devices of a build, for running its programs, even if the work tree has moved on.

    Raises:
        PyggmlError: see compile_vdev; or they are not compiled yet and the headers are no longer the build's.
    """
    source = source_of(build)
    directory = (build.directory / "python").resolve()
    fingerprint = _fingerprint_of(directory / LIBRARY)
    if fingerprint is not None and fingerprint[0] == _own_key(build, directory):
        with contextlib.suppress(PyggmlError):
            if fingerprint[1] == _header_key(source):
                return directory / LIBRARY
        if _goes_with(build, directory / LIBRARY) or _moved_on(build, source):
            return directory / LIBRARY
    elif _moved_on(build, source):
        raise PyggmlError(
            f"the headers in {source} are not those that {build.record.variant} was built from",
            "Build again: pyggml build",
        )
    return compile_vdev(build, source, directory, say)


def _goes_with(build: Build, library: Path) -> bool:
    """Whether it was compiled after the build; then other headers in the work tree are of another tree.

    Their times do not tell: applying and unapplying patches gives files the times that they had before.
    """
    try:
        return library.stat().st_mtime_ns >= (build.bin_dir / "libggml-base.so").stat().st_mtime_ns
    except OSError:
        return False


def _moved_on(build: Build, source: Path) -> bool:
    """Whether a header was written after the library that was built from it."""
    try:
        built = (build.bin_dir / "libggml-base.so").stat().st_mtime
        return any(path.stat().st_mtime > built for path in _headers(source))
    except (OSError, PyggmlError):
        return True


def _headers(source: Path) -> list[Path]:
    headers = sorted(path for pattern in _HEADERS for path in source.glob(pattern))
    if not any(path.name == "ggml-backend-impl.h" for path in headers):
        raise PyggmlError(
            f"{source} has no ggml/src/ggml-backend-impl.h",
            "The virtual devices are compiled against the tree that was built. Bring it back: pyggml patch apply",
        )
    return headers


def _header_key(source: Path) -> str:
    return _digest(path.read_bytes() for path in _headers(source))


def _own_key(build: Build, directory: Path) -> str:
    own = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp", ".h"))
    command = [build.record.tools.get("cxx_version", ""), *_command(build, directory)]
    return _digest(
        [*("\0".join(command).encode("utf-8", "surrogateescape"),), *(p.read_bytes() for p in own)]
    )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _fingerprint_of(library: Path) -> tuple[str, str] | None:
    try:
        match = _FINGERPRINT.search(library.read_bytes())
    except OSError:
        return None
    return (match[1].decode(), match[2].decode()) if match else None


def _command(build: Build, directory: Path) -> list[str]:
    options = build.record.options
    # The linker would split this path at a colon or comma; with $ORIGIN it has no parent directories.
    rpath = os.path.relpath(build.bin_dir.resolve(), directory)
    # The thread sanitizer must see the threads of the queues; the others do without.
    thread = ("-fsanitize=thread", "-g") if options.get("GGML_SANITIZE_THREAD") == "ON" else ()
    return [
        build.record.tools.get("cxx", "c++"),
        *shlex.split(options.get("CMAKE_CXX_FLAGS", "")),
        *_FLAGS,
        *thread,
        "-Xlinker",
        "-rpath",
        "-Xlinker",
        f"$ORIGIN/{rpath}",
    ]


def _compile(build: Build, source: Path, library: Path, fingerprint: tuple[str, str]) -> None:
    linked = [build.bin_dir / name for name in _LINKED]
    for path in linked:
        if not path.is_file():
            raise PyggmlError(
                f"the build {build.record.variant} has no {path.name}: virtual devices need shared libraries",
                "Build it: pyggml build",
            )
    command = [
        *_command(build, library.parent),
        f'-DPYGGML_VDEV_FINGERPRINT="{fingerprint[0]}-{fingerprint[1]}"',
        f"-I{SOURCES}",
        # Upstream's headers define static functions that need not be used: no warnings about those.
        *(word for path in ("ggml/include", "ggml/src") for word in ("-isystem", str(source / path))),
        *map(str, sorted(SOURCES.glob("*.cpp"))),
        *map(str, linked),
    ]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{library.name}.", suffix=".new", dir=library.parent)
    except OSError as error:
        raise PyggmlError(f"cannot write {library}: {error.strerror or error}") from error
    os.close(handle)
    beside = Path(name)
    try:
        done = run_compiler([*command, "-o", str(beside)], library.parent)
        if done.returncode != 0:
            raise PyggmlError(
                f"the virtual devices cannot be compiled against {source}:\n{first_error(done.stderr)}",
                "If the tree's patches change ggml-backend-impl.h, pyggml's vdev sources must follow.",
            )
        beside.chmod(0o755)
        beside.replace(library)
    except OSError as error:
        raise PyggmlError(f"cannot write {library}: {error.strerror or error}") from error
    finally:
        remove_file(beside)
