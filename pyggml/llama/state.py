"""Saved states: upstream's bytes, wrapped so that damaged or foreign ones never reach its reader.

Upstream's format has no length and no checksum: it is checked only while it is read into the cache, in part
by assertions (state_read, src/llama-kv-cache.cpp). So a header says what the state comes from, and a
checksum covers everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError
from pyggml.files import write_output

_VERSION = 1
_MAGIC_WORDS = b"pyggml state "
_MAGIC = b"%b%d\n" % (_MAGIC_WORDS, _VERSION)
_DIGEST_BYTES = 32
_HEADER_LENGTH_BYTES = 4
_MAX_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class State:
    """A state as LlamaContext.save_state returns it.

    Attributes:
        data: the bytes of llama_state_get_data or llama_state_seq_get_data.
        seq: the sequence it was saved from; None for the whole context.
        origin: what must match to restore it, by name: architecture, layers, types of the cache, ...
    """

    data: bytes = field(repr=False)
    seq: int | None
    origin: dict[str, Any]

    def __bytes__(self) -> bytes:
        header = json.dumps({"seq": self.seq, "origin": self.origin}, sort_keys=True).encode()
        body = _MAGIC + len(header).to_bytes(_HEADER_LENGTH_BYTES, "little") + header + self.data
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, blob: bytes, what: str = "the state") -> State:
        """Read what `bytes(state)` wrote.

        Raises:
            PyggmlError: it is not a state, or is damaged.
        """
        blob = bytes(memoryview(blob))
        version = re.match(b"%b(\\d{1,9})\n" % _MAGIC_WORDS, blob)
        if version is not None and int(version[1]) != _VERSION:
            raise PyggmlError(
                f"{what} ({len(blob)} bytes) has version {int(version[1])} of pyggml's state format; this pyggml "
                f"reads version {_VERSION}",
                "Save it again, or read it with the pyggml that wrote it.",
            )
        if not blob.startswith(_MAGIC):
            raise PyggmlError(
                f"{what} ({len(blob)} bytes) was not saved by pyggml",
                "Use what LlamaContext.save_state or State.save wrote.",
            )
        body = memoryview(blob)[:-_DIGEST_BYTES]
        if len(blob) < len(_MAGIC) + _HEADER_LENGTH_BYTES + _DIGEST_BYTES or (
            hashlib.sha256(body).digest() != blob[-_DIGEST_BYTES:]
        ):
            raise PyggmlError(f"{what} ({len(blob)} bytes) is cut off or damaged: its checksum is wrong")
        start = len(_MAGIC) + _HEADER_LENGTH_BYTES
        length = int.from_bytes(body[len(_MAGIC) : start], "little")
        if length > min(_MAX_HEADER_BYTES, len(body) - start):
            raise PyggmlError(f"{what} has an impossible header length: {length} bytes")
        try:
            header = json.loads(bytes(body[start : start + length]))
            seq, origin = header["seq"], dict(header["origin"])
            if seq is not None and not isinstance(seq, int):
                raise TypeError("seq")
        except (ValueError, KeyError, TypeError) as error:
            raise PyggmlError(f"{what} has an unreadable header: {error}") from error
        return cls(bytes(body[start + length :]), seq, origin)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file; an older one is replaced only once the new one is complete.

        Raises:
            PyggmlError: the file cannot be written, or there is no such directory.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise PyggmlError(f"cannot write the state to {path}: there is no directory {path.parent}")
        write_output(path, bytes(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> State:
        """Read what `save` wrote.

        Raises:
            PyggmlError: there is no such file, or it is not a state, or damaged.
        """
        try:
            blob = Path(path).read_bytes()
        except OSError as error:
            raise PyggmlError(f"cannot read a state from {path}: {error.strerror or error}") from error
        return cls.from_bytes(blob, str(path))
