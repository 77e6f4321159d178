"""What a simulation prints: lines of a table."""

from simulator.simulation_summary import SimulationSummary
from workload.percentiles import Percentiles

HEADER = (
    f"{'policy':16s} {'rate/s':>7s} {'requests':>8s} {'SLO %':>6s} {'TTFT p50/p90/p99 ms':>22s} {'TPOT p50/p90/p99 ms':>20s} "
    f"{'FP16 %':>6s} {'exact %':>7s} {'sw/min':>6s} {'shed':>6s} {'wall s':>7s}"
)


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
