"""One simulation from its parts: load, SLO, configuration, run, numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from controller.config import ControllerConfig, explain
from controller.policies import POLICIES
from simulator import load_units, simulation_summary
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError
from workload import resample
from workload.percentiles import percentiles
from workload.slo import Slo
from workload.synthetic import synthetic_trace
from workload.traces import Arrival


@dataclass(frozen=True, slots=True)
class Generator:
    """Draws a load at any rate, instead of bringing a trace to it."""

    bursts: bool
    duration_s: float
    seed: int

    def arrivals(self, rate_rps: float) -> tuple[Arrival, ...]:
        """Azure's lengths; Poisson arrivals, with bursts or without."""
        return synthetic_trace(self.seed, self.duration_s, rate_rps, bursts=self.bursts)


@dataclass(frozen=True, slots=True)
class Bench:
    """A trace on an engine: what every run on them shares."""

    table: EngineTable
    load: resample.Load
    unloaded: load_units.Unloaded
    fp16_capacity_rps: float  # of one replica
    generator: Generator | None = None

    def at_load(self, load: float | None, scenario: Scenario) -> resample.Load:
        """The load at a mean rate of ``load`` times the FP16 capacity of the cluster; None keeps the rate."""
        if load is None:
            return self.load
        rate_rps = load * self.fp16_capacity_rps * scenario.replicas
        if self.generator is None:
            return resample.resampled(self.load, rate_rps, scenario.seed)
        arrivals = self.generator.arrivals(rate_rps)
        if not arrivals:
            raise SimulationError(f"no request in {self.generator.duration_s:g} s; raise --load or --duration")
        return resample.prepare(arrivals, 0.0, self.generator.duration_s)

    @property
    def tight(self) -> Slo:
        """Five times the latency of a request that is alone."""
        return self._slo(load_units.TIGHT)

    @property
    def loose(self) -> Slo:
        """Ten times."""
        return self._slo(load_units.LOOSE)

    def _slo(self, times: float) -> Slo:
        return Slo(ttft_ms=times * self.unloaded.ttft_ms, tpot_ms=times * self.unloaded.tpot_ms)


def make_bench(
    table: EngineTable,
    arrivals: Sequence[Arrival],
    start_s: float = 0.0,
    duration_s: float | None = None,
    generator: Generator | None = None,
) -> Bench:
    """Cut the trace and measure what the engine makes of it."""
    load = resample.prepare(arrivals, start_s, duration_s)
    longest = table.engine.longest_tokens
    served = [a for a in load.arrivals if a.prompt_tokens + a.output_tokens <= longest]
    if not served:
        raise SimulationError(f"all {len(load.arrivals)} requests are longer than the engine's {longest} tokens")
    prompt, output = resample.mean_lengths(served)
    return Bench(
        table,
        load,
        load_units.unloaded(table, round(prompt), round(output)),
        load_units.capacity_rps(table, served),
        generator,
    )


def make_config(section: Mapping[str, Any], policy: str, bench: Bench) -> ControllerConfig:
    """The controller's configuration: ``section`` with another policy, whose parameters stay if it is the same one.

    The SLO that the section leaves open is the bench's tight one.

    Raises:
        SimulationError: when the policy is unknown or the section wrong; the message names each key.
    """
    if policy not in POLICIES:
        raise SimulationError(f"--policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    given = section.get("policy")
    parameters = dict(given) if isinstance(given, Mapping) and given.get("name") == policy else {"name": policy}
    merged = {"slo": bench.tight.model_dump(), **section, "policy": parameters}
    try:
        return ControllerConfig.model_validate(merged)
    except ValidationError as error:
        raise SimulationError(f"the controller's configuration is wrong:\n{explain(error)}") from error


def simulate(
    bench: Bench,
    config: ControllerConfig,
    scenario: Scenario,
    load: float | None,
    clock: Callable[[], float],
    **observer: Any,
) -> tuple[simulation_summary.SimulationSummary, RunResult]:
    """Run one policy at one load (see ``Bench.at_load``). ``clock`` is the machine's, to say how long it took."""
    began_s = clock()
    shaped = bench.at_load(load, scenario)
    requests = make_requests(shaped, scenario)
    result = Cluster(bench.table, config, scenario, **observer).run(requests)
    count = simulation_summary.outcomes(result)
    summary = simulation_summary.SimulationSummary.model_validate(
        {
            "policy": config.policy.name,
            "load": load,
            "requests": len(requests),
            "wall_s": clock() - began_s,
            "tight_slo": simulation_summary.attainment(requests, bench.tight),
            "loose_slo": simulation_summary.attainment(requests, bench.loose),
            "exact_answer_share": simulation_summary.exact_answer_share(requests),
            "ttft_ms": percentiles(r.ttft_ms for r in requests if r.outcome == "finished"),
            "tpot_ms": percentiles(
                tpot_ms for r in requests if r.outcome == "finished" and (tpot_ms := r.tpot_ms) is not None
            ),
            **simulation_summary.replica_figures(result),
            "worst_minute_switches": simulation_summary.worst_minute(result.records),
            "replicas": scenario.replicas,
            "mean_replicas": result.replica_s / result.ended_s if result.ended_s else scenario.replicas,
            "shed": count["shed"],
            "refused": count["refused"],
            "simulated_s": result.ended_s,
            "rate_rps": shaped.rate_rps,
            "fp16_capacity_rps": bench.fp16_capacity_rps * scenario.replicas,
            "unloaded_ttft_ms": bench.unloaded.ttft_ms,
            "unloaded_tpot_ms": bench.unloaded.tpot_ms,
            "seed": scenario.seed,
        }
    )
    return summary, result


def make_requests(load: resample.Load, scenario: Scenario) -> list[SimRequest]:
    """Fresh requests for one run."""
    drawn = np.random.default_rng([0x9137, scenario.seed]).random(len(load.arrivals))
    pinned, rest_s = (drawn < scenario.pinned_share).tolist(), scenario.rest_s
    return [
        SimRequest(index, rest_s + arrival.at_s, arrival.prompt_tokens, arrival.output_tokens, pinned[index])
        for index, arrival in enumerate(load.arrivals)
    ]
