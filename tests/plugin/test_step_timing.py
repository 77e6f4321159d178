"""What steps an engine times when it starts."""

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    from nestedfp.vllm_plugin.ranks.timing import step_timing
    from nestedfp.vllm_plugin.ranks.timing.step_timing import different_tokens, sizes


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


def test_sizes_are_of_whole_requests_where_each_has_rows_for_its_drafts() -> None:
    assert sizes(200, 4) == [4, 8, 16, 32, 64, 128, 192, 200]
    assert sizes(512, 3) == [3, 6, 15, 30, 63, 126, 192, 255, 384, 510]
    assert sizes(2, 4) == [4]


def test_timed_steps_compute_different_tokens_and_none_is_padding_that_experts_leave_out() -> None:
    buffers = InputBuffers(8, 64, torch.device("cpu"))
    with different_tokens(SimpleNamespace(vocab_size=1000, max_num_tokens=64, device="cpu")):
        batch = InputBatch.make_dummy(4, 48, buffers)
        assert len(batch.input_ids.unique()) > 40
        assert not batch.is_padding.any()
        assert batch.input_ids.data_ptr() == buffers.input_ids.data_ptr()  # what a CUDA graph reads
    after = InputBatch.make_dummy(4, 48, buffers)
    assert not after.input_ids.any()
    assert after.is_padding.all()


@pytest.mark.parametrize(
    ("room", "exact", "fast"),
    [
        (8192, (64, 65, 128, 129, 192, 193, 256, 257, 384, 385, 512), (128, 256, 384, 512, 640, 768, 1024)),
        (640, (64, 65, 128, 129, 192, 193, 256), (128, 256, 384)),
        (200, (64,), (128,)),
    ],
)
def test_a_mixed_step_takes_what_the_graph_does_that_holds_its_exact_rows(monkeypatch, room, exact, fast):
    monkeypatch.setattr(step_timing, "_mixed_ms", lambda runner, exact, fast: float(1000 * exact + fast))
    found = step_timing._mixed_gpu(SimpleNamespace(max_num_tokens=room))
    assert (found.exact_tokens, found.fast_tokens) == (exact, fast)
    if len(exact) > 1:
        assert found.ms_within(65, 128) == found.ms_within(100, 128) == found.ms_within(128, 128) == 128_128
        assert found.ms_within(64, 128) == found.ms_within(1, 128) == 64_128


def test_an_engine_without_room_for_a_mixed_step_measures_none():
    assert step_timing._mixed_gpu(SimpleNamespace(max_num_tokens=191)) is None
