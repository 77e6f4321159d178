"""The plugin's real scheduler under a rule that looks ahead: it counts the requests that run and those that wait."""

import pytest
from vllm_parts import BLOCK, Engine, engine_request

from nestedfp.modes import Mode

NEVER_LATE = {"ttft_deadline_s": 1e12, "tpot_deadline_s": 1e12}


@pytest.mark.parametrize(
    ("limit", "horizon_s", "mode"), [(16, 6.0, Mode.FP8), (16, None, Mode.FP16), (64, 6.0, Mode.FP16)]
)
def test_requests_that_come_faster_than_the_engine_has_places_for_run_fp8(limit, horizon_s, mode):
    engine = Engine(max_num_seqs=limit)
    engine.direct("auto", fill_horizon_s=horizon_s, **NEVER_LATE)
    engine.add(engine_request("first", 8))
    assert engine.schedule().nestedfp_mode is Mode.FP16, "one request after a rest is no growth"
    for number in range(4):  # in the next moment: 4 more, and 24 more in six seconds like this
        engine.add(engine_request(f"next-{number}", 8))
    assert engine.schedule().nestedfp_mode is mode


def test_requests_that_wait_for_a_place_are_counted():
    engine = Engine(max_num_seqs=2)
    engine.direct("auto", fill_horizon_s=1e-3, **NEVER_LATE)
    for number in range(2):
        engine.add(engine_request(f"{number}", 8))
    both = engine.schedule()
    assert both.nestedfp_mode is Mode.FP16, "all have a place"
    engine.finish(both)
    engine.add(engine_request("waits", 8))
    assert engine.schedule().nestedfp_mode is Mode.FP8


@pytest.mark.parametrize(("blocks", "mode"), [(100, Mode.FP8), (1000, Mode.FP16)])
def test_requests_that_fill_the_kv_cache_before_the_places_run_fp8(blocks, mode):
    engine = Engine(blocks, max_num_seqs=256, max_num_batched_tokens=1024)
    engine.direct("auto", fill_horizon_s=6.0, **NEVER_LATE)
    engine.add(engine_request("first", 5 * BLOCK))
    assert engine.schedule().nestedfp_mode is Mode.FP16, "one request is no growth"
    for number in range(8):  # two fifths of a hundred blocks at once
        engine.add(engine_request(f"next-{number}", 5 * BLOCK, cache_salt=f"{number}"))
    assert engine.schedule().nestedfp_mode is mode
