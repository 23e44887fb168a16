"""Saved states: upstream's bytes, wrapped so that damaged or foreign ones never reach its reader.

Upstream checks its bytes as it reads them into the cache, has no length and no checksum, and asserts on
some of what it reads (state_read, src/llama-kv-cache.cpp). So a header says what the state is of, and a
checksum covers it all.
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

_VERSION = 1
_WORDS = b"pyggml state "
_MAGIC = b"%b%d\n" % (_WORDS, _VERSION)
_DIGEST = 32
_HEADER_BYTES = 4
_LONGEST_HEADER = 1 << 16


@dataclass(frozen=True)
class State:
    """A state as LlamaContext.save_state returns it.

    Attributes:
        data: the bytes of llama_state_get_data or llama_state_seq_get_data.
        seq: the sequence it is of; None for the whole context.
        origin: what it can be restored into, by name: architecture, layers, types of the cache, ...
    """

    data: bytes = field(repr=False)
    seq: int | None
    origin: dict[str, Any]

    def __bytes__(self) -> bytes:
        header = json.dumps({"seq": self.seq, "origin": self.origin}, sort_keys=True).encode()
        body = _MAGIC + len(header).to_bytes(_HEADER_BYTES, "little") + header + self.data
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, blob: bytes, what: str = "the state") -> State:
        """Read what `bytes(state)` made.

        Raises:
            PyggmlError: it is not one, or not whole.
        """
        blob = bytes(memoryview(blob))
        version = re.match(b"%b(\\d{1,9})\n" % _WORDS, blob)
        if version is not None and int(version[1]) != _VERSION:
            raise PyggmlError(
                f"{what} ({len(blob)} bytes) has version {int(version[1])} of pyggml's states; this pyggml reads "
                f"version {_VERSION}",
                "Save it anew, or read it with the pyggml that wrote it.",
            )
        if not blob.startswith(_MAGIC):
            raise PyggmlError(
                f"{what} ({len(blob)} bytes) was not saved by pyggml", "LlamaContext.save_state makes states."
            )
        body = memoryview(blob)[:-_DIGEST]
        if len(blob) < len(_MAGIC) + _HEADER_BYTES + _DIGEST or (
            hashlib.sha256(body).digest() != blob[-_DIGEST:]
        ):
            raise PyggmlError(f"{what} ({len(blob)} bytes) is cut off or damaged: its checksum is wrong")
        start = len(_MAGIC) + _HEADER_BYTES
        length = int.from_bytes(body[len(_MAGIC) : start], "little")
        if length > min(_LONGEST_HEADER, len(body) - start):
            raise PyggmlError(f"{what} has a header of {length} bytes, which cannot be")
        try:
            header = json.loads(bytes(body[start : start + length]))
            seq, origin = header["seq"], dict(header["origin"])
            if seq is not None and not isinstance(seq, int):
                raise TypeError("seq")
        except (ValueError, KeyError, TypeError) as error:
            raise PyggmlError(f"{what} has a header that cannot be read: {error}") from error
        return cls(bytes(body[start + length :]), seq, origin)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file; an older one is replaced only when the new one is whole.

        Raises:
            PyggmlError: the file cannot be written.
        """
        path = Path(path)
        beside = path.with_name(f".{path.name}.new")
        try:
            with beside.open("wb") as file:
                file.write(bytes(self))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise PyggmlError(f"cannot write the state to {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> State:
        """Read what `save` wrote.

        Raises:
            PyggmlError: there is no such file, or it is not a whole state.
        """
        try:
            blob = Path(path).read_bytes()
        except OSError as error:
            raise PyggmlError(f"cannot read a state from {path}: {error.strerror or error}") from error
        return cls.from_bytes(blob, str(path))
