"""What a simulation prints and writes: a line of a table, and the load test's JSON lines, so that its report reads them."""

from simulator.cluster.cluster import Cluster
from simulator.engine.request import SimRequest
from simulator.engine.stats import MODES
from simulator.simulation_summary import SimulationSummary
from workload.percentiles import Percentiles
from workload.records import (
    CompletionTokens,
    PrecisionTokens,
    PromptTokens,
    RequestRecord,
    ServiceReplica,
    ServiceStatus,
)

HEADER = (
    f"{'policy':16s} {'load':>5s} {'requests':>8s} {'tight':>6s} {'loose':>6s} {'TTFT p50/p90/p99 ms':>22s} "
    f"{'TPOT p50/p90/p99 ms':>20s} {'FP16':>6s} {'sw/min':>6s} {'worst':>5s} {'shed':>6s} {'wall s':>7s}"
)
ERRORS = {"shed": (503, "shed"), "refused": (400, "longer than the engine takes")}


def line(summary: SimulationSummary) -> str:
    """One row of the table."""
    load = "-" if summary.load is None else f"{summary.load:.2f}"
    fp16 = "?" if summary.fp16_token_share is None else f"{100 * summary.fp16_token_share:.1f}"
    return (
        f"{summary.policy:16s} {load:>5s} {summary.requests:8d} {100 * summary.tight_slo:6.2f} "
        f"{100 * summary.loose_slo:6.2f} {_three(summary.ttft_ms, 0):>22s} {_three(summary.tpot_ms, 1):>20s} {fp16:>6s} "
        f"{summary.switches_per_min:6.2f} {summary.worst_minute_switches:5d} {summary.shed:6d} {summary.wall_s:7.1f}"
    )


def _three(values: Percentiles, digits: int) -> str:
    return "/".join("?" if v is None else f"{v:.{digits}f}" for v in (values.p50, values.p90, values.p99))


def record(request: SimRequest, policy: str, model: str) -> RequestRecord:
    """One request; chunks are left out, because single tokens are not followed."""
    finished = request.outcome == "finished"
    status, error = (200, None) if finished else ERRORS[request.outcome]
    asked = RequestRecord(
        policy=policy,
        index=request.index,
        intended_s=request.arrived_s,
        sent_s=request.arrived_s,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.output_tokens,
        output_tokens=request.output_tokens if finished else 0,
        status=status,
        error=error,
        model=model,
    )
    if not finished:
        return asked
    tokens = PrecisionTokens(
        prompt=PromptTokens(fp16=request.prompt_fp16, fp8=request.prompt_fp8),
        completion=CompletionTokens(fp16=request.completion_fp16, fp8=request.completion_fp8),
    )
    answer = {
        "ttft_ms": request.ttft_ms,
        "tpot_ms": request.tpot_ms,
        "latency_ms": (request.finished_s - request.arrived_s) * 1e3,
        "precision_tokens": tokens,
    }
    return asked.model_copy(update=answer)


def sample(now_s: float, cluster: Cluster) -> tuple[float, ServiceStatus]:
    """The cluster at one moment, as the service's status tells it."""
    replicas = []
    for replica in cluster.present.values():
        engine = replica.engine
        engine.advance(now_s)
        replicas.append(
            ServiceReplica(
                id=replica.name,
                mode=MODES[bool(engine.stats.is_fp8)].value,
                running=len(engine.running),
                waiting=len(engine.waiting),
                tokens_fp16=engine.stats.tokens[False],
                tokens_fp8=engine.stats.tokens[True],
                switches=engine.stats.switches,
            )
        )
    latest = cluster.records[-1] if cluster.records else None
    return now_s, ServiceStatus(
        mode=latest.to_mode.value if latest else "fp16",
        epoch=latest.epoch if latest else 0,
        reason=latest.reason if latest else "start",
        replicas=tuple(replicas),
    )
