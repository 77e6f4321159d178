"""Where the requests of a run stood, client, path or engine, and which of the three was the limit. Pure.

The client's counts come from the requests' own times and are exact. The service's come from its status, whose replicas report
about every 100 ms, so that a few requests that have just arrived or just ended may be counted in the wrong place; shares and
means over a run are what to look at.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from workload.frozen import FrozenModel
from workload.records import RequestRecord, ServiceStatus, Standing, TimelineSample

Limit = Literal["engine", "path", "client", "none", "unknown"]

LATE_MS = 50.0  # lateness from which the client disturbs what it measures
BUSY_SHARE = 0.9  # of one core: the sender has no more
FEW = 4  # requests that the age of a status may put in the wrong place
OFTEN = 0.1  # of the samples
PLACES = ("late", "connecting", "in_path", "elsewhere", "waiting", "running")


class PlaceStats(FrozenModel):
    """Requests in one place: mean and largest number over the samples of the arrival window."""

    mean: float
    max: int


def stand(records: Sequence[RequestRecord], samples: Sequence[TimelineSample]) -> tuple[TimelineSample, ...]:
    """The samples with ``standing`` filled in. Records times are seconds of the same clock as ``at_s``."""
    never = np.inf
    due = np.array([r.intended_s for r in records])
    sent = np.array([never if r.sent_s is None else r.sent_s for r in records])
    connected = np.array([never if r.connected_s is None else r.connected_s for r in records])
    first = np.array([never if r.ttft_ms is None else r.intended_s + r.ttft_ms / 1e3 for r in records])
    ended = np.array([never if r.latency_ms is None else r.intended_s + r.latency_ms / 1e3 for r in records])

    def at(sample: TimelineSample) -> TimelineSample:
        now = sample.at_s
        here = (sent <= now) & (now < ended)
        unanswered = int((here & (connected <= now) & (now < first)).sum())
        streaming = int((here & (first <= now)).sum())
        client = {
            "late": int(((due <= now) & (now < sent)).sum()),
            "connecting": int((here & (now < connected)).sum()),
            "unanswered": unanswered,
            "streaming": streaming,
        }
        service = _told(sample.status, unanswered + streaming)
        return sample.model_copy(update={"standing": Standing.model_validate(client | service)})

    return tuple(at(sample) for sample in samples)


def _told(status: ServiceStatus | None, open_requests: int) -> dict[str, int | None]:
    if status is None:
        return dict.fromkeys(("in_path", "waiting", "running", "elsewhere"))
    known = (status.in_path or 0) + status.waiting + status.running
    return {
        "in_path": status.in_path,
        "waiting": status.waiting,
        "running": status.running,
        "elsewhere": max(open_requests - known, 0),
    }


def sample_limit(sample: TimelineSample) -> Limit:
    """What limited the service at one moment.

    The client, when its process is busy or late; the path, when the service says so or more requests stand beside the
    engine than in it; the engine, when requests wait in its queue.
    """
    if sample.sender is not None and (sample.sender.cpu_share >= BUSY_SHARE or sample.sender.lag_ms > LATE_MS):
        return "client"
    if sample.status is None or sample.standing is None:
        return "unknown"
    beside, inside = sample.standing.beside_engine or 0, sample.status.waiting + sample.status.running
    if sample.status.path_saturated or (beside >= FEW and beside > inside):
        return "path"
    return "engine" if sample.status.waiting else "none"


def limited_by(samples: Iterable[TimelineSample]) -> Limit:
    """What limited a run: the kind seen most often, if in a tenth of the samples; the client goes before all."""
    found = [sample_limit(sample) for sample in samples]
    if not found:
        return "unknown"
    share = {kind: found.count(kind) / len(found) for kind in ("client", "path", "engine", "unknown")}
    if share["client"] >= OFTEN:
        return "client"
    if share["unknown"] > 0.5:
        return "unknown"
    kind: Limit = "path" if share["path"] >= share["engine"] else "engine"
    return kind if share[kind] >= OFTEN else "none"


def places(samples: Sequence[TimelineSample]) -> dict[str, PlaceStats]:
    """Mean and largest number of requests in every place that is known."""
    result = {}
    for name in PLACES:
        counts = [getattr(s.standing, name) for s in samples if s.standing is not None]
        known = [count for count in counts if count is not None]
        if known:
            result[name] = PlaceStats(mean=sum(known) / len(known), max=max(known))
    return result
