"""A typed interface to llama.cpp: a model file, and contexts that decode with it.

from pyggml.llama import LlamaContext, Model

with Model.load(path, devices=()) as model, LlamaContext(model, n_ctx=512) as context:
    logits = context.decode(model.tokenize("Hello"))       # numpy, one row: the last token's
    tokens = context.greedy([int(logits[-1].argmax())], 16)
"""

from __future__ import annotations

from pyggml.llama.context import LlamaContext, Perf
from pyggml.llama.errors import AbortedError, DecodeError, NoMemoryError, NoRoomError
from pyggml.llama.memory import Memory
from pyggml.llama.model import Model
from pyggml.llama.state import State

__all__ = [
    "AbortedError",
    "DecodeError",
    "LlamaContext",
    "Memory",
    "Model",
    "NoMemoryError",
    "NoRoomError",
    "Perf",
    "State",
]
