"""What llama.cpp says while a call fails: its C interface returns NULL, the reason is in its log."""

from __future__ import annotations

import logging
import re
import threading
from types import TracebackType
from typing import Self

LOGGERS = ("pyggml.llama", "pyggml.ggml")
_MOST_LINES = 8
_FUNCTION = re.compile(r"^[A-Za-z_~][\w:~]*: (?=\S)")


class Listener(logging.Handler):
    """Collects the warnings and errors that this thread's C calls log within a `with` block.

    They still reach every other handler of those loggers.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            line = _FUNCTION.sub("", record.getMessage().strip())
            if line and line not in self.lines:
                self.lines.append(line)
                del self.lines[:-_MOST_LINES]

    def reason(self, otherwise: str = "llama.cpp gave no reason") -> str:
        """The collected lines in one, those that say only that something failed left out where possible."""
        telling = [line for line in self.lines if not _EMPTY_WORDS.match(line)]
        return "; ".join(telling or self.lines) or otherwise

    def __enter__(self) -> Self:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)


_EMPTY_WORDS = re.compile(
    r"(failed to load model|failed to decode, ret = -?\d+|failed to encode, ret = -?\d+"
    r"|failed to initialize batch|failed to initialize the context)$"
)
