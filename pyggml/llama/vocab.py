"""Text to tokens and back, with a model's own vocabulary."""

from __future__ import annotations

import functools
from typing import Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.llama.arguments import MAX_INT32, checked_int, checked_int32_array
from pyggml.llama.batch import Tokens
from pyggml.native.load import Bindings

_SPACE = "\u2581"


class Vocab:
    """The vocabulary of an open model; Model checks that it is open before each call."""

    def __init__(self, bindings: Bindings, model: Any) -> None:
        self._ffi = bindings.ffi
        self._lib = bindings.lib
        self._vocab = bindings.lib.llama_model_get_vocab(model)
        self.size = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self.kind = int(self._lib.llama_vocab_type(self._vocab))
        self.bos = self._special("bos")
        self.eos = self._special("eos")

    @property
    def reads_text(self) -> bool:
        return bool(self.kind != self._lib.LLAMA_VOCAB_TYPE_NONE)

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        self._check_text()
        return bool(
            self._lib.llama_vocab_is_eog(self._vocab, checked_int("the token", token, 0, self.size - 1))
        )

    def tokenize(self, text: str, special: bool, parse_special: bool) -> list[int]:
        self._check_text()
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text cannot be tokenized: {error}") from error
        if len(data) > MAX_INT32 // 2:
            raise UsageError(f"the text has {len(data):,} bytes; the limit is {MAX_INT32 // 2:,}")
        if special:
            self._check_special()
        if self.kind == self._lib.LLAMA_VOCAB_TYPE_SPM:
            self._check_characters(text)
        capacity = len(data) + 8
        while True:
            tokens = self._ffi.new("llama_token[]", capacity)
            count = self._lib.llama_tokenize(
                self._vocab, data, len(data), tokens, capacity, special, parse_special
            )
            if count >= 0:
                return list(self._ffi.unpack(tokens, count)) if count else []
            if -count <= capacity:
                raise PyggmlError(f"the text of {len(data):,} bytes has too many tokens to count")
            capacity = -count

    def detokenize(self, tokens: Tokens, special: bool, unparse_special: bool) -> bytes:
        self._check_text()
        if len(tokens) == 0:
            return b""
        array = checked_int32_array("the tokens", tokens, 0, self.size - 1)
        ids = self._ffi.from_buffer("llama_token[]", array)
        capacity = 16 * len(array) + 64
        while True:
            text = self._ffi.new("char[]", capacity)
            length = self._lib.llama_detokenize(
                self._vocab, ids, len(array), text, capacity, special, unparse_special
            )
            if length >= 0:
                return bytes(self._ffi.buffer(text, length))
            if -length <= capacity:
                raise PyggmlError(f"the text of {len(array):,} tokens is too long to count its bytes")
            capacity = -length

    def _special(self, name: str) -> int | None:
        token = int(getattr(self._lib, f"llama_vocab_{name}")(self._vocab))
        return token if token >= 0 else None

    def _check_text(self) -> None:
        if not self.reads_text:
            raise PyggmlError(
                f"this model has {self.size} tokens but no text for them",
                "Decode token ids instead; the file's tokenizer.ggml.model is 'none' or no_vocab.",
            )

    def _check_special(self) -> None:
        """llama_vocab::impl::tokenize (src/llama-vocab.cpp) asserts that the tokens it adds exist."""
        lib = self._lib
        words = self.kind == lib.LLAMA_VOCAB_TYPE_WPM
        sep = int(lib.llama_vocab_sep(self._vocab))
        missing = [
            name
            for name, added, token in (
                ("BOS", words or lib.llama_vocab_get_add_bos(self._vocab), self.bos),
                ("EOS", not words and lib.llama_vocab_get_add_eos(self._vocab), self.eos),
                ("SEP", words or lib.llama_vocab_get_add_sep(self._vocab), sep if sep >= 0 else None),
            )
            if added and token is None
        ]
        if missing:
            raise PyggmlError(
                f"the vocabulary asks for {' and '.join(missing)} to be added, but has no such token",
                "Use special=False.",
            )

    def _check_characters(self, text: str) -> None:
        """llama_vocab::byte_to_token throws, through C, if neither a character nor its bytes are known."""
        texts = self._texts
        for character in set(text.replace(" ", _SPACE)) | {_SPACE}:
            data = character.encode("utf-8")
            if data not in texts and not all(
                b"<0x%02X>" % byte in texts or bytes([byte]) in texts for byte in data
            ):
                raise PyggmlError(f"the vocabulary has no token for {character!r}, nor for its bytes")

    @functools.cached_property
    def _texts(self) -> frozenset[bytes]:
        string, text = self._ffi.string, self._lib.llama_vocab_get_text
        return frozenset(string(text(self._vocab, token)) for token in range(self.size))
