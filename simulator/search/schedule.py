"""A schedule of precisions written down in advance, and what the simulated engine makes of it. Pure; numpy only.

A plan names for every slice of time one of ``LEVELS``, from all steps FP8 to all steps FP16: fixed precisions, and rules with
deadlines of different strictness, for all steps or for those with parts of prompts only. It is played by the same engine
that the policies steer, without controller and network: the choice of the precision is all that differs, so that whatever
a plan attains here is attainable in the simulator. A plan with one level throughout is a policy that decides in the engine
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError
from simulator.simulation_summary import met
from workload.azure import Arrival
from workload.slo import Slo

SLICE_S = 0.1
TAIL_S = 5.0  # that a plan goes on after the last arrival; later steps run FP8
GRACE_TOKENS = 3  # of the rules
FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Level:
    """How the steps of a slice choose their precision.

    ``ttft_fraction`` and ``tpot_fraction`` are shares of the objectives that a step in FP16 may use up; None: all that it takes.
    """

    name: str
    prompts: bool  # steps with parts of prompts may run FP16
    decodes: bool  # so may those of decodes alone
    ttft_fraction: float | None = None
    tpot_fraction: float | None = None


LEVELS = (
    Level("fp8", prompts=False, decodes=False),
    Level("prompts 0.7, 0.8", prompts=True, decodes=False, ttft_fraction=0.7, tpot_fraction=0.8),
    Level("prompts 0.85, 0.9", prompts=True, decodes=False, ttft_fraction=0.85, tpot_fraction=0.9),
    Level("prompts 1, 1", prompts=True, decodes=False, ttft_fraction=1.0, tpot_fraction=1.0),
    Level("prompts", prompts=True, decodes=False),
    Level("0.7, 0.8", prompts=True, decodes=True, ttft_fraction=0.7, tpot_fraction=0.8),
    Level("0.85, 0.9", prompts=True, decodes=True, ttft_fraction=0.85, tpot_fraction=0.9),
    Level("1, 1", prompts=True, decodes=True, ttft_fraction=1.0, tpot_fraction=1.0),
    Level("fp16", prompts=True, decodes=True),
)


@dataclass(frozen=True, slots=True)
class Window:
    """What is to be scheduled on one replica."""

    table: EngineTable
    arrivals: Sequence[Arrival]  # in order of time; one at least
    slo: Slo

    @property
    def slices(self) -> int:
        """Of a plan."""
        return int((self.arrivals[-1].at_s + TAIL_S) / SLICE_S) + 1


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a plan."""

    plan: bytes  # the number of a level for each slice
    met: NDArray[np.bool_]  # by request
    exact: NDArray[np.int64]  # tokens of each request that ran in FP16
    fp16_token_share: float  # of all tokens computed
    fp16_completion_share: float  # of the generated ones
    preemptions: int

    @property
    def misses(self) -> int:
        """Requests beyond the SLO."""
        return int(np.count_nonzero(~self.met))

    @property
    def exact_tokens(self) -> int:
        """Of all requests."""
        return int(self.exact.sum())


class _Unwatched:
    """Takes the place of the windows of latencies, which nobody reads here."""

    def add(self, now_s: float, value: float, count: int = 1) -> None:
        """Forget it."""


class PlannedEngine(Engine):
    """An engine that runs a plan instead of a directive."""

    def __init__(self, table: EngineTable, plan: bytes, slo: Slo) -> None:
        super().__init__(table)
        self._plan = plan
        self._rules = [_rule(level, slo) for level in LEVELS]
        self.directive = DirectiveMode.AUTO
        self.ttft = self.tpot = _Unwatched()  # type: ignore[assignment]

    def _chooses_fp8(self, now_s: float, tokens: int, *, with_prompts: bool) -> bool:
        index = int(now_s / SLICE_S)
        number = self._plan[index] if index < len(self._plan) else 0
        level, rule = LEVELS[number], self._rules[number]
        if not (level.prompts if with_prompts else level.decodes):
            return True
        if rule is None:
            return False
        self.rule = rule
        return super()._chooses_fp8(now_s, tokens, with_prompts=with_prompts)

    def _steps_until_another_choice(self, now_s: float, decodes: int, is_fp8: bool) -> float:
        return 1


def _rule(level: Level, slo: Slo) -> StepRule | None:
    if level.ttft_fraction is None or level.tpot_fraction is None:
        return None
    return StepRule(
        ttft_deadline_s=level.ttft_fraction * slo.ttft_ms * 1e-3,
        tpot_deadline_s=level.tpot_fraction * slo.tpot_ms * 1e-3,
        tpot_grace_tokens=GRACE_TOKENS,
    )


def constant(window: Window, number: int) -> bytes:
    """One level in all slices."""
    return bytes([number]) * window.slices


def play(window: Window, plan: bytes) -> Played:
    """Run the window under a plan.

    Raises:
        SimulationError: when a request is longer than the engine takes.
    """
    engine = PlannedEngine(window.table, plan, window.slo)
    longest = window.table.engine.longest_tokens
    requests = [SimRequest(index, a.at_s, a.prompt_tokens, a.output_tokens) for index, a in enumerate(window.arrivals)]
    for request in requests:
        if request.prompt_tokens + request.output_tokens > longest:
            raise SimulationError(
                f"request {request.index} has {request.prompt_tokens} + {request.output_tokens} tokens, more than the "
                f"{longest} that the engine takes; leave it out of the trace"
            )
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(FOREVER_S)
    fp16, fp8 = engine.stats.tokens
    generated_fp16 = sum(request.completion_fp16 for request in requests)
    generated_fp8 = sum(request.completion_fp8 for request in requests)
    return Played(
        plan,
        np.array([met(request, window.slo) for request in requests]),
        np.array([request.prompt_fp16 + request.completion_fp16 for request in requests]),
        fp16 / (fp16 + fp8),
        generated_fp16 / (generated_fp16 + generated_fp8),
        engine.preemptions,
    )
