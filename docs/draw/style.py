"""What the plots share: colours that the colour-blind tell apart, the loads, and how a plot is written."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from workload.synthetic import synthetic_trace
from workload.traces import Arrival

FP16, FP8, NEUTRAL, CONTROL = "#0072b2", "#d55e00", "#6e7781", "#009e73"
PICTURES = Path(__file__).parents[1] / "pictures"


def arrivals(edges_s: Sequence[float], rates_rps: Sequence[float]) -> list[Arrival]:
    """Poisson arrivals, of another rate between each two edges."""
    drawn = []
    for seed, ((begin_s, end_s), rate_rps) in enumerate(zip(pairwise(edges_s), rates_rps, strict=True)):
        part = synthetic_trace(seed, end_s - begin_s, rate_rps, bursts=False)
        drawn += [replace(each, at_s=begin_s + each.at_s) for each in part]
    return drawn


def save(figure: Figure, name: str) -> Path:
    """Write ``docs/pictures/<name>.svg``, the same bytes for the same picture."""
    path = PICTURES / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(path, metadata={"Date": None})
    return path
