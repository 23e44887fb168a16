"""A project: a directory with `vendor/pins.toml` and `patches/`, and the lock that keeps processes apart."""

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
    """Where everything of one project lies."""

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
        """What pyggml keeps for itself: lock, journal, undo records, builds. Never committed."""
        return self.root / ".pyggml"

    @property
    def build_dir(self) -> Path:
        return self.state_dir / "build"

    def make_state_dir(self) -> Path:
        """Create the state directory, hidden from the user's own git, and return it."""
        ignore = self.state_dir / ".gitignore"
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            if not ignore.exists():
                ignore.write_bytes(b"*\n")
        except OSError as error:
            raise PyggmlError(f"cannot write in {self.state_dir}: {error.strerror or error}") from error
        return self.state_dir

    @contextlib.contextmanager
    def lock(self, doing: str, patience: float = LOCK_PATIENCE_SECONDS) -> Iterator[None]:
        """Hold the project for the time of a change; the system lets go of it if the process dies.

        Args:
            doing: the command, for the message that another process shows (`patch apply`).
            patience: seconds to wait for a process that holds it.

        Raises:
            PyggmlError: another process holds the project for longer than `patience`.
        """
        import filelock

        state = self.make_state_dir()
        owner = state / "lock.owner"
        lock = filelock.FileLock(state / "lock")
        try:
            lock.acquire(timeout=patience)
        except filelock.Timeout as error:
            with contextlib.suppress(OSError):
                who = owner.read_text("utf-8").strip()
                raise PyggmlError(
                    f"another pyggml is working on this project ({who})",
                    "Wait until it has finished, or stop it, and run the command again.",
                ) from error
            raise PyggmlError(
                "another pyggml is working on this project",
                "Wait until it has finished, or stop it, and run the command again.",
            ) from error
        try:
            with contextlib.suppress(OSError):
                owner.write_text(f"process {os.getpid()}, {doing}\n", "utf-8")
            yield
        finally:
            lock.release()


def is_project(directory: Path) -> bool:
    return (directory / "vendor" / "pins.toml").is_file() and (directory / "patches").is_dir()


def find_project(start: Path, explicit: Path | None = None) -> Project:
    """The project that `start` lies in, looked for upwards as git looks for its repository.

    Args:
        start: a directory, normally the working directory.
        explicit: a directory named by the user (`--project`), taken as it is.

    Raises:
        UsageError: there is none, or `explicit` is none.
    """
    if explicit is not None:
        if not is_project(explicit):
            raise UsageError(
                f"{explicit} is not a pyggml project: it has no vendor/pins.toml beside patches/",
                f"Make it one with: pyggml init {explicit}",
            )
        return Project(explicit.resolve())
    here = start.resolve()
    for directory in (here, *here.parents):
        if is_project(directory):
            return Project(directory)
    raise UsageError(
        f"no pyggml project in {here} or above it",
        "Go to one, name one with --project DIR, or make one with: pyggml init",
    )
