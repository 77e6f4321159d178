"""Whether the way to the engine and back holds requests up, and not the engine. Pure.

Latencies are measured where clients see them: from a request's arrival over HTTP to bytes written. When the processes in
front of the engine are the limit they are long however fast its steps are, and another precision changes nothing. So:

* The path is the limit while its delays are large against the TTFT objective and the engine keeps up: its queue is short
  and its steps are within the TPOT objective. A long queue or long steps always count, whatever the path does.
* While the path is the limit, and for ``MEMORY_S`` after, the measured latencies and SLO violations of that replica are ignored.
* Otherwise they are discounted by what the path has added, but never below what the engine's own steps explain.
"""

from controller.fleet.view import Replicas, ReplicaView
from controller.messages import PathStats, ReplicaSnapshot
from nestedfp.modes import Mode
from workload.slo import Slo

REASON = "path_saturated"
MEMORY_S = 5.0  # the span of the replicas' latency windows
SLOW_WAIT = 0.25  # of the TTFT objective: a wait in front of the engine, or on the way back, that counts as slow
SLOW_LAG = 0.5  # the same for the lag of the event loop: it is the largest of a second, and one pause must not do
SHORT_QUEUE = 0.25  # of the TTFT objective: the engine's own queue is short
SHORT_STEPS = 0.85  # of the TPOT objective: its steps are within it


def path_saturated(view: ReplicaView, slo: Slo) -> bool:
    """Whether the path, and not the engine, limits this replica now. False where nothing is told of the path."""
    path = view.snapshot.path
    return path is not None and _slow(path, slo) and engine_keeps_up(view, slo)


def engine_keeps_up(view: ReplicaView, slo: Slo) -> bool:
    """Whether nothing waits long for the engine, and its steps are short."""
    short_queue = view.snapshot.oldest_wait_s * 1e3 <= SHORT_QUEUE * slo.ttft_ms
    return view.idle or (short_queue and engine_step_ms(view.snapshot) <= SHORT_STEPS * slo.tpot_ms)


def limits(view: ReplicaView) -> bool:
    """Whether the path is the limit of this replica, or was so lately that its latency windows still show it."""
    return view.path_age_s is not None and view.path_age_s <= MEMORY_S


def limited_count(replicas: Replicas) -> int:
    """How many replicas the path limits."""
    return sum([limits(view) for view in replicas])


def inputs(limited: int) -> tuple[tuple[str, float], ...]:
    """For the decision log."""
    return (("path_saturated_replicas", float(limited)),) if limited else ()


def engine_step_ms(snapshot: ReplicaSnapshot) -> float:
    """EWMA of the durations of steps in the present mode; 0 before the first."""
    return (snapshot.step_ms_fp8 if snapshot.mode is Mode.FP8 else snapshot.step_ms_fp16) or 0.0


def engine_ttft_ms(snapshot: ReplicaSnapshot, measured_ms: float) -> float:
    """A measured time to first token without what the path has added to it."""
    path = snapshot.path
    return measured_ms if path is None else max(0.0, measured_ms - path.wait_p90_ms - _way_back_ms(path))


def engine_tpot_ms(snapshot: ReplicaSnapshot, measured_ms: float) -> float:
    """A measured time between tokens without what the path has added to it."""
    path = snapshot.path
    if path is None:
        return measured_ms
    return max(min(measured_ms, engine_step_ms(snapshot)), measured_ms - _way_back_ms(path))


def _slow(path: PathStats, slo: Slo) -> bool:
    wait_ms = max(path.wait_p90_ms, path.delivery_p90_ms or 0.0)
    return wait_ms > SLOW_WAIT * slo.ttft_ms or path.loop_lag_ms > SLOW_LAG * slo.ttft_ms


def _way_back_ms(path: PathStats) -> float:
    return path.loop_lag_ms if path.delivery_p90_ms is None else path.delivery_p90_ms
