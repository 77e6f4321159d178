"""``python -m controller.policy_plots --out docs/plots``: one SVG a policy, and the numbers as a table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from controller.config import ControllerConfig
from controller.policies import POLICIES
from controller.policy_plots.batching import H100_8B, BatchingReplica, Request
from controller.policy_plots.curves import CURVE, arrivals
from controller.policy_plots.draw import draw
from controller.policy_plots.drive import Run, drive
from nestedfp.modes import Mode

REPLICAS = 2
BUDGET_TOKENS = 8192
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 150
SEED = 1


def capacity_rps() -> float:
    """Requests a second that all replicas together compute in FP16, with steps as large as they get."""
    time = H100_8B[Mode.FP16]
    step_ms = time.base_ms + time.per_token_ms * BUDGET_TOKENS
    return REPLICAS * BUDGET_TOKENS / step_ms * 1e3 / (PROMPT_TOKENS + OUTPUT_TOKENS)


def run_policy(name: str, requests: Sequence[Request]) -> Run:
    """One policy with its defaults; engine_auto, which has none, by the wait alone."""
    parameters: dict[str, Any] = {"fp8_wait_s": 0.02} if name == "engine_auto" else {}
    config = ControllerConfig.model_validate({"policy": {"name": name, **parameters}})
    replicas = [
        BatchingReplica(f"r{i}", slo=config.slo, budget_tokens=BUDGET_TOKENS, fallback=config.fallback)
        for i in range(REPLICAS)
    ]
    return drive(config, requests, replicas, CURVE[-1].at_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m controller.policy_plots", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the plots")
    parser.add_argument("--policy", choices=list(POLICIES), action="append", help="may repeat (all)")
    args = parser.parse_args(arguments)
    matplotlib.use("Agg")
    args.out.mkdir(parents=True, exist_ok=True)
    requests = tuple(arrivals(CURVE, capacity_rps(), PROMPT_TOKENS, OUTPUT_TOKENS, SEED))
    print(f"{len(requests)} requests over {CURVE[-1].at_s:g} s on {REPLICAS} replicas")
    print(f"{'policy':16s} {'SLO met':>8s} {'FP16 tokens':>12s} {'switches':>9s} {'most a minute':>14s}")
    for name in args.policy or POLICIES:
        run = run_policy(name, requests)
        draw(args.out / f"{name}.svg", name, CURVE, run)
        print(
            f"{name:16s} {100 * run.within_slo_share:7.1f}% {100 * run.fp16_token_share:11.1f}% "
            f"{len(run.switches_at_s):9d} {run.most_switches_per_minute:14d}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
