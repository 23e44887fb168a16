"""What can go wrong in a decode, as separate classes for those who need to tell them apart."""

from __future__ import annotations

from pyggml.errors import PyggmlError


class NoMemoryError(PyggmlError):
    """A device, or the system, does not have enough memory; nothing was changed."""


class DecodeError(PyggmlError):
    """llama.cpp could not decode a batch; the part it had processed stays in the memory."""


class NoRoomError(DecodeError):
    """The context has no free cells for the batch; nothing was changed."""


class AbortedError(DecodeError):
    """The abort callback ended the computation; the part of the batch done before stays in the memory."""
