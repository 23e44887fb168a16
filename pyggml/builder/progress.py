"""Ninja's output, understood: steps done, and the first thing that went wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

NINJA_STATUS = "[%f/%t] "
_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(.*)$")
_ERROR = re.compile(
    r"\berror\b[: ]|undefined reference|cannot find|\bKilled\b|No space left|Error \d", re.IGNORECASE
)
_ERROR_LINES = 8

DISK_FULL = "No space left on device"
# The last is nvcc's of its own helpers.
_OUT_OF_MEMORY = re.compile(
    r"Killed signal|: Killed\b|virtual memory exhausted|cannot allocate memory|died due to signal 9\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Step:
    """`done` of `total` steps are finished, the last of them `what`."""

    done: int
    total: int
    what: str

    @property
    def file(self) -> str:
        """What the step made: `llama.cpp` of an object file, else the file's own name.

        >>> Step(1, 2, "Building CXX object src/CMakeFiles/llama.dir/llama.cpp.o").file
        'llama.cpp'
        """
        return PurePath(self.what.split(" ")[-1]).name.removesuffix(".o")


Report = Callable[[Step], None]


class NinjaOutput:
    """Fed Ninja's output line by line; knows how far it is and what failed first.

    Ninja (`NINJA_STATUS` as above, not on a terminal) prints a line for each finished step and, for one
    that fails, `FAILED: <outputs>`, the command, and what the command printed.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.report = report
        self.steps = 0
        self.failed = False
        self.failed_target = ""
        self.disk_full = False
        self.out_of_memory = False
        self._failed_output: list[str] = []
        self._messages: list[str] = []
        self._cmake_error: list[str] = []
        self._state = "outside"

    def feed(self, line: str) -> None:
        line = line.rstrip("\r\n")
        self.disk_full = self.disk_full or DISK_FULL in line
        # CMake, run again by Ninja, writes past it, before the FAILED line.
        if line.startswith("CMake Error") or 0 < len(self._cmake_error) < _ERROR_LINES:
            self._cmake_error.append(line)
        status = _STATUS.match(line)
        if status:
            self._state = "over" if self.failed else "outside"
            # Ninja first brings its own build.ninja up to date; that run has its own count.
            if "Re-running CMake" not in status[3]:
                self.steps = int(status[1])
                if self.report is not None:
                    self.report(Step(self.steps, int(status[2]), status[3]))
        elif failed := _FAILED.match(line):
            self._state = "over" if self.failed else "command"
            self.failed_target = self.failed_target or failed[1]
            self.failed = True
        elif line.startswith("ninja: "):
            self._state = "over" if self.failed else "outside"
            if not line.startswith(("ninja: no work to do", "ninja: Entering directory")):
                self._messages.append(line)
        elif self._state == "command":
            self._state = "output"
        elif self._state == "output":
            self._failed_output.append(line)
            self.out_of_memory = self.out_of_memory or bool(_OUT_OF_MEMORY.search(line))

    def first_error(self) -> list[str]:
        """The first error in at most eight lines, from where the failing step first says `error`."""
        lines = [line for line in self._failed_output if line.strip()]
        lines = lines or [line for line in self._cmake_error if line.strip()] or self._messages
        start = next((n for n, line in enumerate(lines) if _ERROR.search(line)), 0)
        shown = lines[start : start + _ERROR_LINES]
        return [line if len(line) <= 300 else line[:297] + "..." for line in shown]
