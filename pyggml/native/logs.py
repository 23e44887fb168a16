"""ggml's and llama.cpp's logs, line by line, in Python's logging; the last words of a process that aborts."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from types import FrameType
from typing import Any

from pyggml.errors import PyggmlError

ABORT_FD = "PYGGML_ABORT_FD"
ABORT_PID = "PYGGML_ABORT_PID"
"""If set, the process that ABORT_FD is meant for: others inherit the variable, but not the descriptor."""
LONGEST_LINE = 65536
"""Bytes that are kept of an unfinished line."""


class LineLogger:
    """A log callback: pieces of lines in, records of Python's logging out.

    Upstream prints lines in pieces; GGML_LOG_LEVEL_CONT says that a piece continues a line. Text is decoded as
    UTF-8, with other bytes replaced: it may quote a model file.
    """

    def __init__(self, name: str, levels: dict[int, int], continued: int) -> None:
        """
        Args:
            name: of the logger.
            levels: ggml's levels to Python's.
            continued: ggml's level for a piece that continues a line.
        """
        self._logger = logging.getLogger(name)
        self._levels = levels
        self._continued = continued
        self._here = threading.local()

    def __call__(self, level: int, text: bytes) -> None:
        state = self._here
        pending: bytes = getattr(state, "text", b"")
        if level != self._continued:
            if pending:
                self._emit(state.level, pending)
            pending = b""
            state.level = self._levels.get(level, logging.INFO)
        elif not hasattr(state, "level"):
            state.level = logging.INFO
        *lines, rest = (pending + text).split(b"\n")
        state.text = rest[:LONGEST_LINE]
        for line in lines:
            self._emit(state.level, line)

    def flush(self) -> None:
        """Emit this thread's unfinished line."""
        pending: bytes = getattr(self._here, "text", b"")
        self._here.text = b""
        if pending:
            self._emit(self._here.level, pending)

    def _emit(self, level: int, line: bytes) -> None:
        if line.strip() and self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", line.decode("utf-8", "replace").rstrip())


def levels_of(lib: Any) -> dict[int, int]:
    """ggml's levels to Python's; NONE is text without a level."""
    return {
        lib.GGML_LOG_LEVEL_NONE: logging.INFO,
        lib.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
        lib.GGML_LOG_LEVEL_INFO: logging.INFO,
        lib.GGML_LOG_LEVEL_WARN: logging.WARNING,
        lib.GGML_LOG_LEVEL_ERROR: logging.ERROR,
    }


def abort_descriptor() -> int:
    """Where last words go: the file descriptor in PYGGML_ABORT_FD, or standard error.

    Raises:
        PyggmlError: the variable is not the number of an open descriptor.
    """
    text = os.environ.get(ABORT_FD)
    own = str(os.getpid())
    if text is None or os.environ.get(ABORT_PID, own) != own:
        return 2
    try:
        descriptor = int(text)
        os.fstat(descriptor)
    except (ValueError, OSError) as error:
        raise PyggmlError(
            f"{ABORT_FD} is {text!r}, which is no open file descriptor",
            "Pass the descriptor on to this process (pass_fds), or unset it for standard error.",
        ) from error
    return descriptor


def last_words(own_frame: FrameType | None) -> bytes:
    """The Python stacks of a process that is about to abort, that of the thread that called C first.

    Args:
        own_frame: the frame of the caller of the C function, None on a thread that C made.
    """
    here = threading.get_ident()
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    if own_frame is not None:
        parts += ["Python stack (most recent call last):\n", *traceback.format_stack(own_frame)]
    for ident, frame in frames.items():
        if ident != here:
            parts.append(f"Python stack of thread {names.get(ident, ident)} (most recent call last):\n")
            parts += traceback.format_stack(frame)
    return "".join(parts).encode("utf-8", "backslashreplace")


def write_all(descriptor: int, data: bytes) -> None:
    """Write to a descriptor and ignore errors: the process is about to end."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return
