"""The picture of an experiment: attainment over the load, and what it costs in FP16 tokens."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from experiments.results import Results, groups, interval, mean

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKERS = "osD^vPX*"


def draw(results: Results, path: Path) -> None:
    """Write an SVG: left the requests within the SLO over the rate, right over the share of tokens in FP16.

    Points are means over seeds, bars reach from the lowest to the highest seed (one seed: the bootstrap's interval).
    """
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    found = groups(results)
    for number, policy in enumerate(dict.fromkeys(name for _, name in found)):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": policy}
        mine = {rate: cells for (rate, name), cells in found.items() if name == policy}
        rates = sorted(mine)
        middle = [100 * mean(c.slo_attainment for c in mine[rate]) for rate in rates]
        low, high = zip(*([100 * end for end in interval(mine[rate])] for rate in rates), strict=True)
        left.errorbar(
            rates, middle, np.array([np.subtract(middle, low), np.subtract(high, middle)]), capsize=3, **style
        )
        shares = [[c.fp16_token_share for c in mine[rate] if c.fp16_token_share is not None] for rate in rates]
        if all(shares):
            right.plot([100 * mean(share) for share in shares], middle, **style)
    left.set(xlabel="requests per second", ylabel="requests within the SLO, %")
    right.set(xlabel="tokens computed in exact FP16, %")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"{results.name}: SLO TTFT {results.slo.ttft_ms:g} ms, TPOT {results.slo.tpot_ms:g} ms")
    with rc_context({"svg.hashsalt": results.name}):  # the same file from the same numbers
        FigureCanvasSVG(figure).print_figure(path, metadata={"Date": None})
