"""The timelines of the control room: what one status, and the one before it, say of the cluster. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Any

# Of a replica's status; they only grow.
TOTALS = (
    *("answers_exact", "answers_weights_exact", "answers_fast", "answers_mixed", "tokens_fp16", "tokens_fp8"),
    *("slo_evaluated", "within_slo"),
)


class StatusHistory:
    """The samples of the last while.

    Args:
        kept: how many.
    """

    def __init__(self, kept: int) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=kept)
        self._totals: dict[str, dict[str, int]] = {}
        self._last_s: float | None = None

    def add(self, wall_s: float, status: Mapping[str, Any]) -> dict[str, Any]:
        """Add what a status says (controller.audit.StatusReport as JSON), and return it. What is not known is None."""
        replicas = status["replicas"]
        totals = {each["id"]: {name: each.get(name) or 0 for name in TOTALS} for each in replicas}
        grown = dict.fromkeys(TOTALS, 0)
        for replica, now in totals.items():
            # A replica that is new here, or whose engine has restarted: its totals are no difference.
            before = self._totals.get(replica)
            if before is not None and all(before[name] <= now[name] for name in TOTALS):
                grown = {name: grown[name] + now[name] - before[name] for name in TOTALS}
        sample = {
            "wall_s": round(wall_s, 3),  # since 1970
            "span_s": None if self._last_s is None else round(wall_s - self._last_s, 3),  # that the totals cover
            "arrivals_per_s": _of(sum, replicas, "arrivals_per_s"),
            "waiting": sum(each["waiting"] for each in replicas),  # requests in the engines' queues
            "running": sum(each["running"] for each in replicas),
            "ttft_p90_ms": _of(max, replicas, "ttft_p90_ms"),  # of the replica that is slowest
            "tpot_p90_ms": _of(max, replicas, "tpot_p90_ms"),
            **grown,  # since the sample before
        }
        self._totals, self._last_s = totals, wall_s
        self._samples.append(sample)
        return sample

    def gap(self) -> None:
        """There was no status: the next sample's totals cover nothing."""
        self._last_s = None
        self._totals = {}

    def since(self, wall_s: float) -> list[dict[str, Any]]:
        """Return the samples that are younger, oldest first."""
        return [each for each in self._samples if each["wall_s"] > wall_s]


def _of(what: Any, replicas: Any, name: str) -> float | None:
    known = [each[name] for each in replicas if each[name] is not None]
    return round(what(known), 2) if known else None
