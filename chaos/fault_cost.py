"""What a fault cost, from what was seen while it lasted: requests, the service's own status, its processes. Pure.

All times are seconds of ``time.monotonic``.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from chaos.watch import ProcessLook, StatusLook
from loadtest.report.error_kinds import error_kinds, most_frequent
from loadtest.sender.plan import CUT, TOO_LONG, WRONG_LENGTH
from loadtest.sender.sse import UNFINISHED
from workload.records import RequestRecord

ClientOutcome = Literal["ok", "refused", "failed", "hung", "lost"]
REFUSED_STATUS = 429


@dataclass(frozen=True, slots=True)
class Injection:
    """What was done to the service.

    Attributes:
        began_s: when the fault began.
        released_s: when its cause ended by our hand, from which on the recovery counts: the same as ``began_s`` for what the
            service itself has to clear.
    """

    began_s: float
    released_s: float


@dataclass(frozen=True, slots=True)
class FaultResult:
    """A line of the report.

    Attributes:
        recover_s: from the fault's end to the last trouble's; None: it did not recover within the limit.
        in_flight: requests under way when the fault began.
        failed: requests that ended with an error, or without an answer that can be taken for whole.
        hung: requests that ended by the client's patience.
        lost: requests that ended as if all were well, with a part of the answer.
        notes: the errors, and how many were refused.
    """

    fault: str
    recover_s: float | None
    in_flight: int
    failed: int
    hung: int
    lost: int
    notes: str

    @property
    def is_good(self) -> bool:
        """Whether everything recovered, and no request hung or was lost."""
        return self.recover_s is not None and not self.hung and not self.lost


def outcome(record: RequestRecord) -> ClientOutcome:
    """Return how a request ended."""
    if record.error is None:
        return "ok"
    if record.error.startswith((CUT, TOO_LONG)):
        return "hung"
    if record.error.startswith((UNFINISHED, WRONG_LENGTH)):  # a whole HTTP answer, and no error in it
        return "lost"
    return "refused" if record.status == REFUSED_STATUS else "failed"


def ended_s(record: RequestRecord) -> float:
    """Return when a request ended."""
    return record.intended_s + (record.latency_ms or 0.0) / 1e3


def recovered_after_s(
    since_s: float,
    replicas: int,
    statuses: Sequence[StatusLook],
    processes: Sequence[ProcessLook],
    failed: Collection[RequestRecord],
) -> float | None:
    """Return the time from ``since_s`` until everything was well for good; None: it was not, to the last look.

    Args:
        processes: the first look is how it was before the fault.
        failed: requests that failed; those that had begun before ``since_s`` say nothing of how long it lasted.
    """
    trouble = [look.at_s for look in statuses if look.at_s >= since_s and not look.sound(replicas)]
    trouble += [look.at_s for look in processes if look.at_s >= since_s and not look.whole(processes[0])]
    trouble += [record.intended_s for record in failed if record.intended_s >= since_s]
    if not trouble:
        return 0.0
    well = (look.at_s for look in statuses if look.at_s > max(trouble) and look.sound(replicas))
    first = min(well, default=None)
    return None if first is None else first - since_s


def result(
    fault: str,
    injection: Injection,
    replicas: int,
    records: Sequence[RequestRecord],
    statuses: Sequence[StatusLook],
    processes: Sequence[ProcessLook],
) -> FaultResult:
    """Sum up a fault.

    Args:
        replicas: that must be ready.
        statuses, processes: looks in the order of time; the first at the processes came before the fault.
    """
    by_outcome: dict[ClientOutcome, list[RequestRecord]] = {
        kind: [record for record in records if outcome(record) == kind] for kind in get_args(ClientOutcome)
    }
    failed = by_outcome["failed"]
    kinds = error_kinds(record.error for record in failed if record.error is not None)
    later = sum(record.intended_s >= injection.began_s for record in failed)
    recovered_s = recovered_after_s(injection.released_s, replicas, statuses, processes, failed)
    said = [f"{len(records)} requests"]
    if failed:
        said.append(f"{most_frequent(kinds)}; {later} begun after the fault")
    if by_outcome["refused"]:
        said.append(f"{len(by_outcome['refused'])} refused with 429")
    return FaultResult(
        fault,
        None if recovered_s is None else round(recovered_s, 2),
        in_flight=sum(record.intended_s < injection.began_s <= ended_s(record) for record in records),
        failed=len(failed),
        hung=len(by_outcome["hung"]),
        lost=len(by_outcome["lost"]),
        notes="; ".join(said),
    )
