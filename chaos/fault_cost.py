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
        kind: of the process that was hit; "": none was.
        victims: its process ids.
        killed: the victims were ended, so that their end is no sign of the service's.
    """

    began_s: float
    released_s: float
    kind: str = ""
    victims: frozenset[int] = frozenset()
    killed: bool = False


@dataclass(frozen=True, slots=True)
class FaultResult:
    """A line of the report.

    Attributes:
        detect_s: from the fault to the first sign that the service knows of it; None: there was none.
        recover_s: from the fault's end to the last trouble's; None: it did not recover within the limit.
        in_flight: requests under way when the fault began.
        failed: requests that ended with an error, or without an answer that can be taken for whole.
        hung: requests that ended by the client's patience.
        lost: requests that ended as if all were well, with a part of the answer.
        notes: the errors, and how many were refused.
    """

    fault: str
    detect_s: float | None
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


def detected_after_s(
    injection: Injection, before: StatusLook, statuses: Sequence[StatusLook], processes: Sequence[ProcessLook]
) -> float | None:
    """Return the time from the fault to the service's first sign of it; None: no sign.

    Signs are a status that names fewer of the replicas that were ready before, a status answered with an error, a new process of
    the kind that was hit, and the end of one that was only stopped. A status that does not answer is no sign.
    """
    signs = [
        look.at_s for look in statuses if look.code >= 400 or (look.code == 200 and not before.ready <= look.ready)
    ]
    if injection.kind:
        alive = [(look.at_s, look.alive.get(injection.kind, frozenset())) for look in processes]
        known = injection.victims.union(*(pids for at_s, pids in alive if at_s < injection.began_s))
        ended = frozenset() if injection.killed else injection.victims
        signs += [at_s for at_s, pids in alive if pids - known or ended - pids]
    return min((at_s - injection.began_s for at_s in signs if at_s >= injection.began_s), default=None)


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
        statuses, processes: looks in the order of time, of which the first came before the fault.
    """
    by_outcome: dict[ClientOutcome, list[RequestRecord]] = {
        kind: [record for record in records if outcome(record) == kind] for kind in get_args(ClientOutcome)
    }
    failed = by_outcome["failed"]
    before = [look for look in statuses if look.at_s < injection.began_s][-1]
    kinds = error_kinds(record.error for record in failed if record.error is not None)
    later = sum(record.intended_s >= injection.began_s for record in failed)
    said = [f"{len(records)} requests"]
    if failed:
        said.append(f"{most_frequent(kinds)}; {later} begun after the fault")
    if by_outcome["refused"]:
        said.append(f"{len(by_outcome['refused'])} refused with 429")
    return FaultResult(
        fault,
        _rounded(detected_after_s(injection, before, statuses, processes)),
        _rounded(recovered_after_s(injection.released_s, replicas, statuses, processes, failed)),
        in_flight=sum(record.intended_s < injection.began_s <= ended_s(record) for record in records),
        failed=len(failed),
        hung=len(by_outcome["hung"]),
        lost=len(by_outcome["lost"]),
        notes="; ".join(said),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
