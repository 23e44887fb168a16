"""A llama model in numpy, computed from the GGUF file by the formulas, as a reference for llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

Array = npt.NDArray[np.float64]


def forward(path: Path, tokens: list[int]) -> Array:
    """Logits of every token: (tokens, vocabulary), in float64."""
    reader = GGUFReader(path)
    weights = {one.name.removesuffix(".weight"): np.asarray(one.data, np.float64) for one in reader.tensors}

    def number(key: str) -> float:
        field = reader.fields[f"llama.{key}"]
        return float(field.parts[field.data[0]][0])

    heads, kv_heads = int(number("attention.head_count")), int(number("attention.head_count_kv"))
    epsilon, base = number("attention.layer_norm_rms_epsilon"), number("rope.freq_base")
    size = int(number("attention.key_length"))
    count = len(tokens)

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weights[name]

    def rotate(x: Array) -> Array:
        # Pairs of neighbours: "normal" rotary embedding, as in the architecture llama.
        angle = np.arange(count)[:, None] * base ** (-np.arange(0, size, 2) / size)
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        turned = np.empty_like(x)
        turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return turned

    x = weights["token_embd"][tokens]
    hidden = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(int(number("block_count"))):
        at = f"blk.{layer}."
        y = norm(x, f"{at}attn_norm")
        q = rotate((y @ weights[f"{at}attn_q"].T).reshape(count, heads, size))
        k = rotate((y @ weights[f"{at}attn_k"].T).reshape(count, kv_heads, size))
        v = (y @ weights[f"{at}attn_v"].T).reshape(count, kv_heads, size)
        k, v = (np.repeat(one, heads // kv_heads, axis=1) for one in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + hidden
        share = np.exp(score - score.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", share, v).reshape(count, heads * size)
        x = x + mixed @ weights[f"{at}attn_output"].T
        y = norm(x, f"{at}ffn_norm")
        gate = y @ weights[f"{at}ffn_gate"].T
        inner = gate / (1.0 + np.exp(-gate)) * (y @ weights[f"{at}ffn_up"].T)
        x = x + inner @ weights[f"{at}ffn_down"].T
    logits: Array = norm(x, "output_norm") @ weights["output"].T
    return logits
