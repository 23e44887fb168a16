"""What can go wrong in a decode, for those who want to tell it apart."""

from __future__ import annotations

from pyggml.errors import PyggmlError


class NoMemoryError(PyggmlError):
    """A device, or the system, has no memory for what was to be kept there; nothing was changed."""


class DecodeError(PyggmlError):
    """llama.cpp could not decode a batch; what of it was processed stays in the memory."""


class NoRoomError(DecodeError):
    """The context has no free cells for the batch; nothing was changed."""


class AbortedError(DecodeError):
    """The abort callback ended the computation; the parts of the batch done before stay in the memory."""
