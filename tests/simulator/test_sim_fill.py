"""A burst beyond what FP8 does, on an engine that decides by deadlines. Run: python -m pytest tests/simulator/test_sim_fill.py"""

import numpy as np
import pytest
from fill_loads import (
    DEADLINES,
    FEW,
    FEW_LONG_ANSWERS,
    LONG_ANSWERS,
    LONG_PROMPTS,
    STEADY,
    Arrivals,
    directed,
    engine_table,
    slow_table,
)

from simulator.engine.cost_table import EngineTable


def arrivals(*parts: tuple[float, float]) -> list[tuple[float, int, int]]:
    """Requests of 416 prompt and 87 output tokens in the mean; each part: so many in a second, for so many seconds."""
    return Arrivals(parts).draw(0)


@pytest.fixture(scope="module", params=[False, True])
def table(request: pytest.FixtureRequest) -> EngineTable:
    """An engine whose steps have one precision, and one whose steps may have both."""
    return engine_table(mixed_steps=request.param)


def test_an_engine_that_runs_fp8_when_it_is_half_full_keeps_its_places_for_a_burst(table: EngineTable) -> None:
    sizes = arrivals((95, 6), (50, 4))
    fp8, _ = directed(table, sizes, None)
    kept, _ = directed(table, sizes, DEADLINES)
    assert kept > fp8 - 0.06


@pytest.mark.parametrize("kv_tokens", [80_000, 60_000])
def test_an_engine_whose_kv_cache_is_full_before_its_places_does_so_too(kv_tokens: int) -> None:
    kept = []
    for seed in (10, 11, 12, 13):
        sizes = LONG_PROMPTS.draw(seed)
        kept.append([directed(engine_table(kv_tokens), sizes, rule)[0] for rule in (None, DEADLINES)])
    fp8, half = np.mean(kept, axis=0)
    assert half > fp8 - 0.06


def test_a_steady_load_that_takes_half_of_the_kv_cache_stays_exact() -> None:
    sizes = STEADY.draw(10)
    kept, exact = directed(engine_table(80_000), sizes, DEADLINES)
    assert kept == 1.0
    assert exact > 0.95


@pytest.mark.parametrize("load", [FEW, FEW_LONG_ANSWERS])
def test_an_engine_whose_every_step_is_long_has_exact_tokens_too(load: Arrivals) -> None:
    kept, exact = directed(slow_table(), load.draw(10), DEADLINES)
    assert kept == 1.0
    assert exact > 0.33


def test_answers_so_long_that_decodes_alone_take_too_long_in_fp16_are_fast(table: EngineTable) -> None:
    kept, exact = directed(table, LONG_ANSWERS.draw(3), DEADLINES)
    assert kept > 0.99
    assert exact < 0.2
