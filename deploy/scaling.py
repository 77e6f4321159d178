"""The policy of Serve's autoscaler: as many replicas as the controller wants.

Each replica passes on the number that came with its directive, through Serve's autoscaling statistics, so that the
autoscaler asks nobody and waits for nothing. It runs inside Serve's own controller: standard library only.
"""

from typing import Any

DESIRED_KEY = "desired_replicas"  # in the autoscaling statistics; 0: the controller wants no more than the usual


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Return how many replicas there should be, given Serve's ``AutoscalingContext``, and no state."""
    series = (context.raw_metrics or {}).get(DESIRED_KEY) or {}
    said = [int(values[-1].value) for values in series.values() if len(values)]
    if not said:  # no replica has spoken yet: missing data argues against a change
        return context.target_num_replicas, {}
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    # Replicas hear of a change a moment apart; the largest number loses no replica too soon.
    return max(least, min(most, max(said))), {}
