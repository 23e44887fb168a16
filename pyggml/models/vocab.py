"""A vocabulary that tokenizes any text byte by byte."""

from __future__ import annotations

from pyggml.models.shape import TEXT_TOKENS

_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 1, 2, 3, 5, 6
"""LLAMA_TOKEN_TYPE_* (include/llama.h)."""
_SPACE = "\u2581"
"""How a sentencepiece vocabulary writes the space; without its own token it would be three bytes."""


def byte_vocab(size: int) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a sentencepiece vocabulary of `size` tokens, at least TEXT_TOKENS.

    Only the space has a token of its own; all other characters are tokenized as their bytes
    (llm_tokenizer_spm_session::resegment, src/llama-vocab.cpp). Tokens beyond TEXT_TOKENS never occur.
    """
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), _SPACE]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL]
    tokens += [f"<unused{number}>" for number in range(size - TEXT_TOKENS)]
    types += [_UNUSED] * (size - TEXT_TOKENS)
    return tokens, [0.0] * size, types
