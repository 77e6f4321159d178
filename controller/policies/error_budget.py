"""Spends an error budget, and a quality budget. Pure.

An objective of 99 % leaves a budget of 1 % misses. The burn rate is the share of misses over that budget: at 1 the
budget lasts just as long as its period. FP8 when a burn rate is passed over a long and a short window at once, the long
one so that it is no accident, the short one so that it is still going on: alerting by multiple windows and burn rates,
Google's Site Reliability Workbook, chapter 5. Requests that wait on a replica whose predicted TTFT passes the objective
count as misses before they are: completions come too late in an overload.

FP16 again when both short windows burn less than ``leave_burn`` and nothing of ``returning`` speaks against it.

The quality budget caps the share of tokens computed in FP8 over the last hour; before an hour has passed, of the tokens
that an hour at the rate so far would give. Once spent, everything runs FP16 until the share has fallen by a tenth.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.fleet.view import Replicas
from controller.policies import returning
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.signals import misses
from controller.policies.signals.ring import Ring
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel

BUCKET_S = 1.0
MOST_BUCKETS = 3600
HOUR_S = 3600.0
MINUTE_S = 60.0
REFILL = 0.9  # of the quality budget: below it FP8 is allowed again


class BurnWindow(FrozenModel):
    """A pair of windows and the burn rate that both must pass."""

    long_s: Annotated[float, Field(ge=BUCKET_S, le=MOST_BUCKETS * BUCKET_S)]
    short_s: Annotated[float, Field(ge=BUCKET_S)]
    burn: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _short_below_long(self) -> Self:
        if self.short_s >= self.long_s:
            raise ValueError(f"expected short_s < long_s, got {self.short_s:g} and {self.long_s:g}")
        return self


class ErrorBudget(returning.ReturnSettings):
    """Parameters of the policy ``error_budget``."""

    name: Literal["error_budget"] = "error_budget"
    objective: Annotated[float, Field(gt=0, lt=1)] = 0.99  # share of requests that meet the SLO
    fast: BurnWindow = BurnWindow(long_s=60, short_s=5, burn=6)
    slow: BurnWindow = BurnWindow(long_s=600, short_s=60, burn=2)
    leave_burn: Annotated[float, Field(gt=0)] = 1.0
    min_events: Annotated[int, Field(ge=1)] = 20  # requests in a long window, fewer are no evidence
    max_fp8_share: Annotated[float, Field(gt=0, le=1)] | None = 0.5  # of the tokens of an hour; null: no cap

    @model_validator(mode="after")
    def _leave_below_burn(self) -> Self:
        least = min(self.fast.burn, self.slow.burn)
        if self.leave_burn >= least:
            raise ValueError(
                f"expected leave_burn < fast.burn and slow.burn, got {self.leave_burn:g} and {least:g}; "
                "equal or crossed rates would flip at every step"
            )
        return self


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers: bounded, whatever the load."""

    memory: returning.Memory
    requests: Ring  # judged, missed
    tokens: Ring  # all, in FP8
    spent: bool = False  # the quality budget


@dataclass(frozen=True, slots=True)
class Burn:
    """Burn rates over a long and a short window."""

    long: float
    short: float


def decide(observation: Observation, state: State, config: ErrorBudget) -> tuple[Decision, State]:
    """Enter on burn, leave on a prediction that FP16 would hold the SLO, or when the quality budget is spent."""
    view, memory = returning.look(observation, state.memory, config)
    evaluated_per_s, missed_per_s = misses.rates(observation)
    computed, in_fp8 = tokens_per_s(observation.replicas)
    now_s, dt_s = observation.now_s, view.dt_s
    requests = state.requests.add(now_s, dt_s * evaluated_per_s, dt_s * missed_per_s)
    tokens = state.tokens.add(now_s, dt_s * computed, dt_s * in_fp8)
    fast = _burn(requests, config.fast, view.seen.at_risk, config)
    slow = _burn(requests, config.slow, view.seen.at_risk, config)
    share = fp8_share(tokens)
    cap = config.max_fp8_share
    spent = cap is not None and share >= (REFILL * cap if state.spent else cap)

    inputs: tuple[tuple[str, float], ...] = (
        ("burn_fast_long", fast.long),
        ("burn_fast_short", fast.short),
        ("burn_slow_long", slow.long),
        ("burn_slow_short", slow.short),
        ("fp8_token_share", share),
    )
    mode = DirectiveMode.FP8
    if spent:
        mode, reason = DirectiveMode.FP16, "fp8_budget_spent"
    elif min(fast.long, fast.short) > config.fast.burn:
        reason = "fast_burn"
    elif min(slow.long, slow.short) > config.slow.burn:
        reason = "slow_burn"
    elif observation.current is not DirectiveMode.FP8:
        mode, reason = config.calm_mode, view.calm_reason("within_error_budget")
    elif max(fast.short, slow.short) > config.leave_burn:
        reason = "still_burning"
    else:
        mode, reason, values = returning.leave_fp8(view, memory, observation, config)
        inputs += values
    decision = returning.decision(view, observation, config, mode, reason, inputs)
    return decision, State(returning.proposed(memory, mode), requests, tokens, spent)


def tokens_per_s(replicas: Replicas) -> tuple[float, float]:
    """Tokens computed, and those computed in FP8, over all replicas."""
    rates = [view.rates for view in replicas if view.rates is not None]
    return sum([rate.tokens_per_s for rate in rates]), sum([rate.tokens_fp8_per_s for rate in rates])


def _burn(requests: Ring, window: BurnWindow, at_risk: float, config: ErrorBudget) -> Burn:
    """Misses over the budget of misses, those in the making included."""

    def over(span_s: float) -> float:
        slo_evaluated, missed = requests.over(span_s)
        slo_evaluated += at_risk
        return (missed + at_risk) / slo_evaluated / (1 - config.objective) if slo_evaluated >= least else 0.0

    least = config.min_events
    long = over(window.long_s)
    least = 1  # the long window has enough of them
    return Burn(long, over(window.short_s))


def fp8_share(tokens: Ring) -> float:
    """Share of the quality budget's tokens that ran in FP8; 0 before the first."""
    computed, in_fp8 = tokens.over(HOUR_S)
    span_s = tokens.span_s
    if computed <= 0 or span_s <= 0:
        return 0.0
    return in_fp8 / (computed * max(1.0, HOUR_S / span_s))


def start(config: ErrorBudget) -> tuple[Decision, State]:
    """FP16 with full budgets."""
    buckets = round(max(config.fast.long_s, config.slow.long_s) / BUCKET_S)
    state = State(returning.Memory(), Ring(BUCKET_S, buckets), Ring(MINUTE_S, round(HOUR_S / MINUTE_S)))
    return Decision(DirectiveMode.FP16, "start_in_fp16"), state


SPEC = PolicySpec(ErrorBudget, decide, start, adaptive=True)
