"""One simulation from its parts: load, configuration, run, numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from controller.config import ControllerConfig, explain
from controller.policies import POLICIES
from simulator.cluster.cluster import Cluster, RunResult, Scenario
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError
from simulator.simulation_summary import SimulationSummary, summarise
from workload.shape import cut_window, select_at_rate
from workload.synthetic import MEAN_RATE_RPS, synthetic_trace
from workload.traces import Arrival


def arrivals(
    trace: tuple[Arrival, ...] | None,
    start_s: float,
    duration_s: float | None,
    rate_rps: float | None,
    seed: int,
) -> tuple[Arrival, ...]:
    """Return a window of a trace at a mean rate, or, without a trace, synthetic arrivals.

    Args:
        duration_s: None: to the end of the trace.
        rate_rps: None: the trace's own.

    Raises:
        TraceError: the trace has not as many.
    """
    if trace is None:
        return synthetic_trace(seed, duration_s or 600.0, rate_rps or MEAN_RATE_RPS)
    if rate_rps is None:
        return cut_window(trace, start_s, duration_s)
    span_s = trace[-1].at_s - start_s if duration_s is None else duration_s
    return select_at_rate(trace, start_s, span_s, rate_rps, seed).arrivals


def make_config(section: Mapping[str, Any], policy: str) -> ControllerConfig:
    """The controller's configuration: ``section`` with another policy, whose parameters stay if it is the same one.

    Raises:
        SimulationError: when the policy is unknown or the section wrong; the message names each key.
    """
    if policy not in POLICIES:
        raise SimulationError(f"--policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    given = section.get("policy")
    parameters = dict(given) if isinstance(given, Mapping) and given.get("name") == policy else {"name": policy}
    try:
        return ControllerConfig.model_validate({**section, "policy": parameters})
    except ValidationError as error:
        raise SimulationError(f"the controller's configuration is wrong:\n{explain(error)}") from error


def simulate(
    table: EngineTable,
    arrivals: Sequence[Arrival],
    config: ControllerConfig,
    scenario: Scenario,
    front_ms: float = 0.0,
    **observer: Any,
) -> tuple[SimulationSummary, RunResult]:
    """Run one policy on arrivals; a first token takes ``front_ms`` beside the engine."""
    result = Cluster(table, config, scenario, **observer).run(make_requests(arrivals, scenario))
    return summarise(result, config, front_ms), result


def make_requests(arrivals: Sequence[Arrival], scenario: Scenario) -> list[SimRequest]:
    """Fresh requests for one run, of one token at least; those that are too long will be refused."""
    drawn = np.random.default_rng([0x9137, scenario.seed]).random(len(arrivals))
    pinned, rest_s = (drawn < scenario.pinned_share).tolist(), scenario.rest_s
    return [
        SimRequest(index, rest_s + each.at_s, max(1, each.prompt_tokens), max(1, each.output_tokens), pinned[index])
        for index, each in enumerate(arrivals)
    ]
