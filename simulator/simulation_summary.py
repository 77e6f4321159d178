"""What a simulation shows -> its numbers. Pure; numpy only.

As in the load test: percentiles are over the answered requests and interpolate linearly; attainment is over all
requests, so that one shed or refused misses the SLO.
"""

from collections import Counter
from collections.abc import Sequence

from controller.audit import DecisionRecord
from simulator.cluster.cluster import RunResult
from simulator.engine.request import SimRequest
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles
from workload.slo import Slo

MINUTE_S = 60.0


class SimulationSummary(FrozenModel):
    """The numbers of one policy at one load."""

    policy: str
    load: float | None  # mean rate over the cluster's FP16 capacity; None: the trace's own rate was kept
    requests: int
    wall_s: float  # that the simulation took
    tight_slo: float
    loose_slo: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    fp16_token_share: float | None
    exact_answer_share: float | None  # of those answered: no token of prompt or answer ran in FP8
    switches_per_min: float  # changes of a replica's directive, mean over the replicas
    worst_minute_switches: int  # of the cluster's directive, in any sixty seconds
    replicas: int
    mean_replicas: float
    shed: int
    refused: int  # longer than the engine takes
    preemptions: int
    simulated_s: float
    rate_rps: float
    fp16_capacity_rps: float  # of the cluster
    unloaded_ttft_ms: float
    unloaded_tpot_ms: float
    seed: int


def met(request: SimRequest, slo: Slo) -> bool:
    """Whether a request was answered within the SLO; one token has no TPOT to miss."""
    return (
        request.outcome == "finished"
        and request.ttft_ms <= slo.ttft_ms
        and ((tpot_ms := request.tpot_ms) is None or tpot_ms <= slo.tpot_ms)
    )


def attainment(requests: Sequence[SimRequest], slo: Slo) -> float:
    """Share of all requests that were answered within the SLO."""
    return sum(met(request, slo) for request in requests) / len(requests)


def exact_answer_share(requests: Sequence[SimRequest]) -> float | None:
    """Share of the answers with no token of prompt or answer in FP8; None: nobody was answered."""
    answered = [request for request in requests if request.outcome == "finished"]
    exact = sum(not (request.prompt_fp8 or request.completion_fp8) for request in answered)
    return exact / len(answered) if answered else None


def switches_at_s(records: Sequence[DecisionRecord]) -> tuple[float, ...]:
    """When the cluster's mode changed; the start is no change."""
    return tuple(r.now_s for r in records if r.from_mode is not r.to_mode and r.decision_id > 1)


def worst_minute(records: Sequence[DecisionRecord]) -> int:
    """The most changes of the cluster's mode in any sixty seconds."""
    times_s = switches_at_s(records)
    return max((sum(0 <= other - at_s < MINUTE_S for other in times_s) for at_s in times_s), default=0)


def outcomes(result: RunResult) -> Counter[str]:
    """How many requests ended in which way."""
    return Counter(request.outcome for request in result.requests)


def share(fp16: float, fp8: float) -> float | None:
    """The first part of two; None of nothing."""
    return fp16 / (fp16 + fp8) if fp16 + fp8 else None


def replica_figures(result: RunResult) -> dict[str, float | int | None]:
    """What the replicas counted, all incarnations together."""
    stats = [replica.engine.stats for replica in result.replicas]
    minutes = result.replica_s / MINUTE_S
    return {
        "fp16_token_share": share(sum(s.tokens[False] for s in stats), sum(s.tokens[True] for s in stats)),
        "switches_per_min": sum(r.directive_changes for r in result.replicas) / minutes if minutes else 0.0,
        "preemptions": sum(replica.engine.preemptions for replica in result.replicas),
    }
