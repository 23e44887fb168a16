"""Loading a model file, and what the model says about itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from pyggml.errors import PyggmlError, UsageError
from pyggml.ggml.handle import Handle
from pyggml.llama.arguments import MAX_INT32, checked_choice, checked_int
from pyggml.llama.batch import Tokens
from pyggml.llama.device_memory import DeviceMemory, normalized_shares
from pyggml.llama.devices import DeviceLike, RegisteredDevice, select_devices
from pyggml.llama.gguf_header import GgufHeader
from pyggml.llama.library import library, text_of
from pyggml.llama.log_capture import LogCapture
from pyggml.llama.vocab import Vocab
from pyggml.native.load import Bindings

SPLIT_MODES = ("none", "layer", "row", "tensor")
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io")
_MAGIC = b"GGUF"
_MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS (src/llama-hparams.h)."""


class Model(Handle):
    """A loaded model; contexts decode with it. Closing it closes its contexts.

    Attributes:
        path: the file.
        vocab_only: only the vocabulary and the metadata are loaded, no weights.
        split_mode: how the weights are distributed over the devices.
    """

    path: Path
    vocab_only: bool
    split_mode: str

    def __init__(
        self,
        bindings: Bindings,
        pointer: Any,
        path: Path,
        vocab_only: bool,
        split_mode: str,
        device_memory: DeviceMemory | None,
    ) -> None:
        """For Model.load.

        Args:
            device_memory: checks what llama.cpp does not; None where llama.cpp reports failures itself.
        """
        self._device_memory = device_memory
        self._bindings = bindings
        self._pointer = pointer
        self.path = path
        self.vocab_only = vocab_only
        self.split_mode = split_mode
        self._vocab = Vocab(bindings, pointer)
        # A position beyond such a table fails an assertion in ggml's get_rows.
        with GgufHeader(bindings, path) as header:
            self._learned_positions = header.has_tensor("position_embd.weight")
        super().__init__(f"model {path.name!r}")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        devices: Sequence[DeviceLike] | None = None,
        split_mode: str = "layer",
        main_device: int = 0,
        tensor_split: Sequence[float] | None = None,
        gpu_layers: int | None = None,
        load_mode: str = "auto",
        vocab_only: bool = False,
        check_tensors: bool = False,
        repack: bool = True,
        progress: Callable[[float], bool | None] | None = None,
    ) -> Self:
        """Load a GGUF file; of several parts, the first.

        Args:
            devices: what computes besides the CPU, as names or devices; `()` for the CPU alone. By default all
                GPUs, and with `tensor` all devices whose memory is not the CPU's.
            split_mode: `none` (all on `main_device`), `layer`, `row`, or `tensor` (each tensor split over
                all devices; needs flash attention, and not every architecture can).
            main_device: index in `devices`, for `none`.
            tensor_split: share of each device, in any unit; by default in proportion to its free memory, and
                equal with `tensor`.
            gpu_layers: how many layers, counted from the last, go on the devices; by default all.
            load_mode: one of LOAD_MODES.
            check_tensors: look for invalid values in quantised weights.
            repack: let the CPU rearrange weights to compute faster; without, its results are more often the
                same as those of devices, bit for bit.
            progress: called with 0.0 to 1.0; returning False (or raising) stops the loading.

        Raises:
            UsageError: an argument makes no sense; the message names it and the numbers.
            PyggmlError: no such file, not a GGUF file, cut off, unknown architecture, not enough device
                memory, a split that the architecture does not support, or stopped by `progress`; the
                message has llama.cpp's own reason.
        """
        bindings = library()
        ffi, lib = bindings.ffi, bindings.lib
        path = Path(path)
        _check_file(path)
        _check_header(bindings, path)
        params = lib.llama_model_default_params()
        keep: list[Any] = []
        params.split_mode = checked_choice(
            "split_mode", split_mode, {m: getattr(lib, f"LLAMA_SPLIT_MODE_{m.upper()}") for m in SPLIT_MODES}
        )
        params.load_mode = checked_choice(
            "load_mode", load_mode, {m: getattr(lib, f"LLAMA_LOAD_MODE_{m.upper()}") for m in LOAD_MODES}
        )
        most = int(lib.llama_max_devices())
        selected = select_devices(bindings, devices, split_mode, most)
        if devices is not None:
            keep.append(ffi.new("ggml_backend_dev_t[]", [*(device.pointer for device in selected), ffi.NULL]))
            params.devices = keep[-1]
        if split_mode == "none" and selected:
            params.main_gpu = checked_int("main_device", main_device, 0, len(selected) - 1)
        if tensor_split is not None:
            shares = _checked_shares(tensor_split, len(selected), most)
            keep.append(ffi.new("float[]", shares))
            params.tensor_split = keep[-1]
        params.n_gpu_layers = (
            -1 if gpu_layers is None else checked_int("gpu_layers", gpu_layers, 0, MAX_INT32)
        )
        params.vocab_only = bool(vocab_only)
        params.check_tensors = bool(check_tensors)
        params.use_extra_bufts = bool(repack)
        callback = bindings.callbacks.make("progress", _Progress(progress))
        params.progress_callback = callback.pointer
        params.progress_callback_user_data = callback.data
        device_memory = None
        if split_mode == "tensor" and not vocab_only:
            parts = normalized_shares(tensor_split, len(selected))
            device_memory = DeviceMemory(bindings, path, selected, parts, params, keep)
            device_memory.check_weights()
        with LogCapture() as log:
            pointer = bindings.guarded(lib.llama_model_load_from_file, os.fsencode(path), params)
        if pointer == ffi.NULL:
            raise _load_failure(path, log, callback.function, selected)
        try:
            return cls(bindings, pointer, path, bool(vocab_only), split_mode, device_memory)
        except BaseException:
            lib.llama_model_free(pointer)
            raise

    @property
    def pointer(self) -> Any:
        """The raw `struct llama_model *`, for `pyggml.lib`; invalid once this handle is closed."""
        self.check()
        return self._pointer

    @property
    def metadata(self) -> dict[str, str]:
        """All keys and values of the file as llama.cpp prints them; long lists are shortened."""
        with self.using():
            lib, values = self._bindings.lib, {}
            for index in range(lib.llama_model_meta_count(self._pointer)):
                key = text_of(self._bindings, lib.llama_model_meta_key_by_index, self._pointer, index)
                value = text_of(self._bindings, lib.llama_model_meta_val_str_by_index, self._pointer, index)
                if key is not None and value is not None:
                    values[key] = value
            return values

    @property
    def architecture(self) -> str:
        """The file's general.architecture."""
        self.check()
        key = b"general.architecture"
        lib = self._bindings.lib
        return text_of(self._bindings, lib.llama_model_meta_val_str, self._pointer, key) or "unknown"

    @property
    def description(self) -> str:
        """Architecture, size and type of the weights in a few words."""
        self.check()
        return text_of(self._bindings, self._bindings.lib.llama_model_desc, self._pointer) or ""

    @property
    def size(self) -> int:
        """Bytes of all tensors; 0 with `vocab_only`."""
        return self._number("llama_model_size")

    @property
    def n_params(self) -> int:
        return self._number("llama_model_n_params")

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        self.check()
        return self._vocab.size

    @property
    def n_layer(self) -> int:
        return self._of_weights("llama_model_n_layer")

    @property
    def n_embd(self) -> int:
        return self._of_weights("llama_model_n_embd")

    @property
    def n_embd_out(self) -> int:
        """Width of the embeddings that a context returns."""
        return self._of_weights("llama_model_n_embd_out")

    @property
    def n_head(self) -> int:
        """Query heads of the first layer."""
        return self._of_weights("llama_model_n_head") if self.n_layer else 0

    @property
    def n_head_kv(self) -> int:
        """KV heads of the first layer."""
        return self._of_weights("llama_model_n_head_kv") if self.n_layer else 0

    @property
    def n_swa(self) -> int:
        """Positions in a sliding window; 0 without."""
        return self._of_weights("llama_model_n_swa")

    @property
    def head_size(self) -> int:
        """Width of a K head in the cache."""
        size = self.metadata.get(f"{self.architecture}.attention.key_length")
        return int(size) if size and size.isdecimal() else self.n_embd // max(self.n_head, 1)

    @property
    def rotates_whole_heads(self) -> bool:
        """Whether rotary embedding covers all of a K head."""
        size = self.metadata.get(f"{self.architecture}.rope.dimension_count")
        return size is None or size == str(self.head_size)

    @property
    def one_kind_of_window(self) -> bool:
        """Whether every layer may have a sliding window, so that the cache of the other layers is empty."""
        if not self.n_swa:
            return False
        pattern = self.metadata.get(f"{self.architecture}.attention.sliding_window_pattern", "")
        return self.n_layer == 1 or (
            pattern.startswith("[") and "false" not in pattern and "..." not in pattern
        )

    @property
    def n_ctx_train(self) -> int:
        return self._number("llama_model_n_ctx_train")

    @property
    def n_positions(self) -> int:
        """Number of possible positions: the size of a learned table, otherwise unlimited (an int32)."""
        return self.n_ctx_train if self._learned_positions else MAX_INT32

    @property
    def allows_gaps(self) -> bool:
        """Whether positions may leave gaps: tokens have several position values (M-RoPE)."""
        lib = self._bindings.lib
        kinds = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)
        return self._number("llama_model_rope_type") in kinds

    @property
    def has_encoder(self) -> bool:
        return bool(self._number("llama_model_has_encoder"))

    @property
    def is_recurrent(self) -> bool:
        return bool(self._number("llama_model_is_recurrent"))

    @property
    def is_hybrid(self) -> bool:
        return bool(self._number("llama_model_is_hybrid"))

    @property
    def reads_text(self) -> bool:
        """Whether there is a vocabulary for text."""
        self.check()
        return self._vocab.reads_text

    @property
    def bos(self) -> int | None:
        self.check()
        return self._vocab.bos

    @property
    def eos(self) -> int | None:
        self.check()
        return self._vocab.eos

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token (llama_vocab_is_eog)."""
        self.check()
        return self._vocab.is_end(token)

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = False) -> list[int]:
        """The tokens of a text.

        Args:
            special: add BOS and EOS where the model asks for them.
            parse_special: parse `<s>` and the like in the text as special tokens.

        Raises:
            PyggmlError: the model has no vocabulary, or it lacks a character or a special token.
        """
        with self.lease(in_call=True):
            return self._vocab.tokenize(text, bool(special), bool(parse_special))

    def detokenize(
        self, tokens: Tokens, *, remove_special: bool = False, unparse_special: bool = False
    ) -> str:
        """The text of tokens; bytes that are not UTF-8 (half a character) become U+FFFD.

        Raises:
            UsageError: a number that is not a token id.
            PyggmlError: the model has no vocabulary.
        """
        with self.lease(in_call=True):
            return self._vocab.detokenize(tokens, bool(remove_special), bool(unparse_special)).decode(
                "utf-8", "replace"
            )

    def check_device_memory(self, context_params: Any, cache_on_devices: bool) -> None:
        """Raise if a context does not fit, where a failed allocation would abort (split mode `tensor`).

        Args:
            context_params: `struct llama_context_params`, without callbacks.

        Raises:
            PyggmlError: with the device and the numbers.
        """
        if self._device_memory is not None:
            self._device_memory.check_context(context_params, cache_on_devices)

    def free_memory(self) -> dict[str, int]:
        """Free bytes by device, where a failed allocation would abort; otherwise empty."""
        return self._device_memory.free() if self._device_memory is not None else {}

    def _number(self, function: str) -> int:
        self.check()
        return int(getattr(self._bindings.lib, function)(self._pointer))

    def _of_weights(self, function: str) -> int:
        """vocab_only does not read the hyperparameters; with no layers llama.cpp would abort here."""
        if self.vocab_only:
            raise PyggmlError(
                f"{self.label} was loaded with vocab_only: there is no {function.removeprefix('llama_model_')}",
                "Look it up in metadata, or load the model without vocab_only.",
            )
        return self._number(function)

    def _release(self) -> None:
        self._bindings.lib.llama_model_free(self._pointer)


class _Progress:
    """The user's function, for C: returning nothing means to go on."""

    def __init__(self, function: Callable[[float], bool | None] | None) -> None:
        self._function = function
        self.stopped = False

    def __call__(self, fraction: float) -> bool:
        if self._function is not None and self._function(fraction) is False:
            self.stopped = True
            return False
        return True


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PyggmlError(f"cannot read the model {path}: {why}") from error
    if start != _MAGIC:
        raise PyggmlError(f"{path} is not a GGUF file: it begins with {start!r}, not {_MAGIC!r}")


