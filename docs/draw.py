"""Draws docs/pictures/burst.svg: one burst as the simulator sees it. The diagrams beside it are SVG files as they are.

Load, time to first token and precision, for FP16 alone, FP8 alone and deadlines.

The engine is the shipped table of a 24B model on one H100; arrivals are Poisson, with the lengths of ``workload.synthetic`` times
0.4, and double for half a minute.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from nestedfp.modes import Mode
from simulator.bench import make_config, simulate
from simulator.cluster.cluster import Cluster, RunResult, Scenario
from simulator.engine.cost_table import TABLE, read_table
from simulator.simulation_summary import attainment
from workload.shape import Lengths, fit_lengths
from workload.slo import Slo
from workload.synthetic import synthetic_trace
from workload.traces import Arrival

PICTURE = Path(__file__).parent / "pictures" / "burst.svg"
FP16, FP8, NEUTRAL, CONTROL = "#0072b2", "#d55e00", "#6e7781", "#009e73"  # distinguishable for the colour-blind
CALM_RPS, BURST_RPS = 11.2, 22.4  # 0.45 and 0.9 of what full steps serve in FP16
LENGTHS = Lengths(context_tokens=4096, scale=0.4, max_prompt_tokens=1024)  # as in the measured tables
BURST_S, END_S = (40.0, 70.0), 110.0
BIN_S = 2.0
SLO = Slo(ttft_ms=200.0, tpot_ms=33.3)
POLICIES = {"static_fp16": ("FP16 alone", FP16), "static_fp8": ("FP8 alone", FP8), "deadlines": ("deadlines", CONTROL)}


def draw() -> None:
    """Write the picture, the same bytes every time."""
    table = read_table(TABLE.with_name("h100-mistral-24b-load.json"))
    load_s, rates_rps = (0.0, *BURST_S, END_S), (CALM_RPS, BURST_RPS, CALM_RPS)
    requests, _ = fit_lengths(arrivals(load_s, rates_rps), LENGTHS)
    figure = Figure(figsize=(8.4, 5.2), layout="constrained", facecolor="white")
    load, ttft, share = figure.subplots(3, 1, sharex=True, height_ratios=(1, 2, 1))
    for policy, (label, colour) in POLICIES.items():
        config = make_config({"slo": SLO.model_dump()}, policy)
        _, result = simulate(table, requests, config, Scenario(seed=1), observe=_tokens)
        _latency(ttft, result, f"{label}: {100 * attainment(result.requests, SLO):.1f} % within the SLO", colour)
        if policy == "static_fp16":
            _load(load, result)
        if policy == "deadlines":
            _precision(share, result)
    ttft.axhline(SLO.ttft_ms, color="black", linestyle=":", linewidth=1)
    ttft.annotate(f"SLO {SLO.ttft_ms:.0f} ms", (1, SLO.ttft_ms * 1.1), size=8)
    ttft.set(yscale="log", ylabel="TTFT p90, ms")
    ttft.legend(loc="upper right", fontsize=8)
    share.set(xlabel="seconds", xlim=(0, END_S))
    FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": "burst"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def arrivals(edges_s: Sequence[float], rates_rps: Sequence[float]) -> list[Arrival]:
    """Poisson arrivals, of another rate between each two edges."""
    drawn = []
    for seed, ((begin_s, end_s), rate_rps) in enumerate(zip(pairwise(edges_s), rates_rps, strict=True)):
        part = synthetic_trace(seed, end_s - begin_s, rate_rps, bursts=False)
        drawn += [replace(each, at_s=begin_s + each.at_s) for each in part]
    return drawn


def _tokens(now_s: float, cluster: Cluster) -> tuple[float, int, int]:
    """Computed until now in FP16 and in FP8."""
    for replica in cluster.present.values():
        replica.advance(now_s)
    counts = [replica.engine.stats.tokens for replica in cluster.present.values()]
    return now_s, sum(each[Mode.FP16] for each in counts), sum(each[Mode.FP8] for each in counts)


def _load(axes: Axes, result: RunResult) -> None:
    edges_s = np.arange(0.0, END_S + BIN_S, BIN_S)
    counts, _ = np.histogram([request.arrived_s for request in result.requests], edges_s)
    axes.stairs(counts / BIN_S, edges_s, fill=True, color=NEUTRAL, alpha=0.5)
    axes.set(ylabel="requests/s", ylim=(0, None))


def _latency(axes: Axes, result: RunResult, label: str, colour: str) -> None:
    bins: dict[int, list[float]] = {}
    for request in result.requests:
        if request.outcome == "finished":
            bins.setdefault(int(request.arrived_s // BIN_S), []).append(request.ttft_ms)
    at_s = [(number + 0.5) * BIN_S for number in sorted(bins)]
    axes.plot(at_s, [np.percentile(bins[number], 90) for number in sorted(bins)], color=colour, label=label, lw=1.5)


def _precision(axes: Axes, result: RunResult) -> None:
    every = int(BIN_S / 0.5)
    for (begin_s, fp16, fp8), (end_s, fp16_then, fp8_then) in pairwise(result.samples[::every]):
        done = fp16_then - fp16 + fp8_then - fp8
        part = (fp16_then - fp16) / done if done else 1.0
        width_s = end_s - begin_s
        axes.bar(begin_s, part, width_s, align="edge", color=FP16, alpha=0.75)
        axes.bar(begin_s, 1 - part, width_s, bottom=part, align="edge", color=FP8, alpha=0.75)
    axes.set(ylabel="tokens", ylim=(0, 1), yticks=(0, 0.5, 1))
    axes.text(1, 0.1, Mode.FP16.upper(), color="white", size=9, weight="bold")
    axes.text((BURST_S[0] + BURST_S[1]) / 2, 0.8, Mode.FP8.upper(), color="white", size=9, weight="bold", ha="center")


def main(words: Sequence[str] | None = None) -> None:
    """Draw it, and say where it is."""
    argparse.ArgumentParser(
        prog="python -m docs.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(words)
    draw()
    print(f"drawn: {PICTURE}")


if __name__ == "__main__":
    main()
