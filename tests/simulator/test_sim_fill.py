"""A burst beyond what FP8 does, on an engine of the 8B shape that decides by deadlines.

Run: python -m pytest tests/simulator/test_sim_fill.py
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from sim_builders import drive, make_requests

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import TABLE, EngineTable, StepTimeModel, read_table
from simulator.engine.engine import Engine
from simulator.simulation_summary import met
from workload.slo import Slo

SLO = Slo(ttft_ms=200, tpot_ms=33.3)
DEADLINES = StepRule(ttft_deadline_s=0.16, tpot_deadline_s=0.03, tpot_grace_tokens=3)


class Arrivals(NamedTuple):
    """Requests: so many in a second for so many seconds, one part after the other; lengths uniform, the bounds in tokens."""

    parts: Sequence[tuple[float, float]]
    prompt: tuple[int, int] = (32, 800)
    output: tuple[int, int] = (14, 160)

    def draw(self, seed: int) -> list[tuple[float, int, int]]:
        """Return (arrival in seconds, prompt tokens, output tokens) of each, in order of arrival."""
        rng, drawn, began_s = np.random.default_rng(seed), [], 0.0
        for per_s, span_s in self.parts:
            times = np.sort(rng.uniform(began_s, began_s + span_s, round(per_s * span_s)))
            drawn += [(float(at), int(rng.integers(*self.prompt)), int(rng.integers(*self.output))) for at in times]
            began_s += span_s
        return drawn


LONG_PROMPTS = Arrivals(((4, 4), (10, 5), (4, 6)), (1500, 4000), (50, 300))  # a burst
STEADY = Arrivals(((25, 20),), output=(100, 300))
# A fifth of the requests of a steady load, for an engine whose steps take 3.3 times as long.
LONG_ANSWERS = Arrivals(((30, 40),), (16, 64), (300, 900))
FEW, FEW_LONG_ANSWERS = Arrivals(((5, 40),), output=(100, 300)), Arrivals(((2.4, 60),), output=(200, 600))


def engine_table(kv_tokens: int | None = None, *, mixed_steps: bool = True) -> EngineTable:
    """Return the engine of the 8B shape with so large a KV cache."""
    measured = read_table(TABLE.parent / "h100-llama-8b-steps.json")
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "mixed_steps": mixed_steps}
    if kv_tokens is not None:
        limits["kv_tokens"] = kv_tokens
    return measured.model_copy(update={"engine": measured.engine.model_copy(update=limits)})


def slow_table() -> EngineTable:
    """Return the engine with steps as long as those of a 70B shape over two H100."""
    table = engine_table()

    def stretched(costs: StepTimeModel) -> StepTimeModel:
        times = {name: 3.3 * value for name, value in costs.model_dump().items() if name != "knee_tokens"}
        return costs.model_copy(update=times)

    return table.model_copy(update={"fp16": stretched(table.fp16), "fp8": stretched(table.fp8)})


def directed(table: EngineTable, sizes: list[tuple[float, int, int]], rule: StepRule | None) -> tuple[float, float]:
    """Return the share of requests within the SLO, and of tokens in FP16, under a rule; without one all in FP8."""
    engine = Engine(table)
    requests = make_requests(*sizes)
    engine.direct(DirectiveMode.FP8 if rule is None else DirectiveMode.AUTO, rule or StepRule())
    drive(engine, requests)
    exact, fp8 = engine.stats.tokens.values()
    return float(np.mean([met(request, SLO) for request in requests])), exact / (exact + fp8)


@pytest.fixture(scope="module", params=[False, True])
def table(request: pytest.FixtureRequest) -> EngineTable:
    """An engine whose steps have one precision, and one whose steps may have both."""
    return engine_table(mixed_steps=request.param)


def test_an_engine_that_runs_fp8_when_it_is_half_full_keeps_its_places_for_a_burst(table: EngineTable) -> None:
    sizes = Arrivals(((85, 6), (50, 4))).draw(0)
    fp8, _ = directed(table, sizes, None)
    kept, _ = directed(table, sizes, DEADLINES)
    assert kept > fp8 - 0.06


@pytest.mark.parametrize("kv_tokens", [80_000, 60_000])
def test_an_engine_whose_kv_cache_is_full_before_its_places_does_so_too(kv_tokens: int) -> None:
    kept = []
    for seed in (10, 11, 12, 13):
        sizes = LONG_PROMPTS.draw(seed)
        kept.append([directed(engine_table(kv_tokens), sizes, rule)[0] for rule in (None, DEADLINES)])
    fp8, deadlines = np.mean(kept, axis=0)
    assert deadlines > fp8 - 0.14


def test_a_steady_load_that_takes_half_of_the_kv_cache_stays_exact() -> None:
    sizes = STEADY.draw(10)
    kept, exact = directed(engine_table(80_000), sizes, DEADLINES)
    assert kept == 1.0
    assert exact > 0.95


@pytest.mark.parametrize("load", [FEW, FEW_LONG_ANSWERS])
def test_an_engine_whose_every_step_is_long_has_exact_tokens_too(load: Arrivals) -> None:
    kept, exact = directed(slow_table(), load.draw(10), DEADLINES)
    assert kept > 0.99
    assert exact > 0.33


def test_answers_so_long_that_decodes_alone_take_too_long_in_fp16_are_fast(table: EngineTable) -> None:
    kept, exact = directed(table, LONG_ANSWERS.draw(3), DEADLINES)
    assert kept > 0.99
    assert exact < 0.2
