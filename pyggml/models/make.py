"""Writes GGUF models of a chosen shape with random weights; the same shape gives the same bytes anywhere."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError, UsageError
from pyggml.files import output_file
from pyggml.models.shape import ARCHITECTURES, ModelShape
from pyggml.models.vocab import byte_vocab
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

_EPSILON = 1e-5
_ROPE_BASE = 10000.0
_WIDE_WINDOW = 1 << 20
"""More than any context, and times the 256 sequences that llama.cpp allows still within 32 bits."""
_MAGIC = b"GGUF"


def make_llama(shape: ModelShape, path: Path, report: Progress = silent) -> Path:
    """Write a model of `shape` to `path`, replacing an older GGUF file, and return `path`.

    The weights of a tensor depend only on the seed and the tensor's name, so a fused model computes the same
    as the one with separate matrices. Two processes must not write the same path at the same time.

    Raises:
        UsageError: `path` is a directory, or a file that is not GGUF.
        PyggmlError: `path` cannot be written, or there is not enough memory for one of the tensors; an older
            file is unchanged.
    """
    _check_target(path)
    try:
        with output_file(path) as temporary:
            _write(shape, temporary, report)
    except (OSError, MemoryError) as error:
        reason = "not enough memory" if isinstance(error, MemoryError) else error.strerror or error
        raise PyggmlError(f"cannot write {path}: {reason}", "The file was not changed.") from error
    return path


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of the file: its name, its shape in numpy's order, and the (name, shape) of its stacked parts."""

    name: str
    size: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def count(self) -> int:
        return math.prod(self.size)


def tensor_plans(shape: ModelShape) -> Iterator[TensorPlan]:
    """All tensors of a model, in the order of the file."""
    plain = ARCHITECTURES[shape.architecture].plain
    yield _plain("token_embd", shape.vocab, shape.embd)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield _plain(f"{at}attn_norm", shape.embd)
        qkv = (
            _plain(f"{at}attn_q", shape.heads * shape.k_size, shape.embd),
            _plain(f"{at}attn_k", shape.kv_heads * shape.k_size, shape.embd),
            _plain(f"{at}attn_v", shape.kv_heads * shape.v_width, shape.embd),
        )
        if shape.fused_qkv:
            yield _stacked(f"{at}attn_qkv", qkv)
        else:
            yield from qkv
        yield _plain(f"{at}attn_output", shape.embd, shape.heads * shape.v_width)
        yield _plain(f"{at}ffn_norm", shape.embd)
        gate_up = _plain(f"{at}ffn_gate", shape.ff, shape.embd), _plain(f"{at}ffn_up", shape.ff, shape.embd)
        if plain:
            yield from gate_up
        else:
            yield _stacked(f"{at}ffn_up", gate_up)
            yield _plain(f"{at}attn_q_norm", shape.k_size)
            yield _plain(f"{at}attn_k_norm", shape.k_size)
            yield _bare(f"{at}post_attention_norm", shape.embd)
            yield _bare(f"{at}post_ffw_norm", shape.embd)
        yield _plain(f"{at}ffn_down", shape.embd, shape.ff)
    yield _plain("output_norm", shape.embd)
    yield _plain("output", shape.vocab, shape.embd)


def _plain(stem: str, *size: int) -> TensorPlan:
    return _bare(f"{stem}.weight", *size)


def _bare(name: str, *size: int) -> TensorPlan:
    return TensorPlan(name, size, ((name, size),))


def _stacked(stem: str, tensors: tuple[TensorPlan, ...]) -> TensorPlan:
    rows = sum(tensor.size[0] for tensor in tensors)
    parts = tuple(tensor.parts[0] for tensor in tensors)
    return TensorPlan(f"{stem}.weight", (rows, tensors[0].size[1]), parts)


def weights(name: str, size: tuple[int, ...], seed: int) -> Array:
    """The values of one tensor: matrices preserve the variance of their input; norms are near 1.

    Computed from raw bits of PCG64: numpy guarantees that stream, but not those of its distributions.
    """
    import numpy as np

    count = math.prod(size)
    bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    raw = bits.random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    # 24 bits, so that the value is exact in a float32.
    values = (raw >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    if len(size) == 1:
        return np.asarray(1.0 + 0.25 * values, dtype=np.float32)
    scale = np.float32(math.sqrt(3.0 / size[1]))
    return np.asarray((values * scale).reshape(size), dtype=np.float32)


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory", "Give the name of a file in it, e.g. model.gguf.")
    if not path.is_file():
        return
    with contextlib.suppress(OSError), path.open("rb") as file:
        start = file.read(4)
        if start not in (b"", _MAGIC):
            raise UsageError(f"{path} already exists and is not a GGUF file", "Choose another file name.")


def _write(shape: ModelShape, path: Path, report: Progress) -> None:
    import gguf

    writer = gguf.GGUFWriter(None, shape.architecture)
    try:
        _add_metadata(writer, shape)
        plan = list(tensor_plans(shape))
        for tensor in plan:
            _add_tensor_info(writer, tensor, shape.type)
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done, total = 0, sum(tensor.count for tensor in plan)
        for tensor in plan:
            writer.write_tensor_data(_encoded(_values(tensor, shape.seed), shape.type))
            done += tensor.count
            report(f"writing {path.name[1:].removesuffix('.new')}", done, total)
    finally:
        writer.close()


def _add_metadata(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(shape.name)
    kinds = {
        "f32": gguf.LlamaFileType.ALL_F32,
        "f16": gguf.LlamaFileType.MOSTLY_F16,
        "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    }
    writer.add_file_type(kinds[shape.type])
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.k_size)
    writer.add_value_length(shape.v_width)
    writer.add_rope_dimension_count(shape.k_size)
    writer.add_rope_freq_base(_ROPE_BASE)
    writer.add_layer_norm_rms_eps(_EPSILON)
    if ARCHITECTURES[shape.architecture].window:
        writer.add_sliding_window(_WIDE_WINDOW)
        writer.add_sliding_window_pattern([True] + [False] * (shape.layers - 1))
        # Required although there are no experts.
        writer.add_expert_feed_forward_length(shape.ff)
    writer.add_vocab_size(shape.vocab)
    if not shape.reads_text:
        writer.add_tokenizer_model("none")
        return
    tokens, scores, types = byte_vocab(shape.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _add_tensor_info(writer: gguf.GGUFWriter, tensor: TensorPlan, kind: str) -> None:
    import gguf
    import numpy as np

    if len(tensor.size) == 1 or kind == "f32":
        writer.add_tensor_info(tensor.name, tensor.size, np.dtype(np.float32), tensor.count * 4)
    elif kind == "f16":
        writer.add_tensor_info(tensor.name, tensor.size, np.dtype(np.float16), tensor.count * 2)
    else:
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        in_bytes = gguf.quant_shape_to_byte_shape(tensor.size, q8_0)
        writer.add_tensor_info(tensor.name, in_bytes, np.dtype(np.uint8), math.prod(in_bytes), q8_0)


def _values(tensor: TensorPlan, seed: int) -> Array:
    import numpy as np

    parts = [weights(name, size, seed) for name, size in tensor.parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _encoded(values: Array, kind: str) -> NDArray[Any]:
    import gguf
    import numpy as np

    if values.ndim == 1 or kind == "f32":
        return values
    if kind == "f16":
        return values.astype(np.float16)
    encoded: NDArray[Any] = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    return encoded
