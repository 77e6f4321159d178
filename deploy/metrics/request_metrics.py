"""Requests by what became of them, and their latencies from the arrival over HTTP.

One call when a request leaves, and one when it ended by itself: nothing here runs for a token.
"""

import enum
from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from nestedfp.answers import Answer, answer_of
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts, total, usage_of
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TPOT_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 5.0)


class RequestOutcome(enum.StrEnum):
    """What became of a request."""

    OK = "ok"  # answered to its end
    INVALID = "invalid"  # 4xx but for those below
    DENIED = "denied"  # 401, 403
    REFUSED = "refused"  # 429: no room, or a quota is used up; 503: not before its queue deadline
    ELSEWHERE = "elsewhere"  # offered to another replica, which counts it as well
    FAILED = "failed"  # 5xx, or an error inside a stream
    LEFT = "left"  # the client went away


class Answered(NamedTuple):
    """What a request was answered with."""

    precision: Answer
    asked: AskedPrecision
    key: str = ""  # name of its key's holder; empty: no keys are configured


def answered(sequences: Mapping[str, TokenCounts], asked: AskedPrecision, key: str | None) -> Answered | None:
    """Return what a request that asked so was answered with, from the counts of its sequences; None: it has none."""
    if not sequences:
        return None
    return Answered(answer_of(usage_of(total(sequences.values()))), asked, key or "")


class RequestMetrics:
    """Counters of one replica's requests."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.answers: Counts[Answer] = Counts()
        self._answers, self.within_slo = (
            Counter(name, text, Answered._fields, registry=registry)
            for name, text in (
                ("nestedfp_answers", "Answers by their class, by what was asked for and by key"),
                ("nestedfp_answers_within_slo", "Of those, answers that met both objectives"),
            )
        )
        self.outcomes = Counter(
            "nestedfp_requests", "Requests that have left, by what became of them", ("outcome",), registry=registry
        )
        self.ttft = Histogram(
            "nestedfp_ttft_seconds",
            "From the arrival over HTTP to the first byte written, of requests that ended by themselves",
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self.tpot = Histogram(
            "nestedfp_tpot_seconds",
            "Mean time per output token after the first, of requests that ended by themselves",
            buckets=TPOT_BUCKETS_S,
            registry=registry,
        )
        # From the start: a rate over a series that begins with its first event misses that event.
        for precision in Answer:
            for asked in AskedPrecision:
                for family in (self._answers, self.within_slo):
                    family.labels(precision, asked, "")
        for outcome in RequestOutcome:
            self.outcomes.labels(outcome)

    def answered(self, answer: Answered) -> None:
        """A request has been answered."""
        self.answers[answer.precision] += 1
        self._answers.labels(*answer).inc()

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        families: Iterable[Metric] = self._registry.collect()
        return families
