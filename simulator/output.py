"""What a simulation prints, a line of a table, and its requests as the load test records them."""

from simulator.engine.request import SimRequest
from simulator.simulation_summary import SimulationSummary
from workload.percentiles import Percentiles
from workload.records import CompletionTokens, PrecisionTokens, PromptTokens, RequestRecord

HEADER = (
    f"{'policy':16s} {'rate/s':>7s} {'requests':>8s} {'SLO %':>6s} {'TTFT p50/p90/p99 ms':>22s} {'TPOT p50/p90/p99 ms':>20s} "
    f"{'FP16 %':>6s} {'exact %':>7s} {'sw/min':>6s} {'shed':>6s} {'wall s':>7s}"
)
ERRORS = {"shed": (503, "shed"), "refused": (400, "longer than the engine takes")}


def line(summary: SimulationSummary) -> str:
    """One row of the table."""
    fp16, exact = (
        "?" if share is None else f"{100 * share:.1f}"
        for share in (summary.fp16_token_share, summary.exact_answer_share)
    )
    return (
        f"{summary.policy:16s} {summary.rate_rps:7.2f} {summary.requests:8d} {100 * summary.slo_attainment:6.2f} "
        f"{_three(summary.ttft_ms, 0):>22s} {_three(summary.tpot_ms, 1):>20s} {fp16:>6s} {exact:>7s} "
        f"{summary.switches_per_min:6.2f} {summary.shed:6d} {summary.wall_s:7.1f}"
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