def _check_header(bindings: Bindings, path: Path) -> None:
    """Check what loading asserts on: llama_vocab::impl::load and llama_model_base::load_hparams."""
    with LogCapture(), GgufHeader(bindings, path) as header:
        duplicate, layers = header.duplicate_token(), header.layers()
    if duplicate is not None:
        first, second, text = duplicate
        raise PyggmlError(f"cannot load {path}: its tokens {first} and {second} are both {text!r:.80}")
    if layers is not None and not 1 <= layers <= _MAX_LAYERS:
        raise PyggmlError(
            f"cannot load {path}: it claims to have {layers} layers; llama.cpp supports 1 to {_MAX_LAYERS}"
        )


def _checked_shares(values: Sequence[float], count: int, most: int) -> list[float]:
    shares = [float(value) for value in values]
    if len(shares) > count or not shares:
        raise UsageError(f"tensor_split has {len(shares)} shares for {count} devices")
    if any(not math.isfinite(share) or share < 0 for share in shares) or sum(shares) <= 0:
        raise UsageError(f"tensor_split is {shares}; shares must be 0 or more, and not all 0")
    return shares + [0.0] * (most - len(shares))


def _load_failure(
    path: Path, log: LogCapture, progress: Any, devices: Sequence[RegisteredDevice]
) -> PyggmlError:
    if progress is not None and progress.stopped:
        return PyggmlError(f"loading {path} was stopped by the progress function")
    hint = None
    if any("alloc" in line for line in log.lines) and devices:
        free = ", ".join(f"{device.name} {device.memory()[0]:,}" for device in devices)
        hint = f"Free bytes of the devices: {free}. Use more devices, or fewer gpu_layers."
    return PyggmlError(f"cannot load {path} ({path.stat().st_size:,} bytes): {log.reason()}", hint)
