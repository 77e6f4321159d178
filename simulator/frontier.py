"""SLO attainment against share of FP16 tokens: what each policy buys, as CSV and as a plot."""

import csv
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SimulationError
from simulator.simulation_summary import SimulationSummary

COLUMNS = ("policy", "load", "fp16_token_share", "tight_slo", "loose_slo", "switches_per_min", "requests", "shed")


def check(path: Path) -> None:
    """Raise SimulationError for a kind of file that ``write`` does not know."""
    if path.suffix not in (".png", ".svg", ".csv"):
        raise SimulationError(f"--frontier: expected a file name that ends in .png, .svg or .csv, got {path.name}")


def write(path: Path, summaries: Sequence[SimulationSummary]) -> None:
    """Write ``path`` and, for a plot, the CSV that it shows beside it."""
    check(path)
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([getattr(summary, column) for column in COLUMNS] for summary in summaries)
    if path.suffix != ".csv":
        _plot(path, summaries)


def _plot(path: Path, summaries: Sequence[SimulationSummary]) -> None:
    from matplotlib import rc_context  # takes a second to import
    from matplotlib.figure import Figure

    policies = list(dict.fromkeys(summary.policy for summary in summaries))
    loads = sorted({summary.load for summary in summaries}, key=lambda load: load or 0.0)
    figure = Figure(figsize=(4.2 * min(3, len(loads)), 3.6 * -(-len(loads) // 3)), layout="constrained")
    axes = figure.subplots(-(-len(loads) // 3), min(3, len(loads)), squeeze=False).flatten()
    for unused in axes[len(loads) :]:
        unused.set_visible(False)
    for axis, load in zip(axes, loads, strict=False):
        for number, policy in enumerate(policies):
            points = [s for s in summaries if s.policy == policy and s.load == load]
            axis.plot(
                [100 * (s.fp16_token_share or 0.0) for s in points],
                [100 * s.tight_slo for s in points],
                linestyle="none",
                marker="os^Dvp*X"[number % 8],
                color=f"C{number % 10}",
                label=policy,
            )
        axis.set_title("the trace's own rate" if load is None else f"{100 * load:.0f} % of FP16 capacity", fontsize=9)
        axis.set_xlabel("tokens in FP16, %")
        axis.set_ylabel("requests within the tight SLO, %")
        axis.set_xlim(-4, 104)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    with rc_context({"svg.hashsalt": "frontier", "svg.fonttype": "none"}):  # the same results give the same bytes
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
