"""Draws a run: the offered load, the longest wait, and the precision of the computed tokens over time."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from nestedfp.modes import DirectiveMode
from simulator.plots.load_curve import Knot, load_at
from simulator.plots.timeline import Sample, Timeline
from workload.slo import USUAL_SLO

BIN_S = 2.0
COLOURS = {DirectiveMode.FP16: "#e8f1fa", DirectiveMode.FP8: "#fbd9c4", DirectiveMode.AUTO: "#eceadf"}


def draw(path: Path, name: str, curve: Sequence[Knot], run: Timeline) -> None:
    """Write an SVG of some tens of kilobytes. The same run gives the same bytes."""
    plt.rcParams.update({"svg.hashsalt": "policy", "svg.fonttype": "none", "font.size": 9})
    figure, (load_axes, wait_axes, share_axes) = plt.subplots(
        3, 1, sharex=True, figsize=(7.2, 4.4), height_ratios=(2, 2, 1.4), layout="constrained"
    )
    end_s = curve[-1].at_s
    samples = [sample for sample in run.samples if sample.at_s <= end_s]
    at_s = np.array([sample.at_s for sample in samples])
    for axes in (load_axes, wait_axes):
        _shade(axes, samples, end_s)
    seconds = np.arange(0, end_s, BIN_S)
    load_axes.plot(seconds, [load_at(curve, float(second)) for second in seconds], color="#333333", linewidth=1.2)
    load_axes.axhline(1.0, color="#999999", linewidth=0.8, linestyle=":")
    load_axes.set_ylabel("load / FP16\ncapacity")
    load_axes.set_ylim(0, 1.5)
    load_axes.set_title(
        f"{name}: {100 * run.within_slo_share:.1f} % within the SLO, {100 * run.fp16_token_share:.0f} % of tokens in "
        f"FP16, {len(run.switches_at_s)} changes of the directive",
        fontsize=9,
        loc="left",
    )
    edges = np.searchsorted(at_s, np.arange(0, end_s + BIN_S, BIN_S))
    waits = np.array([sample.oldest_wait_s for sample in samples])
    longest = [waits[a:b].max() if b > a else 0.0 for a, b in itertools.pairwise(edges)]
    wait_axes.plot(seconds[: len(longest)], np.maximum(longest, 1e-3), color="#b3421b", linewidth=1)
    wait_axes.axhline(USUAL_SLO.ttft_ms / 1e3, color="#999999", linewidth=0.8, linestyle=":")
    wait_axes.set_yscale("log")
    wait_axes.set_ylim(1e-3, 60)
    wait_axes.set_ylabel("longest wait, s")
    fp16 = np.array([sample.tokens_fp16 for sample in samples], dtype=float)
    fp8 = np.array([sample.tokens_fp8 for sample in samples], dtype=float)
    ends = np.minimum(edges, len(samples) - 1)
    of_fp16, of_fp8 = np.diff(fp16[ends]), np.diff(fp8[ends])
    share = np.divide(of_fp16, of_fp16 + of_fp8, out=np.ones_like(of_fp16), where=of_fp16 + of_fp8 > 0)
    share_axes.fill_between(seconds[: len(share)], 0, 100 * share, step="post", color="#3a76b0", linewidth=0)
    share_axes.set_ylabel("FP16 tokens, %")
    share_axes.set_xlabel("seconds; shaded: directive fp16 (blue), auto (grey), fp8 (orange)")
    share_axes.set_ylim(0, 100)
    share_axes.set_xlim(0, end_s)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def _shade(axes: Axes, samples: Sequence[Sample], end_s: float) -> None:
    began_s, mode = 0.0, samples[0].mode
    for sample in samples:
        if sample.mode is not mode:
            axes.axvspan(began_s, sample.at_s, color=COLOURS[mode], linewidth=0)
            began_s, mode = sample.at_s, sample.mode
    axes.axvspan(began_s, end_s, color=COLOURS[mode], linewidth=0)
