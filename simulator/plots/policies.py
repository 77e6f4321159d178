"""How each policy behaves on one synthetic load: an SVG per policy, and the numbers as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from controller.config import ControllerConfig
from controller.policies import POLICIES
from nestedfp.modes import DirectiveMode
from simulator.arguments import make_parser
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import TABLE, EngineTable, read_table
from simulator.load_units import capacity_rps
from simulator.plots.draw import draw
from simulator.plots.load_curve import CURVE, arrivals
from simulator.plots.timeline import Timeline, record_timeline
from workload.azure import Arrival

REPLICAS = 2
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 150
SEED = 1


def load_of(table: EngineTable) -> tuple[Arrival, ...]:
    """The requests of the plots, for the FP16 capacity of this engine."""
    lengths = tuple(arrivals(CURVE, 10.0, PROMPT_TOKENS, OUTPUT_TOKENS, SEED))
    capacity = REPLICAS * capacity_rps(table, lengths, DirectiveMode.FP16)
    return tuple(arrivals(CURVE, capacity, PROMPT_TOKENS, OUTPUT_TOKENS, SEED))


def run_policy(name: str, table: EngineTable, requests: Sequence[Arrival]) -> Timeline:
    """One policy with its defaults; engine_auto, which has none, by the wait alone."""
    parameters: dict[str, Any] = {"fp8_wait_s": 0.02} if name == "engine_auto" else {}
    config = ControllerConfig.model_validate({"policy": {"name": name, **parameters}})
    return record_timeline(table, config, requests, Scenario(replicas=REPLICAS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; returns the exit status."""
    parser = make_parser("plots", __doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the plots")
    parser.add_argument("--policy", choices=list(POLICIES), action="append", help="may repeat (all)")
    args = parser.parse_args(arguments)
    matplotlib.use("Agg")
    args.out.mkdir(parents=True, exist_ok=True)
    table = read_table(TABLE)
    requests = load_of(table)
    print(f"{len(requests)} requests over {CURVE[-1].at_s:g} s on {REPLICAS} replicas of {table.model}")
    print(f"{'policy':16s} {'SLO met':>8s} {'FP16 tokens':>12s} {'switches':>9s} {'most per minute':>16s}")
    for name in args.policy or POLICIES:
        run = run_policy(name, table, requests)
        draw(args.out / f"{name}.svg", name, CURVE, run)
        print(
            f"{name:16s} {100 * run.within_slo_share:7.1f}% {100 * run.fp16_token_share:11.1f}% "
            f"{len(run.switches_at_s):9d} {run.most_switches_per_minute:16d}"
        )
    return 0
