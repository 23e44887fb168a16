"""A linear attention with more V heads than K heads, made of upstream's tiny model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BY_VALUE = re.compile(r"\.(ssm_in|attn_qkv|attn_gate|ssm_conv1d|ssm_dt|ssm_a|ssm_ba|ssm_out)\b")
_KEYS = ("ssm.time_step_rank", "ssm.inner_size")


def with_grouped_v_heads(source: Path, target: Path, ratio: int = 2) -> Path:
    """Write `target`, the model `source` (qwen3next) with `ratio` times its V heads.

    The new rows and columns are drawn like the old ones; K heads and everything else stay.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name in [f"{arch}.{key}" for key in _KEYS]:
            value *= ratio
        kind = field.types[0]
        if kind.name == "ARRAY" and not len(value):
            continue
        writer.add_key_value(field.name, value, kind, field.types[-1] if kind.name == "ARRAY" else None)
    keys, values = (
        int(reader.fields[f"{arch}.ssm.{key}"].contents()) for key in ("group_count", "time_step_rank")
    )
    # V's share of Q, K and V, and of those with the gate.
    parts = {"attn_qkv": values / (2 * keys + values), "ssm_in": values / (keys + values)}
    parts["ssm_conv1d"] = parts["attn_qkv"]
    linear = {t.name.split(".ssm_")[0] for t in reader.tensors if ".ssm_conv1d" in t.name}
    rng = np.random.default_rng(11)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if tensor.name.rsplit(".", 2)[0] in linear or tensor.name.rsplit(".", 1)[0] in linear:
            data = _wider(tensor.name, data, ratio, parts, rng)
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _wider(name: str, data: Array, ratio: int, parts: dict[str, float], rng: np.random.Generator) -> Array:
    found = _BY_VALUE.search(name)
    if found is None or name.endswith("scale"):
        return data
    axis = data.ndim - 1 if found[1] == "ssm_out" else 0
    length = data.shape[axis]
    value = round(length * parts.get(found[1], 1.0))
    shape = list(data.shape)
    shape[axis] = (ratio - 1) * value
    more = (data.std() * rng.standard_normal(shape) + data.mean()).astype(data.dtype)
    if found[1] == "ssm_a":
        more = -np.abs(more)
    return np.concatenate([data, more], axis)
