"""A burst beyond what FP8 does, on an engine that decides by deadlines. Run: python -m pytest tests/simulator/test_sim_fill.py"""

import numpy as np
import pytest
from fill_loads import (
    DEADLINES,
    FEW,
    FEW_LONG_ANSWERS,
    FULL,
    LONG_PROMPTS,
    STEADY,
    Arrivals,
    directed,
    engine_table,
    slow_table,
)

from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable


def arrivals(*parts: tuple[float, float]) -> list[tuple[float, int, int]]:
    """Requests of 416 prompt and 87 output tokens in the mean; each part: so many in a second, for so many seconds."""
    return Arrivals(parts).draw(0)


@pytest.fixture(scope="module")
def table() -> EngineTable:
    return engine_table()


def test_an_engine_that_runs_fp8_when_it_is_half_full_keeps_its_places_for_a_burst(table: EngineTable) -> None:
    sizes = arrivals((95, 6), (50, 4))
    fp8, _ = directed(table, sizes, None)
    alone, _ = directed(table, sizes, StepRule(**DEADLINES))
    kept, _ = directed(table, sizes, StepRule(**DEADLINES, **FULL))
    assert alone < fp8 - 0.1
    assert kept > fp8 - 0.05


@pytest.mark.parametrize("kv_tokens", [80_000, 60_000])
def test_an_engine_whose_kv_cache_is_full_before_its_places_does_so_too(kv_tokens: int) -> None:
    kept = []
    for seed in (10, 11, 12, 13):
        sizes, rules = LONG_PROMPTS.draw(seed), (None, StepRule(**DEADLINES), StepRule(**DEADLINES, **FULL))
        kept.append([directed(engine_table(kv_tokens), sizes, rule)[0] for rule in rules])
    fp8, alone, half = np.mean(kept, axis=0)
    assert half > alone + 0.08
    assert half > fp8 - 0.06


def test_a_steady_load_that_takes_half_of_the_kv_cache_stays_exact() -> None:
    sizes = STEADY.draw(10)
    kept, exact = directed(engine_table(80_000), sizes, StepRule(**DEADLINES, **FULL))
    assert kept == 1.0
    assert exact > 0.95


@pytest.mark.parametrize("load", [FEW, FEW_LONG_ANSWERS])
def test_an_engine_whose_every_step_is_long_has_exact_tokens_too(load: Arrivals) -> None:
    kept, exact = directed(slow_table(), load.draw(10), StepRule(**DEADLINES, **FULL))
    assert kept == 1.0
    assert exact > 0.33
