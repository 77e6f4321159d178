"""Which steps an engine times when it starts."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from nestedfp.vllm_plugin.ranks.timing.step_timing import sizes


@pytest.mark.parametrize(
    ("largest", "found"),
    [
        (1, [1]),
        (2, [1, 2]),
        (100, [1, 2, 4, 8, 16, 32, 64, 100]),
        (200, [1, 2, 4, 8, 16, 32, 64, 128, 192, 200]),
        (512, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512]),
        (2048, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]),
    ],
)
def test_sizes_are_finer_where_arithmetic_begins_to_bound_a_step(largest: int, found: list[int]) -> None:
    assert sizes(largest) == found
