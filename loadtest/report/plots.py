"""The figure of the report (PNG). The only file that imports matplotlib; draws without a display."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.report.run_summary import is_exact, met
from loadtest.report.verdict import NAMES
from workload.records import Policy, RequestRecord
from workload.slo import Slo

COLOURS = {"fp16": "#0072b2", "fp8": "#d55e00", "adaptive": "#009e73"}  # distinguishable for the colour-blind
PLAIN_COLOUR = "#56b4e9"
LOAD_COLOUR = "#999999"
OPENING_BINS = 24


def draw_opening(path: Path, records: Mapping[Policy, Sequence[RequestRecord]], slo: Slo, duration_s: float) -> None:
    """What the runs are for: the load over time, and by policy the requests within the SLO and the exact answers."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    edges_s = np.linspace(0.0, duration_s, OPENING_BINS + 1).tolist()
    for axis, name, values_of in zip(
        figure.subplots(2, 1, sharex=True),
        ("requests within the SLO, %", "exact answers, %"),
        (lambda record: met(record, slo), is_exact),
        strict=True,
    ):
        for policy, requests in records.items():
            shares = [100 * share for share in shares_over_time(requests, edges_s, values_of)]
            axis.plot(
                [(a + b) / 2 for a, b in pairwise(edges_s)],
                shares,
                label=NAMES.get(policy, policy),
                color=COLOURS.get(policy, PLAIN_COLOUR),
                marker=".",
            )
        axis.set(ylabel=name, ylim=(-2, 102))
        axis.grid(alpha=0.3)
        load = axis.twinx()
        arrivals, _ = np.histogram([r.intended_s for r in next(iter(records.values()), ())], edges_s)
        load.stairs(arrivals / np.diff(edges_s), edges_s, color=LOAD_COLOUR, fill=True, alpha=0.35)
        load.set(ylabel="arrivals/s (grey)", ylim=(0, None))
        load.set_zorder(-1)
        axis.patch.set_visible(False)
    if records:
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=len(records))
    axis.set(xlabel="arrival, seconds after the start of the run", xlim=(0, duration_s))
    FigureCanvasAgg(figure).print_png(str(path))  # type: ignore[no-untyped-call]


def shares_over_time(
    records: Sequence[RequestRecord], edges_s: Sequence[float], value_of: Callable[[RequestRecord], bool | None]
) -> list[float]:
    """Share of true values by the requests' arrival; NaN where there are none."""
    known = [(r.intended_s, value) for r in records if (value := value_of(r)) is not None]
    counts, _ = np.histogram([at_s for at_s, _ in known], edges_s)
    true, _ = np.histogram([at_s for at_s, value in known if value], edges_s)
    return [float(t / c) if c else float("nan") for t, c in zip(true, counts, strict=True)]
