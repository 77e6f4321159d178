"""Everything the load test found -> summary.json, report.html, a table on the terminal.

The report is made from ``Summary`` and the records only, so it can be made again from the files of a run.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest.report.run_summary import RunSummary
from loadtest.report.verdict import NAMES
from workload.frozen import FrozenModel
from workload.records import Policy, RequestRecord
from workload.slo import Slo

TEMPLATE_DIR = Path(__file__).parent


class LoadSummary(FrozenModel):
    """The load that every policy got."""

    trace: str
    start_s: float  # in the trace
    span_s: float  # of the trace; more than duration_s when it was squeezed
    duration_s: float
    requests: int
    mean_rate_rps: float
    peak_rate_rps: float  # over 20 s
    mean_prompt_tokens: float
    mean_output_tokens: float
    context_tokens: int
    length_scale: float
    seed: int


class Summary(FrozenModel):
    """summary.json."""

    schema_version: int = 4
    started_utc: str
    model: str
    machine: str
    load: LoadSummary
    carried_rps: float | None  # in FP16, or by a plain server; None: not asked for
    slo: Slo
    service_slo: dict[str, float]  # what its controller steers by, from its configuration or its status
    runs: tuple[RunSummary, ...]
    verdict: tuple[str, ...]
    incomplete: str | None = None  # why runs are missing
    options: dict[str, Any]


def write_report(
    out_dir: Path,
    summary: Summary,
    records: Mapping[Policy, Sequence[RequestRecord]],
) -> Path:
    """Write summary.json, the plot and report.html; returns the path of the latter."""
    from loadtest.report.plots import draw_opening  # matplotlib takes a second to import

    (out_dir / "summary.json").write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
    plot = out_dir / "opening.png"
    draw_opening(plot, records, summary.slo, summary.load.duration_s)
    path = out_dir / "report.html"
    path.write_text(render_html(summary, plot.read_bytes()), encoding="utf-8")
    return path


def render_html(summary: Summary, plot: bytes) -> str:
    """The report as one self-contained, escaped HTML page."""
    environment = Environment(loader=FileSystemLoader(TEMPLATE_DIR), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("report.html.j2").render(
        summary=summary,
        header=HEADER,
        rows=[table_row(run) for run in summary.runs],
        plot=base64.b64encode(plot).decode(),
        facts=facts(summary),
    )


HEADER = (
    "policy", "requests", "errors", "exact answers", "exact of pinned", "FP16 tokens", "SLO met", "TTFT ms p50/p90/p99",
    "TPOT ms p50/p90/p99", "goodput req/s", "switches", "max waiting", "dispatch lag ms p99", "late starts",
)  # fmt: skip


def table_row(run: RunSummary) -> tuple[str, ...]:
    """One row of the table, as text."""
    return (
        NAMES.get(run.policy, run.policy),
        str(run.requests),
        str(run.errors) + (" INVALID" if run.unanswered else ""),
        _share(run.exact_answer_share),
        _share(run.exact_answer_share_of_pinned, "-"),
        _share(run.fp16_token_share),
        _share(run.slo_attainment),
        run.ttft_ms.text(0),
        run.tpot_ms.text(1),
        f"{run.goodput_rps:.2f}",
        "?" if run.switches is None else str(run.switches),
        "?" if run.max_waiting is None else str(run.max_waiting),
        "?" if run.dispatch_lag_ms.p99 is None else f"{run.dispatch_lag_ms.p99:.1f}",
        str(run.late_starts) + ("" if run.valid or run.unanswered else " INVALID"),
    )


def _share(value: float | None, unknown: str = "?") -> str:
    return unknown if value is None else f"{100 * value:.1f} %"


def facts(summary: Summary) -> tuple[tuple[str, str], ...]:
    """What was run, as (name, value) lines."""
    load = summary.load
    lines = [
        ("Model", summary.model),
        ("Machine", summary.machine),
        (
            "Load",
            f"{load.trace}, {load.span_s:.0f} s from {load.start_s:g} s, played in {load.duration_s:g} s: "
            f"{load.requests} requests, mean "
            f"{load.mean_rate_rps:.2f} requests/s, busiest 20 s {load.peak_rate_rps:.2f} requests/s",
        ),
        (
            "Lengths",
            f"mean {load.mean_prompt_tokens:.0f} prompt and {load.mean_output_tokens:.0f} output tokens "
            f"(trace x {load.length_scale:.3g}, context {load.context_tokens})",
        ),
        (
            "SLO of this report",
            f"TTFT {summary.slo.ttft_ms:.0f} ms, TPOT {summary.slo.tpot_ms:.1f} ms",
        ),
        (
            "SLO of the service's controller",
            ", ".join(f"{name} = {value:g}" for name, value in summary.service_slo.items()) or "not known",
        ),
    ]
    if summary.carried_rps is not None:
        share = 100 / summary.carried_rps
        lines.append(
            (
                "Load over capacity",
                f"{share * load.mean_rate_rps:.0f} % of the {summary.carried_rps:.2f} requests/s that FP16 (or a plain server) "
                f"carried, {share * load.peak_rate_rps:.0f} % in its busiest 20 s",
            )
        )
    return tuple(lines)


def report_lines(summary: Summary) -> list[str]:
    """The table, a column for each run, and the sentences for the terminal."""
    lines = [f"{name}: {value}" for name, value in facts(summary)]
    rows = [table_row(run) for run in summary.runs]
    widths = [2 + max(map(len, row)) for row in rows]
    for name, *cells in zip(HEADER, *rows, strict=True):
        lines.append(f"{name:20s}" + "".join(f"{cell:>{width}s}" for cell, width in zip(cells, widths, strict=True)))
    incomplete = [] if summary.incomplete is None else [f"INCOMPLETE: {summary.incomplete}"]
    return [*lines, *incomplete, *summary.verdict]
