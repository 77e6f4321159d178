"""What a simulation shows -> its numbers. Pure; numpy only.

As in the load test: percentiles are over the answered requests and interpolate linearly; attainment is over all
requests, so that one shed or refused misses the SLO.
"""

from collections.abc import Sequence

from controller.config import ControllerConfig
from simulator.cluster.cluster import RunResult
from simulator.engine.request import SimRequest
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles, percentiles
from workload.slo import Slo

MINUTE_S = 60.0


class SimulationSummary(FrozenModel):
    """The numbers of one policy at one load."""

    policy: str
    slo: Slo
    rate_rps: float  # until the last arrival
    requests: int
    slo_attainment: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    fp16_token_share: float | None  # of those answered
    exact_answer_share: float | None  # of those answered: no token of prompt or answer ran in FP8
    switches_per_min: float  # changes of a replica's directive, mean over the replicas
    mean_replicas: float
    shed: int
    refused: int  # longer than the engine takes
    preemptions: int


def met(request: SimRequest, slo: Slo, front_ms: float = 0.0) -> bool:
    """Whether a request was answered within the SLO."""
    return request.outcome == "finished" and slo.met(request.ttft_ms + front_ms, request.tpot_ms)


def attainment(requests: Sequence[SimRequest], slo: Slo, front_ms: float = 0.0) -> float:
    """Share of all requests that were answered within the SLO."""
    return sum(met(request, slo, front_ms) for request in requests) / len(requests)


def summarise(result: RunResult, config: ControllerConfig, front_ms: float = 0.0) -> SimulationSummary:
    """The numbers of one run; a first token takes ``front_ms`` beside the engine."""
    requests, minutes = result.requests, result.replica_s / MINUTE_S
    answered = [request for request in requests if request.outcome == "finished"]
    exact = sum(not (request.prompt_fp8 or request.completion_fp8) for request in answered)
    fp16 = sum(request.prompt_fp16 + request.completion_fp16 for request in answered)
    tokens = sum(request.prompt_tokens + request.output_tokens for request in answered)
    return SimulationSummary(
        policy=config.policy.name,
        slo=config.slo,
        rate_rps=len(requests) / max(requests[-1].arrived_s, 1e-6),
        requests=len(requests),
        slo_attainment=attainment(requests, config.slo, front_ms),
        ttft_ms=percentiles(request.ttft_ms + front_ms for request in answered),
        tpot_ms=percentiles(tpot_ms for request in answered if (tpot_ms := request.tpot_ms) is not None),
        fp16_token_share=fp16 / tokens if tokens else None,
        exact_answer_share=exact / len(answered) if answered else None,
        switches_per_min=sum(r.directive_changes for r in result.replicas) / minutes if minutes else 0.0,
        mean_replicas=result.replica_s / result.ended_s if result.ended_s else len(result.replicas),
        shed=sum(request.outcome == "shed" for request in requests),
        refused=sum(request.outcome == "refused" for request in requests),
        preemptions=sum(request.preemptions for request in requests),
    )
