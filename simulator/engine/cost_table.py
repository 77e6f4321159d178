"""How long an engine step takes, and what an engine can hold: a table fitted from measurements by ``fit``. Pure but for
reading the table.

    step_ms = fixed + per_token * tokens + over_knee * max(0, tokens - knee) + per_decode * decodes + per_kv * kv_tokens

``tokens`` are all that the step computes, ``decodes`` the requests that get one token each, ``kv_tokens`` the entries of
earlier steps that its requests attend to. ``fixed`` holds the streaming of the weights, which a small step waits for;
above the knee a step is bound by arithmetic and every token costs. One set of coefficients per precision.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from controller.config import explain
from nestedfp.modes import Mode
from nestedfp.steps.step_costs import MixedCosts, StepCost, StepCosts
from simulator.errors import SimulationError
from workload.frozen import FrozenModel

TABLE = Path(__file__).parent / "tables" / "h100-llama-8b-steps.json"

# As nestedfp/vllm_plugin/ranks/timing/step_timing.py measures them.
MIXED_EXACT_TOKENS, MIXED_FAST_TOKENS = (16, 32, 64, 128), (128, 256, 512, 1024)
FUSED_ROWS = 64  # exact ones, beside which one pass computes both (csrc/cuda/mixed_tiles.inc)

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class StepTimeModel(FrozenModel):
    """Coefficients of one precision."""

    fixed_ms: Positive
    per_token_us: NotNegative
    knee_tokens: Annotated[int, Field(ge=0)]
    over_knee_us: NotNegative  # on top of per_token_us
    per_decode_us: NotNegative
    per_kv_token_ns: NotNegative

    def step_s(self, tokens: int, decodes: int, kv_tokens: int) -> float:
        """Duration of one step in seconds."""
        over = tokens - self.knee_tokens
        return (
            self.fixed_ms * 1e-3
            + self.per_token_us * 1e-6 * tokens
            + (self.over_knee_us * 1e-6 * over if over > 0 else 0.0)
            + self.per_decode_us * 1e-6 * decodes
            + self.per_kv_token_ns * 1e-9 * kv_tokens
        )


class EngineLimits(FrozenModel):
    """What bounds a step and the engine, as vLLM names it."""

    max_num_batched_tokens: AtLeastOne = 8192  # the step's token budget
    max_num_seqs: AtLeastOne = 512
    kv_tokens: AtLeastOne = 400_000  # that the KV cache holds
    block_tokens: AtLeastOne = 16
    max_model_tokens: AtLeastOne = 16_384  # prompt and answer of one request
    mixed_steps: bool = False  # the engine's option
    async_scheduling: bool = True  # a step is filled while the one before runs; vLLM's default, but not on CPUs

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request that the engine takes."""
        return min(self.max_model_tokens, self.kv_tokens)


class FitError(FrozenModel):
    """How far the model is from what it was fitted to, relative to each observation."""

    observations: AtLeastOne
    median_relative: NotNegative
    max_relative: NotNegative


class Source(FrozenModel):
    """A file of measurements."""

    file: str
    sha256: str
    header: tuple[str, ...] = ()  # its comment lines: GPU, clocks, versions, command


class EngineTable(FrozenModel):
    """One model on one accelerator."""

    schema_version: int = 1
    model: str
    gpu: str
    ranks: AtLeastOne = 1  # tensor-parallel, a GPU each
    command: str  # that made the table
    sources: tuple[Source, ...]
    engine: EngineLimits
    fp16: StepTimeModel
    fp8: StepTimeModel
    fit_fp16: FitError
    fit_fp8: FitError
    # Tokens, FP16 and FP8 ms, ascending; what such an engine measured when it started, on a card that had been idle. None: what its
    # steps take.
    start_costs: tuple[tuple[AtLeastOne, Positive, Positive], ...] | None = None

    def step_costs(self) -> StepCosts:
        """What an engine with this table goes by in the mode ``auto`` until its steps teach it better."""
        if self.start_costs is not None:
            rows = tuple(StepCost(*row) for row in self.start_costs)
        else:
            rows = self._rows(2**power for power in range(self.engine.max_num_batched_tokens.bit_length()))
        return _with_mixed(StepCosts(rows)) if self.engine.mixed_steps else StepCosts(rows)

    def _rows(self, sizes: Iterable[int]) -> tuple[StepCost, ...]:
        return tuple(StepCost(n, self.fp16.step_s(n, 0, 0) * 1e3, self.fp8.step_s(n, 0, 0) * 1e3) for n in sizes)

    def mixed_s(self, exact_rows: int, fast_rows: int, decodes: int, kv_tokens: int) -> float:
        """Duration of a step of exact and fast rows in seconds; attention takes what it takes in FP16."""
        if not exact_rows or not fast_rows:
            return self.cost(Mode.FP8 if fast_rows else Mode.FP16).step_s(exact_rows + fast_rows, decodes, kv_tokens)
        mixed_ms = self._true_costs.mixed_ms(exact_rows, fast_rows)
        assert mixed_ms is not None
        return mixed_ms * 1e-3 + self.fp16.step_s(0, decodes, kv_tokens) - self.fp16.step_s(0, 0, 0)

    @cached_property
    def _true_costs(self) -> StepCosts:
        """What steps take, without attention: straight between these sizes."""
        sizes = {1, self.fp16.knee_tokens, self.fp8.knee_tokens, self.engine.max_num_batched_tokens}
        return _with_mixed(StepCosts(self._rows(sorted(sizes - {0}))))

    @model_validator(mode="after")
    def _has_costs(self) -> Self:
        self.step_costs()  # which refuses rows that do not ascend
        return self

    def cost(self, mode: Mode) -> StepTimeModel:
        """The coefficients of a precision."""
        return self.fp8 if mode is Mode.FP8 else self.fp16


def _with_mixed(costs: StepCosts) -> StepCosts:
    """Add what steps of exact and fast rows take, of the sizes that an engine measures at its start.

    One pass over the weights takes what exact rows alone take, and what FP8 takes longer for both than for the exact ones alone:
    within 4 ms of what eight shapes took (benchmarks/results/h100-rows-mixed.csv). Beside more than ``FUSED_ROWS`` exact ones there
    are two passes.
    """

    def ms(exact: int, fast: int) -> float:
        exact_ms, both_ms = costs.times_ms(exact)[0], costs.times_ms(exact + fast)[1]
        return exact_ms + (both_ms - costs.times_ms(exact)[1] if exact <= FUSED_ROWS else costs.times_ms(fast)[1])

    grid = tuple(tuple(ms(exact, fast) for fast in MIXED_FAST_TOKENS) for exact in MIXED_EXACT_TOKENS)
    return replace(costs, mixed=MixedCosts(MIXED_EXACT_TOKENS, MIXED_FAST_TOKENS, grid))


def read_table(path: Path = TABLE) -> EngineTable:
    """Read a table.

    Raises:
        SimulationError: when the file cannot be read or is not a table.
    """
    try:
        return EngineTable.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SimulationError(
            f"{path}: cannot read the engine table ({error.strerror}); make one with python -m simulator fit"
        ) from error
    except ValidationError as error:
        raise SimulationError(f"{path}: not an engine table: {explain(error).replace(chr(10), '; ')}") from error


def write_table(path: Path, table: EngineTable) -> None:
    """Write a table, readable by people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
