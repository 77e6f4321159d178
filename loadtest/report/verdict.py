"""What the runs show, in sentences, and what they do not show. Pure.

Two runs differ only when the difference exceeds what chance alone gives for that many requests (normal approximation,
95 %). The same arrivals are replayed, so this errs towards "not shown". One run per policy says nothing about the
variation between runs.
"""

from collections.abc import Sequence
from math import sqrt

from loadtest.report.error_kinds import most_frequent
from loadtest.report.run_summary import RunSummary

TARGET = 0.95  # attainment from which a run "meets the SLO"
FEW_REQUESTS = 100
OFTEN = 0.1  # of the samples
NAMES = {"fp16": "FP16 only", "fp8": "FP8 only", "adaptive": "adaptive"}


def verdict(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Sentences, the most important first; cautions last."""
    by_policy = {run.policy: run for run in runs}
    fp16, fp8, adaptive = by_policy.get("fp16"), by_policy.get("fp8"), by_policy.get("adaptive")
    lines: list[str] = []
    if fp16 and adaptive:
        lines.append(_compare(adaptive, fp16))
    if fp8 and adaptive:
        lines += [_exact(adaptive), _compare(adaptive, fp8)]
    if fp16 and fp8:
        lines.append(_compare(fp8, fp16))
    lines.extend(_alone(run) for run in runs if run.policy not in NAMES)
    return tuple(lines + [caution for run in runs for caution in _cautions(run)])


def _alone(run: RunSummary) -> str:
    return f"{run.policy}: {_percent(run.slo_attainment)} of requests within the SLO. The server ran as it is: no directives."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _compare(run: RunSummary, other: RunSummary) -> str:
    kept, others = run.slo_attainment, other.slo_attainment
    name, than = NAMES[run.policy], NAMES[other.policy]
    variance = sum(each.slo_attainment * (1 - each.slo_attainment) / each.requests for each in (run, other))
    if abs(kept - others) <= max(1.96 * sqrt(variance), 1 / min(run.requests, other.requests)):
        return f"Not shown: {name} and {than} do not differ ({_percent(kept)} and {_percent(others)} of requests within the SLO)."
    name = name[0].upper() + name[1:]
    if run.policy == "adaptive" and kept >= TARGET > others:
        return f"{name} meets the SLO ({_percent(kept)} of requests) where {than} misses it ({_percent(others)})."
    relation = "more" if kept > others else "fewer"
    return f"{name} keeps {relation} requests within the SLO than {than} ({_percent(kept)} against {_percent(others)})."


def _exact(adaptive: RunSummary) -> str:
    answers, tokens = (
        "an untold share" if share is None else _percent(share)
        for share in (adaptive.exact_answer_share, adaptive.fp16_token_share)
    )
    return f"Adaptive gave {answers} of its answers exactly, and ran {tokens} of its tokens in FP16."


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
    if run.replicas_fewest is not None and run.replicas_fewest < (run.replicas_most or 0):
        cautions.append(
            f"Caution: {name}: {run.replicas_fewest} to {run.replicas_most} replicas answered during the run."
        )
    if (run.path_saturated_share or 0) >= OFTEN:
        cautions.append(
            f"Caution: {name}: the HTTP frontend was the limit in {_percent(run.path_saturated_share or 0)} of the samples, by the "
            "service's own status. Precision changes little of such latencies."
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
