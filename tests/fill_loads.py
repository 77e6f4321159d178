"""Loads of one simulated engine of the 8B shape, and what a step rule makes of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import TABLE, EngineTable, StepTimeModel, read_table
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest
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
    requests = [SimRequest(number, *size) for number, size in enumerate(sizes)]
    engine.direct(DirectiveMode.FP8 if rule is None else DirectiveMode.AUTO, rule or StepRule())
    for request in requests:
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(1e9)
    exact, fp8 = engine.stats.tokens.values()
    return float(np.mean([met(request, SLO) for request in requests])), exact / (exact + fp8)
