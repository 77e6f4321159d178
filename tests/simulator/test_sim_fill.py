"""A burst beyond what FP8 does, on an engine that decides by deadlines. Run: python -m pytest tests/simulator/test_sim_fill.py"""

import numpy as np
import pytest
from sim_builders import make_requests

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import TABLE, EngineTable, read_table
from simulator.engine.engine import Engine
from simulator.simulation_summary import met
from workload.slo import Slo

SLO = Slo(ttft_ms=200, tpot_ms=33.3)
DEADLINES = {"ttft_deadline_s": 0.14, "tpot_deadline_s": 0.0267, "tpot_grace_tokens": 3}
HORIZON = {"fill_horizon_s": 6.0}


def arrivals(
    *parts: tuple[float, float], prompt: tuple[int, int] = (32, 800), output: tuple[int, int] = (14, 160), seed: int = 0
) -> list[tuple[float, int, int]]:
    """Requests of 416 prompt and 87 output tokens in the mean; each part: so many in a second, for so many seconds."""
    rng, sizes, began_s = np.random.default_rng(seed), [], 0.0
    for per_s, span_s in parts:
        times = np.sort(rng.uniform(began_s, began_s + span_s, round(per_s * span_s)))
        sizes += [(float(at), int(rng.integers(*prompt)), int(rng.integers(*output))) for at in times]
        began_s += span_s
    return sizes


@pytest.fixture(scope="module")
def table() -> EngineTable:
    measured = read_table(TABLE.parent / "h100-llama-8b-steps.json")
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    return measured.model_copy(update={"engine": measured.engine.model_copy(update=limits)})


def directed(table: EngineTable, sizes: list[tuple[float, int, int]], rule: StepRule | None) -> tuple[float, float]:
    """Share of requests within the SLO, and of tokens in FP16, under deadlines; without a rule all in FP8."""
    engine, requests = Engine(table), make_requests(*sizes)
    engine.direct(DirectiveMode.FP8 if rule is None else DirectiveMode.AUTO, rule or StepRule())
    for request in requests:
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(1e9)
    return float(np.mean([met(request, SLO) for request in requests])), engine.stats.tokens[False] / sum(
        engine.stats.tokens
    )


def test_an_engine_that_looks_ahead_keeps_its_places_for_a_burst_beyond_fp8(table: EngineTable) -> None:
    sizes = arrivals((95, 6), (50, 4))
    fp8, _ = directed(table, sizes, None)
    alone, exact_alone = directed(table, sizes, StepRule(**DEADLINES))
    ahead, exact_ahead = directed(table, sizes, StepRule(**DEADLINES, **HORIZON))
    assert alone < fp8 - 0.1
    assert ahead > fp8 - 0.03
    assert exact_ahead > 0.7 * exact_alone


def test_at_a_steady_load_looking_ahead_changes_little(table: EngineTable) -> None:
    sizes = arrivals((40, 20))
    alone, exact_alone = directed(table, sizes, StepRule(**DEADLINES))
    ahead, exact_ahead = directed(table, sizes, StepRule(**DEADLINES, **HORIZON))
    assert ahead >= alone - 0.002
    assert exact_ahead > exact_alone - 0.02


@pytest.mark.parametrize(
    ("kv_tokens", "parts", "lengths", "gain"),
    [
        (80_000, ((4, 4), (10, 5), (4, 6)), {"prompt": (1500, 4000), "output": (50, 300)}, 0.08),
        (60_000, ((30, 4), (80, 5), (30, 6)), {}, 0.08),
    ],
)
def test_an_engine_whose_kv_cache_is_full_before_its_places_looks_ahead_too(
    table: EngineTable, kv_tokens: int, parts: tuple, lengths: dict, gain: float
) -> None:
    small = table.model_copy(update={"engine": table.engine.model_copy(update={"kv_tokens": kv_tokens})})
    kept = []
    for seed in (10, 11, 12, 13):  # the growth's time constant was chosen on others
        sizes = arrivals(*parts, **lengths, seed=seed)
        rules = (None, StepRule(**DEADLINES), StepRule(**DEADLINES, **HORIZON))
        kept.append([directed(small, sizes, rule)[0] for rule in rules])
    fp8, alone, ahead = np.mean(kept, axis=0)
    assert ahead > alone + gain
    assert ahead > fp8 - 0.06


def test_a_steady_load_that_takes_half_of_the_kv_cache_stays_exact(table: EngineTable) -> None:
    small = table.model_copy(update={"engine": table.engine.model_copy(update={"kv_tokens": 80_000})})
    sizes = arrivals((25, 20), output=(100, 300), seed=10)
    kept, exact = directed(small, sizes, StepRule(**DEADLINES, **HORIZON))
    assert kept == 1.0
    assert exact > 0.95
