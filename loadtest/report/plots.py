"""The figures of the report (PNG). The only file that imports matplotlib; draws without a display."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from loadtest.report.run_summary import meets_tpot, meets_ttft, statuses
from loadtest.report.verdict import NAMES
from nestedfp.answers import Answer
from workload.records import Policy, RequestRecord, ServiceStatus, TimelineSample
from workload.slo import Slo

COLOURS = {"fp16": "#0072b2", "fp8": "#d55e00", "adaptive": "#009e73"}  # distinguishable for the colour-blind
PLAIN_COLOUR = "#56b4e9"
PATH_COLOUR = "#cc79a7"
LOAD_COLOUR = "#999999"
ARRIVAL_BIN_S = 2.0
OPENING_BINS = 24


def draw_opening(path: Path, records: Mapping[Policy, Sequence[RequestRecord]], slo: Slo, duration_s: float) -> None:
    """What the runs are for: the load over time, and by policy the requests within the SLO and the exact answers."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    edges_s = np.linspace(0.0, duration_s, OPENING_BINS + 1).tolist()
    for axis, name, values_of in zip(
        figure.subplots(2, 1, sharex=True),
        ("requests within the SLO, %", "exact answers, %"),
        (lambda record: meets_ttft(record, slo) and meets_tpot(record, slo), is_exact),
        strict=True,
    ):
        for policy, requests in records.items():
            shares = [100 * share for share in shares_over_time(requests, edges_s, values_of)]
            axis.plot(
                [(a + b) / 2 for a, b in pairwise(edges_s)],
                shares,
                label=_name(policy),
                color=_colour(policy),
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
    _save(figure, path)


def is_exact(record: RequestRecord) -> bool | None:
    """Whether an answer is exact; None: it does not tell, or there is none."""
    told = record.precision_tokens if record.error is None else None
    return None if told is None else told.answer is Answer.EXACT


def shares_over_time(
    records: Sequence[RequestRecord], edges_s: Sequence[float], value_of: Callable[[RequestRecord], bool | None]
) -> list[float]:
    """Share of true values by the requests' arrival; NaN where there are none."""
    known = [(r.intended_s, value) for r in records if (value := value_of(r)) is not None]
    counts, _ = np.histogram([at_s for at_s, _ in known], edges_s)
    true, _ = np.histogram([at_s for at_s, value in known if value], edges_s)
    return [float(t / c) if c else float("nan") for t, c in zip(true, counts, strict=True)]


def draw_latencies(path: Path, records: Mapping[Policy, Sequence[RequestRecord]], slo: Slo) -> None:
    """Cumulative distributions of TTFT and TPOT. A curve that ends below 1 belongs to a run with failed requests."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name, limit_ms in ((axes[0], "ttft_ms", slo.ttft_ms), (axes[1], "tpot_ms", slo.tpot_ms)):
        lows = [limit_ms]
        for policy, requests in records.items():
            values = np.sort([v for r in requests if (v := getattr(r, name)) is not None and r.error is None])
            if len(values):
                unmeasurable = sum(r.error is None and getattr(r, name) is None for r in requests)  # one token: no TPOT
                share = np.arange(1, len(values) + 1) / (len(requests) - unmeasurable)
                lows.append(float(np.percentile(values, 1)))
                axis.step(np.maximum(values, 1e-3), share, where="post", label=_name(policy), color=_colour(policy))
        axis.axvline(limit_ms, color="black", linestyle=":", label=f"SLO {limit_ms:.4g} ms")
        axis.set(xscale="log", xlabel=f"{name[:4].upper()} in ms", ylim=(0, 1.02), xlim=(max(min(lows) / 2, 0.1), None))
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    axes[0].set_ylabel("share of all requests")
    _save(figure, path)


def draw_timelines(
    path: Path,
    records: Mapping[Policy, Sequence[RequestRecord]],
    timelines: Mapping[Policy, Sequence[TimelineSample]],
    duration_s: float,
) -> None:
    """One row a policy: arrivals, where requests stood (client, path, engine), and the share of tokens in FP8."""
    figure = Figure(figsize=(11, 1 + 2.4 * max(len(records), 1)), layout="constrained")
    rows = figure.subplots(max(len(records), 1), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (policy, requests) in zip(rows, records.items(), strict=False):
        edges_s = np.arange(0.0, duration_s + ARRIVAL_BIN_S, ARRIVAL_BIN_S)
        arrivals, _ = np.histogram([request.intended_s for request in requests], edges_s)
        axis.stairs(arrivals / ARRIVAL_BIN_S, edges_s, color=LOAD_COLOUR, fill=True, alpha=0.5, label="arrivals/s")
        samples = timelines.get(policy, ())
        for label, style, counts in standing_lines(samples):
            if any(count is not None for count in counts):
                axis.plot([s.at_s for s in samples], [np.nan if c is None else c for c in counts], label=label, **style)
        axis.set(ylabel="requests", title=_name(policy), ylim=(0, None))
        share_axis = axis.twinx()
        mid_s, fp8_share = fp8_shares(samples)
        share_axis.fill_between(
            mid_s, fp8_share, step="mid", color=COLOURS["fp8"], alpha=0.25, label="FP8 share of tokens"
        )
        share_axis.set(ylim=(0, 1.02), ylabel="FP8 share")
        handles = [part for one in (axis, share_axis) for part in one.get_legend_handles_labels()[0]]
        if axis is rows[0]:
            axis.legend(handles=handles, loc="upper left", fontsize="small", ncols=2)
    rows[-1].set_xlabel("seconds after the start of the run")
    _save(figure, path)


def standing_lines(
    samples: Sequence[TimelineSample],
) -> list[tuple[str, dict[str, Any], list[int | None]]]:
    """Lines of the timeline, (label, style, requests at each sample); None where it is not known."""
    stood = [sample.standing for sample in samples]
    client = [None if s is None else s.late + s.connecting for s in stood]
    beside = [None if s is None else s.beside_engine for s in stood]
    waiting = [None if s is None else s.waiting for s in stood]
    running = [None if s is None else s.running for s in stood]
    lines = [
        ("late in the client", {"color": "#e69f00", "linewidth": 1.2}, client),
        ("in path and on the way", {"color": PATH_COLOUR, "linewidth": 1.2}, beside),
        ("waiting", {"color": "black", "linewidth": 1.2}, waiting),
        ("running", {"color": "black", "linewidth": 1, "linestyle": ":"}, running),
    ]
    if all(count is None for count in running):  # the server tells nothing: what the client sees
        opened = [None if s is None else s.unanswered + s.streaming for s in stood]
        unanswered = [None if s is None else s.unanswered for s in stood]
        lines[1:] = [
            ("without a token yet", {"color": "black", "linewidth": 1.2}, unanswered),
            ("open", {"color": "black", "linewidth": 1, "linestyle": ":"}, opened),
        ]
    return lines


def _name(policy: Policy) -> str:
    return NAMES.get(policy, policy)


def _colour(policy: Policy) -> str:
    return COLOURS.get(policy, PLAIN_COLOUR)


def fp8_shares(samples: Sequence[TimelineSample]) -> tuple[list[float], list[float]]:
    """Share of the tokens computed in FP8 between successive samples; NaN where none were."""
    samples = [sample for sample in samples if sample.status is not None]
    times_s: list[float] = []
    shares: list[float] = []
    for before, after in pairwise(samples):
        old, new = statuses((before, after))
        fp16, fp8 = (_growth(old, new, field) for field in ("tokens_fp16", "tokens_fp8"))
        times_s.append((before.at_s + after.at_s) / 2)
        shares.append(fp8 / (fp16 + fp8) if fp16 + fp8 else float("nan"))
    return times_s, shares


def _growth(before: ServiceStatus, after: ServiceStatus, field: str) -> int:
    old: dict[str, Any] = {replica.id: getattr(replica, field) for replica in before.replicas}
    return sum(max(getattr(r, field) - old.get(r.id, getattr(r, field)), 0) for r in after.replicas)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure).print_png(str(path))  # type: ignore[no-untyped-call]
