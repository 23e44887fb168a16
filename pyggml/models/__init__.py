"""Models to try things on: a small real one, upstream's tiny random ones, and ones of a chosen shape.

from pyggml.models.known import get_model            # the real one, from its package
from pyggml.models.tiny import tiny_models           # what test-llama-archs writes
from pyggml.models.make import make_llama            # chosen heads, head sizes, layers
from pyggml.models.shape import ModelShape
"""
