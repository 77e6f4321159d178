"""Reports of an experiment's load tests -> one summary. python -m docs.tables shows it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from controller.config import explain
from experiments.config import Experiment, ExperimentError, Run, TraceWindow
from experiments.predict import Prediction
from loadtest.report.error_kinds import error_kinds
from loadtest.report.run_summary import RunSummary, exact_answer_share, meets_tpot, meets_ttft
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles
from workload.records import RequestRecord, read_requests
from workload.slo import Slo

LOOSE = 2.0  # times the tight SLO, as in the NestedFP evaluation (5 and 10 times a single request's latency)
BOOTSTRAPS = 1000
KEPT = "summary.json"
MACHINE = "machine.txt"  # in the folder of the reports: what they were measured on
MACHINES = " | then: "  # between machines in a summary


class Cell(FrozenModel):
    """One load test in numbers; the names are those of the load test's own summary."""

    policy: str
    system: str
    rate_rps: float  # asked for
    seed: int
    requests: int
    errors: dict[str, int]
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    tight_slo: float
    tight_slo_low: float  # 95 % interval by bootstrap over requests
    tight_slo_high: float
    loose_slo: float
    slo_attainment: float  # the same as tight_slo
    goodput_rps: float
    output_tokens_per_s: float
    exact_answer_share: float | None = None  # None: of plain vLLM, and of summaries from before it was told
    exact_answer_share_of_pinned: float | None = None  # None: nothing was pinned
    fp16_token_share: float | None
    switches: int | None
    k_changes_per_minute: float | None = (
        None  # of the number of exact replicas; None: not reported, or no service of ours
    )
    fp8_reasons: dict[str, int] | None = None  # FP8 steps by what asked for them; None: not told
    late_starts: int
    valid: bool
    saturated_by: str
    seconds_of_tpot_misses_per_minute: (
        float  # seconds in which an answer in progress was slower than the TPOT objective
    )


class Results(FrozenModel):
    """An experiment and what came out."""

    name: str
    slo: Slo
    replicas: int
    window: TraceWindow
    machine: str
    runs: tuple[Cell, ...]


def collect(experiment: Experiment, out: Path) -> Results:
    """Read every report below ``out``.

    Raises:
        ExperimentError: when there is none.
    """
    cells = []
    for run in experiment.runs:
        for rate in experiment.load.rates_rps:
            for seed in experiment.load.seeds:
                for path in sorted((out / "runs" / run.name / f"{rate:g}-{seed}").glob("*/summary.json")):
                    report = json.loads(path.read_text())
                    for found in report["runs"]:
                        summary = RunSummary.model_validate(found)
                        records = read_requests(path.parent / f"requests-{summary.policy}.jsonl")
                        cells.append(_cell(run, rate, seed, summary, records, experiment.slo))
    if not cells:
        raise ExperimentError(
            f"{out}: expected reports in runs/<name>/<rate>-<seed>/, found none: run the experiment first"
        )
    return Results(
        name=experiment.name,
        slo=experiment.slo,
        replicas=experiment.replicas,
        window=experiment.load.window,
        machine=(out / MACHINE).read_text().strip() if (out / MACHINE).exists() else "not recorded",
        runs=tuple(cells),
    )


