"""The proofs of the patches once more, on CUDA devices.

Left out is what only virtual devices have: a ledger of transfers, poisoned memory, names and sizes of choice;
and attention over heads of sizes for which CUDA has no FlashAttention.
"""

from __future__ import annotations

import pytest

from tests.ggml.test_reduction import (
    test_a_device_without_work_adds_nothing,
    test_a_graph_may_end_in_a_view_of_host_memory,
    test_a_partial_bias_is_added_once,
    test_a_row_strided_result_is_read_back,
    test_sums_over_devices_are_numpys,
    test_uneven_slices_are_numpys,
)
from tests.matrix.test_patches import (
    test_a_fused_qkv_is_read_back_from_the_devices,
    test_k_and_v_heads_of_different_widths,
    test_more_devices_than_heads_in_poisoned_memory,
    test_qwen3next_on_three_devices,
    test_several_sequences_with_the_cache_on_the_host,
    test_the_recurrent_state_stays_on_the_devices,
)

__all__ = [
    "test_a_device_without_work_adds_nothing",
    "test_a_fused_qkv_is_read_back_from_the_devices",
    "test_a_graph_may_end_in_a_view_of_host_memory",
    "test_a_partial_bias_is_added_once",
    "test_a_row_strided_result_is_read_back",
    "test_k_and_v_heads_of_different_widths",
    "test_more_devices_than_heads_in_poisoned_memory",
    "test_qwen3next_on_three_devices",
    "test_several_sequences_with_the_cache_on_the_host",
    "test_sums_over_devices_are_numpys",
    "test_the_recurrent_state_stays_on_the_devices",
    "test_uneven_slices_are_numpys",
]

pytestmark = pytest.mark.gpu
