"""What the runs show, in sentences, and what they do not show. Pure.

Two runs differ only when the difference exceeds what chance alone gives for that many requests (normal approximation,
95 %). The same arrivals are replayed, so this errs towards "not shown". One run per policy says nothing about the
variation between runs.
"""

from collections.abc import Sequence
from math import sqrt

from loadtest.report.error_kinds import most_frequent
from loadtest.report.run_summary import LATE_MS, RunSummary

TARGET = 0.95  # attainment from which a run "meets the SLO"
FEW_REQUESTS = 100
OFTEN = 0.1  # of the samples
NAMES = {"fp16": "FP16 only", "fp8": "FP8 only", "adaptive": "adaptive"}


def verdict(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Sentences, the most important first; cautions last."""
    by_policy = {run.policy: run for run in runs}
    lines: list[str] = []
    fp16, fp8, adaptive = by_policy.get("fp16"), by_policy.get("fp8"), by_policy.get("adaptive")
    if fp16 and adaptive:
        lines.append(_against_fp16(adaptive, fp16))
    if fp8 and adaptive:
        lines.insert(1, _against_fp8(adaptive, fp8))
    if fp16 and fp8:
        lines.append(_compare(fp8, fp16))
    lines.extend(_alone(run) for run in runs if run.policy not in NAMES)
    return tuple(lines + [caution for run in runs for caution in _cautions(run)])


def _alone(run: RunSummary) -> str:
    return f"{run.policy}: {_percent(run.slo_attainment)} of requests within the SLO. The server ran as it is: no directives."


def _differs(a: RunSummary, b: RunSummary) -> bool:
    variance = sum(run.slo_attainment * (1 - run.slo_attainment) / run.requests for run in (a, b))
    return abs(a.slo_attainment - b.slo_attainment) > max(1.96 * sqrt(variance), 1 / min(a.requests, b.requests))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _against_fp16(adaptive: RunSummary, fp16: RunSummary) -> str:
    ours, theirs = _percent(adaptive.slo_attainment), _percent(fp16.slo_attainment)
    if not _differs(adaptive, fp16):
        why = (
            "; the load was too low to tell them apart"
            if min(a.slo_attainment for a in (adaptive, fp16)) > TARGET
            else ""
        )
        return f"Not shown: adaptive {ours} and FP16 only {theirs} of requests within the SLO do not differ{why}."
    if adaptive.slo_attainment < fp16.slo_attainment:
        return f"Not shown: adaptive is worse, {ours} of requests within the SLO against {theirs} for FP16 only."
    if adaptive.slo_attainment >= TARGET > fp16.slo_attainment:
        return f"Adaptive meets the SLO ({ours} of requests) where FP16 only misses it ({theirs})."
    return (
        f"Adaptive keeps {ours} of requests within the SLO, FP16 only {theirs}; the target of {_percent(TARGET)} "
        + ("is met by both." if fp16.slo_attainment >= TARGET else "is met by neither.")
    )


def _against_fp8(adaptive: RunSummary, fp8: RunSummary) -> str:
    share = adaptive.fp16_token_share
    ran = "did not disclose its precision" if share is None else f"ran {_percent(share)} of its tokens in exact FP16"
    if adaptive.exact_answer_share is not None:
        ran = f"gave {_percent(adaptive.exact_answer_share)} of its answers exactly, {ran}"
    if _differs(adaptive, fp8):
        relation = "more" if adaptive.slo_attainment > fp8.slo_attainment else "fewer"
        kept = f"kept {relation} requests within the SLO than FP8 only"
    else:
        kept = "kept as many requests within the SLO as FP8 only"
    return f"Adaptive {ran} and {kept} ({_percent(adaptive.slo_attainment)} against {_percent(fp8.slo_attainment)})."


def _compare(fp8: RunSummary, fp16: RunSummary) -> str:
    ours, theirs = _percent(fp8.slo_attainment), _percent(fp16.slo_attainment)
    if not _differs(fp8, fp16):
        return f"Not shown: that FP8 helps at this load (FP8 only {ours}, FP16 only {theirs} within the SLO)."
    relation = "more" if fp8.slo_attainment > fp16.slo_attainment else "fewer"
    return f"FP8 only keeps {relation} requests within the SLO than FP16 only ({ours} against {theirs})."


def _cautions(run: RunSummary) -> list[str]:
    name = NAMES.get(run.policy, run.policy)
    cautions = []
    if run.errors:
        cautions.append(
            f"Caution: {name}: {run.errors} of {run.requests} requests failed; they count as SLO misses: "
            f"{most_frequent(run.error_kinds)}."
        )
    if run.unanswered:
        cautions.append(f"Caution: {name}: INVALID: no request was answered; its numbers say nothing of the service.")
    elif not run.valid:
        cautions.append(
            f"Caution: {name}: INVALID, the client was the limit: {run.invalid_because} (p99 "
            f"{run.dispatch_lag_ms.p99 or 0:.0f} ms); the lateness is in their latencies. The sender lacks CPU."
        )
    elif run.late_starts:
        cautions.append(
            f"Caution: {name}: the client was busy: {run.late_starts} requests left more than {LATE_MS:g} ms late; "
            "this is in the latencies."
        )
    if run.replicas_fewest is not None and run.replicas_fewest < (run.replicas_most or 0):
        cautions.append(
            f"Caution: {name}: {run.replicas_fewest} to {run.replicas_most} replicas answered during the run."
        )
    if (run.path_saturated_share or 0) >= OFTEN:
        cautions.append(
            f"Caution: {name}: the HTTP frontend was the limit in {_percent(run.path_saturated_share or 0)} of the samples, by the "
            "service's own status. Precision changes little of such latencies."
        )
    if run.policy not in NAMES and run.switches is not None:
        cautions.append(
            f"Caution: {name}: the server has a controller, which chose the precision; --policies fp16,fp8,adaptive directs it."
        )
    if (kept := run.exact_answer_share_of_pinned) is not None and kept < 1.0:
        cautions.append(f"Caution: {name}: only {_percent(kept)} of the answers that must be exact were exact.")
    if run.requests < FEW_REQUESTS:
        cautions.append(f"Caution: {name}: only {run.requests} requests; p99 and small differences mean little.")
    wrong = {"fp16": run.fp16_token_share is not None and run.fp16_token_share < 1.0,
             "fp8": run.fp16_token_share is not None and run.fp16_token_share > 0.0}  # fmt: skip
    if wrong.get(run.policy) and run.fp16_token_share is not None:
        cautions.append(f"Caution: {name}: {_percent(run.fp16_token_share)} of the tokens ran in FP16.")
    return cautions
