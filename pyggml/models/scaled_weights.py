"""Upstream's tiny models with their weights scaled like those of trained models.

test-llama-archs draws every weight from one narrow normal distribution (of 0.01; of 0.1 in newer trees), norms
and scales included. With 0.01, what a layer adds to the residual stream is below or near its last bit: change
every earlier token of a prompt, and the logits of the last one differ by an NMSE of 1e-14, or in no bit at all
(gemma2, gpt-oss, lfm2, qwen35). Upstream's bound cannot detect a wrong cache in such a model, and equal bits prove
little. Here the same random numbers are scaled to what trained weights look like, so that every token depends on
all before it.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_VERSION = 1
_NEAR_ONE = re.compile(r"norm|scale|rope_f|\.ssm_d$")
_DECAY = re.compile(r"\.ssm_a$")
_SMALL = re.compile(r"bias$|exp_probs_b$")
_SINKS = re.compile(r"attn_sinks")


def scaled_models(files: Sequence[Path], report: Progress = silent) -> list[Path]:
    """Copies of tiny models with scaled weights, kept beside them until the originals are written again.

    Raises:
        PyggmlError: a file cannot be read or written.
    """
    copies = []
    for number, source in enumerate(files, 1):
        target = source.parent / f"lively-{_VERSION}" / source.name
        if not _is_fresh(target, source):
            report(f"scaling the weights of {source.name}", number, len(files))
            write_scaled(source, target)
        copies.append(target)
    return copies


def write_scaled(source: Path, target: Path) -> None:
    """Write `target`, the model `source` with scaled weights.

    Raises:
        PyggmlError: `source` is not a GGUF file, or `target` cannot be written; it is unchanged then.
    """
    import gguf

    beside = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, beside)
        tensors = [t for t in gguf.GGUFReader(beside, "r+").tensors if t.tensor_type.name in ("F32", "F16")]
        if tensors:
            drawn = deviation(max(tensors, key=lambda tensor: int(tensor.n_elements)).data)
        for tensor in tensors:
            tensor.data[...] = scaled(tensor.name, tensor.data, drawn)
        beside.replace(target)
    except (OSError, ValueError, IndexError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PyggmlError(
            f"cannot write {target}: {why}", "Use upstream's weights as they are: --weights upstream"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def deviation(values: Array) -> float:
    """The standard deviation that upstream drew with (set_tensor_data, tests/test-llama-archs.cpp).

    Args:
        values: a large tensor of the file. Its own deviation, rounded to one significant digit, is the one that
            the program was given.
    """
    import numpy as np

    return float(f"{np.std(values, dtype=np.float64):.0e}") or 1.0


def scaled(name: str, values: Array, drawn: float) -> Array:
    """The values of a tensor, drawn with the deviation `drawn`, scaled by what the tensor is for.

    Norms and scales become 1 with a deviation of 1/4, biases 0 with a deviation of 0.1; matrices keep the variance
    of what they are multiplied with; the decay of a state space model is negative.
    """
    import numpy as np

    unit = values.astype(np.float32) / np.float32(drawn)
    if _DECAY.search(name):
        made = -np.abs(1 + unit / 4)
    elif _SINKS.search(name):
        made = unit
    elif _SMALL.search(name):
        made = unit / 10
    elif _NEAR_ONE.search(name):
        made = 1 + unit / 4
    else:
        made = unit / np.float32(math.sqrt(values.shape[-1]))
    result: Array = made.astype(values.dtype)
    return result


def _is_fresh(target: Path, source: Path) -> bool:
    try:
        made, of = target.stat(), source.stat()
    except OSError:
        return False
    return made.st_size == of.st_size and made.st_mtime_ns >= of.st_mtime_ns
