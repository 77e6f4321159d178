"""Records of a run -> its numbers. Pure; numpy only.

Conventions: percentiles are over the requests that have the value and interpolate linearly; attainment is over *all*
planned requests, so one that failed or was never sent misses the SLO; goodput divides by the length of the arrival
window, which is the same for every policy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from loadtest.report.error_kinds import error_kinds, most_frequent
from nestedfp.answers import Answer
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles, percentiles
from workload.records import Policy, RequestRecord, ServiceReplica, TimelineSample
from workload.slo import Slo

LATE_MS = 50.0  # lateness from which the client disturbs what it measures
DRAWS = 1000  # of the interval of a share
LATE_SHARE = 0.01  # of the requests; with more of them late the run says nothing about the service


class LoadFigures(FrozenModel):
    """What is told of one run under one load, here and in the summary of an experiment."""

    policy: str
    requests: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    slo_attainment: float
    slo_attainment_low: float  # 95 % interval: what as many requests drawn anew from these would keep
    slo_attainment_high: float
    slo_attainment_worst_10s: float | None = None  # of ten seconds from the start on, with ten requests or more
    goodput_rps: float
    output_tokens_per_s: float  # over the arrival window and the drain
    exact_answer_share: float | None = None  # of the answers that told their class
    exact_answer_share_of_pinned: float | None = None  # likewise, of the requests that asked for an exact answer
    fp16_token_share: float | None  # of the computed tokens, by the answers that tell
    cached_prompt_share: float | None = None  # of the prompts' tokens, read from the prefix cache, by the same answers
    switches: int | None  # all replicas together, from status
    k_changes_per_minute: float | None = None  # of the number of exact replicas, from status; None: not reported
    fp8_reasons: dict[str, int] | None = None  # FP8 steps, likewise, by what asked for them; None: not told
    late_starts: int  # requests that left more than 50 ms late
    valid: bool  # the client was on time, and at least one request was answered


class RunSummary(LoadFigures):
    """The numbers of one policy's run."""

    policy: Policy
    errors: int
    error_kinds: dict[str, int]
    rate_rps: float  # offered: planned requests over the arrival window
    duration_s: float  # of the arrival window
    drained_s: float  # end of the last answer
    slo: Slo
    itl_ms: Percentiles  # single gaps between chunks, all requests together
    dispatch_lag_ms: Percentiles
    max_waiting: int | None
    replicas_fewest: int | None = None  # whose engines answered at any time of the run; None: no status
    replicas_most: int | None = None
    invalid_because: str | None = None
    path_saturated_share: float | None = None  # of the samples: the HTTP frontend was the limit; None: no status

    @property
    def unanswered(self) -> bool:
        """Whether every request failed: then the latencies are of nothing."""
        return self.errors == self.requests


def met(record: RequestRecord, slo: Slo) -> bool:
    """Whether the request was answered within the SLO."""
    return record.error is None and slo.met(record.ttft_ms, record.tpot_ms)


def is_exact(record: RequestRecord) -> bool | None:
    """Whether an answer is exact; None: it does not tell, or there is none."""
    told = record.precision_tokens if record.error is None else None
    return None if told is None else told.answer is Answer.EXACT


def fp16_token_share(records: Iterable[RequestRecord]) -> float | None:
    """Share of the computed (not cached) tokens that ran in FP16, from what the responses disclose."""
    fp16 = fp8 = 0
    for record in records:
        if (tokens := record.precision_tokens) is not None:
            fp16 += tokens.prompt.fp16 + tokens.completion.fp16
            fp8 += tokens.prompt.fp8 + tokens.completion.fp8
    return fp16 / (fp16 + fp8) if fp16 + fp8 else None


def cached_prompt_share(records: Iterable[RequestRecord]) -> float | None:
    """Share of the prompts' tokens that came from the prefix cache, from what the responses disclose."""
    prompts = [record.precision_tokens.prompt for record in records if record.precision_tokens is not None]
    cached = sum(prompt.cached.fp16 + prompt.cached.fp8 for prompt in prompts)
    tokens = cached + sum(prompt.fp16 + prompt.fp8 for prompt in prompts)
    return cached / tokens if tokens else None


def exact_answer_share(records: Iterable[RequestRecord], asked: str | None = None) -> float | None:
    """Share of exact answers, of those that tell their class; ``asked``: of requests that asked so.

    A share of tokens does not say this: a load may leave nine tokens of ten exact, and hardly an answer.
    """
    told = [is_exact(record) for record in records if asked in (None, record.asked)]
    known = [exact for exact in told if exact is not None]
    return sum(known) / len(known) if known else None


