"""Models for trials and tests: a small real one, upstream's tiny random ones, models of a chosen shape, and
published ones' geometry.

from pyggml.models.packaged import get_model            # the real one, from a Python package
from pyggml.models.tiny import tiny_models           # those that test-llama-archs writes
from pyggml.models.make import make_llama            # models with chosen heads, head sizes, layers
from pyggml.models.shape import ModelShape
from pyggml.models.zoo import zoo_models           # those with a published model's heads, sizes and experts
"""
