"""Tests that survive an abort, and assertions about arrays: what pytest tests of ggml code need.

    from pyggml.testing import assert_close, assert_identical, expects_abort, ulp_distance

The markers, fixtures and options come with the pytest plugin (docs/pytest-plugin.md).
"""

from pyggml.testing.arrays import assert_close, assert_identical
from pyggml.testing.expectation import ProcessDiedError, expects_abort
from pyggml.ulp import ulp_distance

__all__ = ["ProcessDiedError", "assert_close", "assert_identical", "expects_abort", "ulp_distance"]
