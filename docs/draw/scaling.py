"""A lasting rise of the load as the simulator sees it: fast answers bridge the minutes until another replica serves.

The engine is the shipped table of an 8B model on one H100; arrivals are Poisson, with the lengths of ``workload.synthetic``. Two
replicas, and others two minutes after the controller has asked for them, because too few replicas are exact.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.draw.style import CONTROL, FP8, FP16, NEUTRAL, arrivals, save
from simulator.bench import make_config, simulate
from simulator.cluster.cluster import Cluster
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import read_table
from simulator.engine.request import SimRequest
from simulator.simulation_summary import met
from workload.slo import Slo

REPLICAS, MOST, COLD_START_S = 2, 4, 120.0
CALM_RPS, HIGH_RPS = 12.0, 40.0  # 0.3 and 1.0 of what the first replicas serve in full FP16 steps
STEP_S, END_S, BIN_S = 60.0, 480.0, 10.0
EXACT_SHARE = 0.5
SLO = Slo(ttft_ms=200.0, tpot_ms=33.3)


def draw() -> Path:
    """Write ``scaling.svg``."""
    ladder = {"scale": True, "max_replicas": MOST, "min_replicas": REPLICAS, "exact_share": EXACT_SHARE}
    config = make_config({"slo": SLO.model_dump(), "ladder": ladder}, "exact_first")
    scenario = Scenario(replicas=REPLICAS, max_replicas=MOST, cold_start_s=COLD_START_S, seed=1)
    requests = arrivals((0.0, STEP_S, END_S), (CALM_RPS, HIGH_RPS))
    summary, result = simulate(read_table(), requests, config, scenario, monotonic, observe=_present)
    done = [request for request in result.requests if request.outcome == "finished"]
    figure = Figure(figsize=(8.4, 5.2), layout="constrained", facecolor="white")
    load, share, replicas = figure.subplots(3, 1, sharex=True, height_ratios=(1, 2, 1))
    edges_s = np.arange(0.0, END_S + BIN_S, BIN_S)
    counts, _ = np.histogram([request.arrived_s for request in result.requests], edges_s)
    load.stairs(counts / BIN_S, edges_s, fill=True, color=NEUTRAL, alpha=0.5)
    load.set(ylabel="requests/s", ylim=(0, None))
    _line(share, done, lambda r: met(r, SLO), f"in the SLO: {100 * summary.slo_attainment:.1f} %", FP8)
    _line(share, done, lambda r: r.prompt_fp8 + r.completion_fp8 == 0, "exact answers", FP16)
    share.set(ylabel="share", ylim=(0, 1.03))
    share.legend(loc="lower right", fontsize=8)
    at_s = [at_s for at_s, _ in result.samples]
    replicas.step(at_s, [count for _, count in result.samples], where="post", color=CONTROL)
    replicas.set(ylabel="replicas", xlabel="seconds", xlim=(0, END_S), ylim=(0, MOST + 0.5))
    return save(figure, "scaling")


def _present(now_s: float, cluster: Cluster) -> tuple[float, int]:
    return now_s, len(cluster.present)


def _line(axes: Axes, done: list[SimRequest], holds: Callable[[SimRequest], bool], label: str, colour: str) -> None:
    bins: dict[int, list[bool]] = {}
    for request in done:
        bins.setdefault(int(request.arrived_s // BIN_S), []).append(holds(request))
    at_s = [(number + 0.5) * BIN_S for number in sorted(bins)]
    axes.plot(at_s, [np.mean(bins[number]) for number in sorted(bins)], color=colour, label=label, lw=1.5)