def _cell(
    run: Run, rate_rps: float, seed: int, summary: RunSummary, records: Sequence[RequestRecord], slo: Slo
) -> Cell:
    good = np.array([meets_ttft(record, slo) and meets_tpot(record, slo) for record in records])
    doubled = Slo(ttft_ms=LOOSE * slo.ttft_ms, tpot_ms=LOOSE * slo.tpot_ms)
    drawn = np.random.default_rng(seed).choice(good, (BOOTSTRAPS, len(good))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Cell(
        policy=run.name,
        system=run.system,
        rate_rps=rate_rps,
        seed=seed,
        requests=summary.requests,
        errors=error_kinds(record.error for record in records if record.error is not None),
        ttft_ms=summary.ttft_ms,
        tpot_ms=summary.tpot_ms,
        tight_slo=float(good.mean()),
        tight_slo_low=float(low),
        tight_slo_high=float(high),
        loose_slo=float(np.mean([meets_ttft(r, doubled) and meets_tpot(r, doubled) for r in records])),
        slo_attainment=float(good.mean()),
        goodput_rps=summary.goodput_rps,
        output_tokens_per_s=summary.output_tokens_per_s,
        exact_answer_share=exact_answer_share(records),
        exact_answer_share_of_pinned=exact_answer_share(records, "exact"),
        fp16_token_share={"vllm_fp16": 1.0, "vllm_fp8": 0.0}.get(run.system, summary.fp16_token_share),
        switches=summary.switches,
        k_changes_per_minute=summary.k_changes_per_minute,
        fp8_reasons=summary.fp8_reasons,
        late_starts=summary.late_starts,
        valid=summary.valid,
        saturated_by=summary.saturated_by,
        seconds_of_tpot_misses_per_minute=tpot_miss_seconds(records, slo) * 60 / summary.duration_s,
    )


def tpot_miss_seconds(records: Sequence[RequestRecord], slo: Slo) -> float:
    """Return how many whole seconds of the run had a mean gap between pieces of answers above the TPOT objective.

    The NestedFP paper's Figure 1 counts such seconds. Gaps are counted in the second in which they end, one gap for every
    piece; pieces of several tokens count once.
    """
    ends_s, gaps_ms = [], []
    for record in records:
        if record.error is None and len(record.chunk_ms) > 1:
            chunks = np.asarray(record.chunk_ms)
            ends_s.append(record.intended_s + chunks[1:] / 1e3)
            gaps_ms.append(np.diff(chunks))
    if not ends_s:
        return 0.0
    seconds = np.concatenate(ends_s).astype(int)
    count = np.bincount(seconds)
    total_ms = np.bincount(seconds, np.concatenate(gaps_ms))
    return float(np.sum(total_ms[count > 0] / count[count > 0] > slo.tpot_ms))


def write(results: Results, folder: Path) -> None:
    """Write the summary to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KEPT).write_text(results.model_dump_json(indent=1) + "\n")


def joined(before: Results, new: Results) -> Results:
    """Return the new load tests, and those of a summary that are not among them: reports from several machines add up.

    Raises:
        ExperimentError: when the two are not of one experiment, with what differs.
    """
    for key in ("name", "slo", "replicas", "window"):
        if getattr(before, key) != getattr(new, key):
            raise ExperimentError(
                f"{key}: the summary there has {getattr(before, key)}, the reports {getattr(new, key)}: they are no parts of one "
                "experiment; leave out --add to replace it"
            )

    def place(cell: Cell) -> tuple[str, float, int]:
        return cell.policy, cell.rate_rps, cell.seed

    measured = {place(cell) for cell in new.runs}
    kept = [cell for cell in before.runs if place(cell) not in measured]
    order = list(dict.fromkeys(cell.policy for cell in (*before.runs, *new.runs)))
    runs = sorted((*kept, *new.runs), key=lambda cell: (order.index(cell.policy), cell.rate_rps, cell.seed))
    machines = dict.fromkeys([*(before.machine.split(MACHINES) if kept else ()), *new.machine.split(MACHINES)])
    return new.model_copy(update={"machine": MACHINES.join(machines), "runs": tuple(runs)})


def read(folder: Path) -> Results:
    """Read a summary.

    Raises:
        ExperimentError: when there is none, or one of another version.
    """
    try:
        return Results.model_validate_json((folder / KEPT).read_text())
    except OSError as error:
        raise ExperimentError(
            f"{folder / KEPT}: {error.strerror}; give the folder of an experiment's results"
        ) from error
    except ValidationError as error:
        raise ExperimentError(
            f"{folder / KEPT}: {explain(error)}; it is of another version: sum the reports up again, without --add"
        ) from error


COMPARED = (
    "requests/s",
    "policy",
    "exact answers, %",
    "tokens in FP16, %",
    "within the SLO, %",
    "TTFT p50, ms",
    "p90",
    "TPOT p50, ms",
    "p90",
)


def predictions(predicted: Sequence[Prediction], measured: Results | None = None) -> str:
    """Return a Markdown table of what was simulated, or measured / simulated for every load test that has both."""
    by_key = {} if measured is None else {(cell.policy, cell.rate_rps, cell.seed): cell for cell in measured.runs}
    rows = []
    for each in sorted(predicted, key=lambda each: each.rate_rps):
        cell = by_key.get((each.policy, each.rate_rps, each.seed))
        if measured is None or cell is not None:
            sides: tuple[Cell | Prediction, ...] = (each,) if cell is None else (cell, each)
            rows.append((f"{each.rate_rps:g}", each.policy, *map(" / ".join, zip(*map(_figures, sides), strict=True))))
    return "\n".join(f"| {' | '.join(fields)} |" for fields in (COMPARED, ["---"] * len(COMPARED), *rows))


def _figures(one: Cell | Prediction) -> list[str]:
    return [
        _percent(one.exact_answer_share),
        _percent(one.fp16_token_share),
        f"{100 * one.tight_slo:.1f}",
        *(f"{getattr(one.ttft_ms, p):.0f}" for p in ("p50", "p90")),
        *(f"{getattr(one.tpot_ms, p):.1f}" for p in ("p50", "p90")),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def interval(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return how far the share within the SLO reaches: over the seeds, or of one seed the bootstrap's interval."""
    if len(cells) == 1:
        return cells[0].tight_slo_low, cells[0].tight_slo_high
    return min(c.tight_slo for c in cells), max(c.tight_slo for c in cells)


def groups(results: Results) -> dict[tuple[float, str], list[Cell]]:
    """Return the cells by rate and policy, in that order, seeds together."""
    found: dict[tuple[float, str], list[Cell]] = {}
    order = list(dict.fromkeys(cell.policy for cell in results.runs))
    for cell in sorted(results.runs, key=lambda c: (c.rate_rps, order.index(c.policy), c.seed)):
        found.setdefault((cell.rate_rps, cell.policy), []).append(cell)
    return found


def mean(values: Any) -> float:
    """Return the mean of an iterable of numbers."""
    return float(np.mean(list(values)))
