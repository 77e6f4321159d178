"""The timelines of the control room: what one status, and the one before it, say of the cluster. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

Totals = tuple[int, ...]
# Of a replica's status; they only grow.
TOTALS = (
    *("answers_exact", "answers_weights_exact", "answers_fast", "answers_mixed", "tokens_fp16", "tokens_fp8"),
    *("slo_evaluated", "within_slo"),
)


class StatusSample(NamedTuple):
    """The cluster at one time. What is not known is None."""

    wall_s: float  # since 1970
    span_s: float | None  # that the counts below cover; None: they cover nothing
    arrivals_per_s: float | None  # requests
    waiting: int  # requests in the engines' queues
    running: int
    ttft_p90_ms: float | None  # of the replica that is slowest
    tpot_p90_ms: float | None
    answers_exact: int  # since the sample before, as all below
    answers_weights_exact: int
    answers_fast: int
    answers_mixed: int
    tokens_fp16: int  # computed
    tokens_fp8: int
    slo_evaluated: int
    within_slo: int


class StatusHistory:
    """The samples of the last while.

    Args:
        kept: how many.
    """

    def __init__(self, kept: int) -> None:
        self._samples: deque[StatusSample] = deque(maxlen=kept)
        self._totals: dict[str, Totals] = {}
        self._last_s: float | None = None

    def add(self, wall_s: float, status: Mapping[str, Any]) -> StatusSample:
        """Add what a status says (controller.audit.StatusReport as JSON), and return it."""
        replicas = status["replicas"]
        totals: dict[str, Totals] = {each["id"]: tuple(each.get(name) or 0 for name in TOTALS) for each in replicas}
        grown = [0] * len(TOTALS)
        for name, now in totals.items():
            # A replica that is new here, or whose engine has restarted: its totals are no difference.
            before = self._totals.get(name)
            if before is not None and all(b <= n for b, n in zip(before, now, strict=True)):
                grown = [g + n - b for g, b, n in zip(grown, before, now, strict=True)]
        sample = StatusSample(
            round(wall_s, 3),
            None if self._last_s is None else round(wall_s - self._last_s, 3),
            _round(_sum(each["arrivals_per_s"] for each in replicas)),
            sum(each["waiting"] for each in replicas),
            sum(each["running"] for each in replicas),
            _round(_largest(each["ttft_p90_ms"] for each in replicas)),
            _round(_largest(each["tpot_p90_ms"] for each in replicas)),
            *grown,
        )
        self._totals, self._last_s = totals, wall_s
        self._samples.append(sample)
        return sample

    def gap(self) -> None:
        """There was no status: the next sample's counts cover nothing."""
        self._last_s = None
        self._totals = {}

    def since(self, wall_s: float) -> list[StatusSample]:
        """Return the samples that are younger, oldest first."""
        return [each for each in self._samples if each.wall_s > wall_s]


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _sum(values: Any) -> float | None:
    known = _known(values)
    return sum(known) if known else None


def _largest(values: Any) -> float | None:
    return max(_known(values), default=None)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
