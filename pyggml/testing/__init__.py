"""Tests that survive an abort, and assertions about tensors: what pytest tests of ggml code need."""
from pyggml.testing.expectation import expects_abort