def counter_growth(samples: Sequence[TimelineSample], count_of: Callable[[ServiceReplica], int]) -> int:
    """Growth of a counter over the run, summed over replicas; one that falls has started again at zero."""
    growth = 0
    for before, after in pairwise(samples):
        old = {replica.id: count_of(replica) for replica in before.status.replicas}
        for replica in after.status.replicas:
            count = count_of(replica)
            if replica.id in old:
                growth += count - old[replica.id] if count >= old[replica.id] else count
    return growth


def exact_replica_changes(samples: Sequence[TimelineSample]) -> int:
    """How often the number of replicas that the controller wants exact was another one than in the sample before."""
    exact = [sum(replica.directed == "fp16" for replica in sample.status.replicas) for sample in samples]
    return sum(before != after for before, after in pairwise(exact))


def fp8_reasons(samples: Sequence[TimelineSample]) -> dict[str, int] | None:
    """FP8 steps of the run by what asked for them, the most frequent first; None: nobody told, or not twice."""

    def growth(name: str) -> int:
        return counter_growth(samples, lambda replica: replica.fp8_reasons.get(name, 0))

    names = {name for sample in samples for replica in sample.status.replicas for name in replica.fp8_reasons}
    if not names or len(samples) < 2:
        return None
    grown = {name: count for name in sorted(names) if (count := growth(name))}
    return dict(sorted(grown.items(), key=lambda item: -item[1]))


def summarise(
    records: Sequence[RequestRecord], samples: Sequence[TimelineSample], slo: Slo, duration_s: float
) -> RunSummary:
    """The numbers of one run. ``samples`` must begin before the first request and end after the last."""
    assert records, "a run has at least one planned request"
    kept = np.array([met(record, slo) for record in records])
    good, count = int(kept.sum()), len(records)
    low, high = np.percentile(np.random.default_rng(0).binomial(count, good / count, DRAWS) / count, (2.5, 97.5))
    ends_s = [record.intended_s + record.latency_ms / 1e3 for record in records if record.latency_ms is not None]
    drained_s = max([duration_s, *ends_s])
    told = [sample.status for sample in samples]
    late = sum(r.dispatch_lag_ms is not None and r.dispatch_lag_ms > LATE_MS for r in records)
    kinds = error_kinds(record.error for record in records if record.error is not None)
    invalid = _invalid(late, kinds, count)
    return RunSummary.model_validate(
        {
            "policy": records[0].policy,
            "requests": count,
            "errors": sum(kinds.values()),
            "error_kinds": kinds,
            "rate_rps": count / duration_s,
            "duration_s": duration_s,
            "drained_s": drained_s,
            "slo": slo,
            "ttft_ms": percentiles(r.ttft_ms for r in records if r.ttft_ms is not None),
            "tpot_ms": percentiles(r.tpot_ms for r in records if r.tpot_ms is not None),
            "itl_ms": percentiles(after - before for r in records for before, after in pairwise(r.chunk_ms)),
            "dispatch_lag_ms": percentiles(r.dispatch_lag_ms for r in records if r.dispatch_lag_ms is not None),
            "slo_attainment": good / count,
            "slo_attainment_low": low,
            "slo_attainment_high": high,
            "slo_attainment_worst_10s": _worst(records, kept),
            "goodput_rps": good / duration_s,
            "output_tokens_per_s": sum(record.output_tokens for record in records) / drained_s,
            "exact_answer_share": exact_answer_share(records),
            "exact_answer_share_of_pinned": exact_answer_share(records, "exact"),
            "fp16_token_share": fp16_token_share(records),
            "cached_prompt_share": cached_prompt_share(records),
            "switches": counter_growth(samples, lambda replica: replica.switches) if len(told) > 1 else None,
            "k_changes_per_minute": exact_replica_changes(samples) * 60 / duration_s if len(told) > 1 else None,
            "fp8_reasons": fp8_reasons(samples),
            "max_waiting": max((status.waiting for status in told), default=None),
            "replicas_fewest": min((status.answering for status in told), default=None),
            "replicas_most": max((status.answering for status in told), default=None),
            "late_starts": late,
            "valid": invalid is None,
            "invalid_because": invalid,
            "path_saturated_share": sum(status.path_saturated for status in told) / len(told) if told else None,
        }
    )


def _worst(records: Sequence[RequestRecord], kept: np.ndarray) -> float | None:
    """Return the least share within the SLO of the arrivals of ten seconds, counted from the start."""
    windows = np.array([int(record.intended_s // 10) for record in records])
    shares = [kept[windows == window].mean() for window in set(windows) if (windows == window).sum() >= 10]
    return min(map(float, shares), default=None)


def _invalid(late: int, kinds: Mapping[str, int], count: int) -> str | None:
    """Why the run says nothing about the service."""
    if sum(kinds.values()) == count:  # before lateness: what was late got no answer either
        return f"none of {count} requests was answered: {most_frequent(kinds)}"
    if late > LATE_SHARE * count:
        return f"{late} of {count} requests left more than {LATE_MS:g} ms late"
    return None
