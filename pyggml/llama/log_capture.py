"""Captures llama.cpp's log during a call: its C interface returns NULL, the reason is only in the log."""

from __future__ import annotations

import logging
import re
import threading
from types import TracebackType
from typing import Self

LOGGERS = ("pyggml.llama", "pyggml.ggml")
_MAX_LINES = 8
_FUNCTION_PREFIX = re.compile(r"^[A-Za-z_~][\w:~]*: (?=\S)")
_WITHOUT_REASON = re.compile(
    r"(failed to load model|failed to decode, ret = -?\d+|failed to encode, ret = -?\d+"
    r"|failed to initialize batch|failed to initialize the context)$"
)
"""Lines that only say that something failed."""


class LogCapture(logging.Handler):
    """Collects the warnings and errors that this thread's C calls log in a `with` block.

    They still reach all other handlers of those loggers.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            line = _FUNCTION_PREFIX.sub("", record.getMessage().strip())
            if line and line not in self.lines:
                self.lines.append(line)
                del self.lines[:-_MAX_LINES]

    def reason(self, otherwise: str = "llama.cpp gave no reason") -> str:
        """The captured lines joined into one, without those that give no reason if there are others."""
        reasons = [line for line in self.lines if not _WITHOUT_REASON.match(line)]
        return "; ".join(reasons or self.lines) or otherwise

    def __enter__(self) -> Self:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
