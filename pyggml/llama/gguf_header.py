"""The header of a model file, read by ggml, for what llama.h offers no function."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyggml.native.load import Bindings


class GgufHeader:
    """The header of a GGUF file, open in a `with` block; false and empty if ggml cannot read it."""

    def __init__(self, bindings: Bindings, path: Path) -> None:
        self._ffi = bindings.ffi
        self._lib = bindings.lib
        self._path = path

    def __enter__(self) -> Self:
        params = self._ffi.new("struct gguf_init_params *")
        params.no_alloc = True
        self._header = self._lib.gguf_init_from_file(os.fsencode(self._path), params[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self:
            self._lib.gguf_free(self._header)

    def __bool__(self) -> bool:
        return bool(self._header != self._ffi.NULL)

    def has_tensor(self, name: str) -> bool:
        return bool(self) and bool(self._lib.gguf_find_tensor(self._header, name.encode()) >= 0)

    def tensor_sizes(self) -> dict[str, int]:
        """Bytes of each tensor by name; of a model in several files, only the tensors in this one."""
        if not self:
            return {}
        lib, header = self._lib, self._header
        return {
            self._text(lib.gguf_get_tensor_name(header, i)): int(lib.gguf_get_tensor_size(header, i))
            for i in range(lib.gguf_get_n_tensors(header))
        }

    def kv_heads(self) -> int:
        """KV heads per layer; 0 if layers differ."""
        heads = self._number("attention.head_count_kv")
        if heads is None:
            heads = self._number("attention.head_count")
        return heads or 0

    def layers(self) -> int | None:
        """Number of layers; None if the file does not say."""
        return self._number("block_count")

    def duplicate_token(self) -> tuple[int, int, bytes] | None:
        """The ids of two tokens with the same text, and the text; None if all texts differ."""
        key = self._key("tokenizer.ggml.tokens")
        lib, header = self._lib, self._header
        if (
            key < 0
            or lib.gguf_get_kv_type(header, key) != lib.GGUF_TYPE_ARRAY
            or lib.gguf_get_arr_type(header, key) != lib.GGUF_TYPE_STRING
        ):
            return None
        seen: dict[bytes, int] = {}
        string, item = self._ffi.string, lib.gguf_get_arr_str
        for number in range(lib.gguf_get_arr_n(header, key)):
            text = string(item(header, key, number))
            # Tokens without a text get a unique one (llama_vocab::impl::load).
            if text and seen.setdefault(text, number) != number:
                return seen[text], number, text
        return None

    def _number(self, name: str) -> int | None:
        """A number stored for the architecture; 0 if it is a list, None if it is missing."""
        arch = self._value("general.architecture", self._lib.GGUF_TYPE_STRING, self._lib.gguf_get_val_str)
        key = f"{self._text(arch)}.{name}" if arch is not None else ""
        if not key or self._key(key) < 0:
            return None
        return int(self._value(key, self._lib.GGUF_TYPE_UINT32, self._lib.gguf_get_val_u32) or 0)

    def _key(self, name: str) -> int:
        return int(self._lib.gguf_find_key(self._header, name.encode())) if self else -1

    def _value(self, name: str, kind: int, read: Any) -> Any:
        key = self._key(name)
        if key < 0 or self._lib.gguf_get_kv_type(self._header, key) != kind:
            return None
        return read(self._header, key)

    def _text(self, raw: Any) -> str:
        text: bytes = self._ffi.string(raw)
        return text.decode("utf-8", "replace")
