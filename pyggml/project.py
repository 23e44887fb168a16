"""A project: a directory with `vendor/pins.toml` and `patches/`, and its lock against other processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyggml.errors import PyggmlError, UsageError

LOCK_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Project:
    """The paths of a project."""

    root: Path

    @property
    def pins_file(self) -> Path:
        return self.root / "vendor" / "pins.toml"

    @property
    def vendor_dir(self) -> Path:
        return self.root / "vendor"

    @property
    def patches_dir(self) -> Path:
        return self.root / "patches"

    @property
    def state_dir(self) -> Path:
        """pyggml's own data: lock, journal, undo records, builds. Never committed."""
        return self.root / ".pyggml"

    @property
    def build_dir(self) -> Path:
        return self.state_dir / "build"

    def make_state_dir(self) -> Path:
        """Create the state directory, ignored by the user's own git, and return it."""
        ignore = self.state_dir / ".gitignore"
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            if not ignore.exists():
                ignore.write_bytes(b"*\n")
        except OSError as error:
            raise PyggmlError(f"cannot write to {self.state_dir}: {error.strerror or error}") from error
        return self.state_dir

    @contextlib.contextmanager
    def lock(self, doing: str, patience: float = LOCK_PATIENCE_SECONDS) -> Iterator[None]:
        """Lock the project during a change; the operating system releases the lock if the process dies.

        Args:
            doing: the command (`patch apply`), for the error message of another process.
            patience: seconds to wait for a process that holds the lock.

        Raises:
            PyggmlError: another process held the lock for longer than `patience`.
        """
        import filelock

        state = self.make_state_dir()
        owner = state / "lock.owner"
        lock = filelock.FileLock(state / "lock")
        try:
            lock.acquire(timeout=patience)
        except filelock.Timeout as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = f" ({owner.read_text('utf-8').strip()})"
            raise PyggmlError(
                f"another pyggml is working on this project{holder}",
                "Wait until it has finished, or stop it, and run the command again.",
            ) from error
        try:
            with contextlib.suppress(OSError):
                owner.write_text(f"process {os.getpid()}, {doing}\n", "utf-8")
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def lock_part(self, part: str, busy: str) -> Iterator[Path]:
        """Lock a folder of the state directory; the rest of the project stays usable.

        Args:
            busy: the error message if another process works there.

        Yields:
            the folder.

        Raises:
            PyggmlError: another process works there.
        """
        import filelock

        place = self.make_state_dir() / part
        place.mkdir(exist_ok=True)
        try:
            with filelock.FileLock(place / "lock", timeout=1):
                yield place
        except filelock.Timeout as error:
            raise PyggmlError(
                busy, "Wait until it has finished, or stop it, and run the command again."
            ) from error


def is_project(directory: Path) -> bool:
    return (directory / "vendor" / "pins.toml").is_file() and (directory / "patches").is_dir()


def find_project(start: Path, explicit: Path | None = None) -> Project:
    """The project around `start`, searched upwards the way git finds its repository.

    Args:
        start: a directory, normally the working directory.
        explicit: a directory given by the user (`--project`), used as it is.

    Raises:
        UsageError: there is no project, or `explicit` is not one.
    """
    if explicit is not None:
        if not is_project(explicit):
            raise UsageError(
                f"{explicit} is not a pyggml project: it needs vendor/pins.toml and patches/",
                f"Create one with: pyggml init {explicit}",
            )
        return Project(explicit.resolve())
    here = start.resolve()
    for directory in (here, *here.parents):
        if is_project(directory):
            return Project(directory)
    raise UsageError(
        f"no pyggml project in {here} or above it",
        "Change to one, give one with --project DIR, or create one with: pyggml init",
    )
