"""Which token counts get a CUDA graph above vLLM's own sizes. No GPU.

Run: ``pytest -q tests/test_graph_sizes.py``
"""

import pytest

from nestedfp.vllm_plugin.graph_sizes import larger_sizes


def test_sizes_lie_above_vllm_s_and_end_at_the_limit():
    sizes = larger_sizes(512, 2048)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 544
    assert sizes[-1] == 2048
    assert larger_sizes(512, 512) == []
    assert larger_sizes(512, 0) == []
    assert larger_sizes(1024, 1100) == [1100]


@pytest.mark.parametrize(("up_to", "padding"), [(768, 0.061), (1024, 0.082), (2048, 0.125)])
def test_a_step_is_padded_by_a_few_percent_at_most(up_to, padding):
    sizes = [512, *larger_sizes(512, 2048)]
    for tokens in range(513, up_to + 1):
        assert min(size for size in sizes if size >= tokens) / tokens - 1 <= padding


def test_a_budget_that_is_no_multiple_is_a_size_itself():
    assert larger_sizes(512, 1000)[-1] == 1000
