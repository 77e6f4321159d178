"""What a simulation prints and writes: a line of a table, and the load test's JSON lines, so that its report reads them."""

import json
from pathlib import Path
from typing import Any

from simulator.cluster.cluster import Cluster, RunResult
from simulator.engine.request import SimRequest
from simulator.engine.stats import MODES
from simulator.metrics import SimulationSummary
from workload.percentiles import Percentiles

HEADER = (
    f"{'policy':16s} {'load':>5s} {'requests':>8s} {'tight':>6s} {'loose':>6s} {'TTFT p50/p90/p99 ms':>22s} "
    f"{'TPOT p50/p90/p99 ms':>20s} {'FP16':>6s} {'sw/min':>6s} {'worst':>5s} {'shed':>6s} {'wall s':>7s}"
)
# The load test knows three policies; whatever decides is "adaptive".
NAMES = {"static_fp16": "fp16", "static_fp8": "fp8"}
ERRORS = {"shed": (503, "shed"), "refused": (400, "longer than the engine takes"), "lost": (500, "its replica failed")}


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


def write_records(path: Path, result: RunResult, policy: str, model: str) -> None:
    """Every request as the load test's ``RequestRecord``."""
    with path.open("w", encoding="utf-8") as file:
        for request in result.requests:
            file.write(json.dumps(record(request, NAMES.get(policy, "adaptive"), model)) + "\n")


def record(request: SimRequest, policy: str, model: str) -> dict[str, Any]:
    """One request; chunks are left out, because single tokens are not followed."""
    common: dict[str, Any] = {
        "policy": policy,
        "index": request.index,
        "intended_s": request.arrived_s,
        "sent_s": request.arrived_s,
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.output_tokens,
        "model": model,
    }
    if request.outcome != "finished":
        status, error = ERRORS[request.outcome]
        return {**common, "output_tokens": 0, "status": status, "error": error}
    return {
        **common,
        "output_tokens": request.output_tokens,
        "status": 200,
        "ttft_ms": request.ttft_ms,
        "tpot_ms": request.tpot_ms,
        "latency_ms": (request.finished_s - request.arrived_s) * 1e3,
        "precision_tokens": {
            "prompt": {"fp16": request.prompt_fp16, "fp8": request.prompt_fp8, "cached": {"fp16": 0, "fp8": 0}},
            "completion": {"fp16": request.completion_fp16, "fp8": request.completion_fp8},
        },
    }


def sample(now_s: float, cluster: Cluster) -> dict[str, Any]:
    """The cluster at one moment, as the service's status tells it."""
    replicas = []
    for replica in cluster.present.values():
        engine = replica.engine
        engine.advance(now_s)
        replicas.append(
            {
                "id": replica.name,
                "mode": MODES[bool(engine.stats.is_fp8)].value,
                "running": len(engine.running),
                "waiting": len(engine.waiting),
                "tokens_fp16": engine.stats.tokens[False],
                "tokens_fp8": engine.stats.tokens[True],
                "switches": engine.stats.switches,
            }
        )
    latest = cluster.records[-1] if cluster.records else None
    return {
        "at_s": now_s,
        "status": {
            "mode": latest.to_mode.value if latest else "fp16",
            "epoch": latest.epoch if latest else 0,
            "reason": latest.reason if latest else "start",
            "replicas": replicas,
        },
    }


def write_timeline(path: Path, result: RunResult, policy: str) -> None:
    """The samples as the load test's ``TimelineSample``."""
    with path.open("w", encoding="utf-8") as file:
        for taken in result.samples:
            file.write(json.dumps({"policy": NAMES.get(policy, "adaptive"), **taken}) + "\n")
