"""How long an application is without a replica: what HAProxy tells a client of when to come again. Pure but for the file.

HAProxy's launcher runs at every change of the replicas, so it sees when the last one goes and when the next one comes. The length
of one absence, a replica's start with all that Ray Serve does around it, is what is expected of the next.

Times are seconds of the wall clock, which HAProxy's ``date`` is. Standard library only, and light.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

SHORTEST_S = 2  # also where it takes longer than expected: it may be over at any time
UNKNOWN_S = 10  # before the first absence has ended
LONGEST_S = 60  # openai's clients ignore more, and then come within seconds


@dataclass(frozen=True)
class Absence:
    """Of one application.

    Attributes:
        since_s: since when it has had no replica; None: it has one, or is not deployed.
        took_s: how long the last absence was; None: none has ended yet.
    """

    since_s: float | None = None
    took_s: float | None = None

    def seen(self, replicas: int | None, now_s: float) -> "Absence":
        """Return what is known after a look.

        Args:
            replicas: None: the application is not deployed.
        """
        if replicas:
            return Absence(None, self.took_s if self.since_s is None else now_s - self.since_s)
        if replicas is None and (self.since_s is None or self.took_s is not None):
            return Absence(None, self.took_s)  # it has been taken away: nobody starts a replica
        return Absence(now_s if self.since_s is None else self.since_s, self.took_s)

    @property
    def ends_s(self) -> float | None:
        """When there should be a replica; None: nobody knows."""
        return None if self.since_s is None or self.took_s is None else self.since_s + self.took_s


def look(path: Path, replicas: Mapping[str, int | None], now_s: float) -> dict[str, Absence]:
    """Note how many replicas the applications have now; return what is known of them all.

    Args:
        path: keeps it from one look to the next. A file that cannot be read is made anew.
        replicas: by path prefix.
    """
    try:
        known = {prefix: Absence(**fields) for prefix, fields in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # The service starts, unless it has replicas: then this node has joined it, and nothing is known of an absence.
        known = {prefix: Absence() if count else Absence(now_s) for prefix, count in replicas.items()}
    gone = {prefix: Absence(None, each.took_s) for prefix, each in known.items() if prefix not in replicas}
    known = gone | {prefix: known.get(prefix, Absence()).seen(count, now_s) for prefix, count in replicas.items()}
    note(path, json.dumps({prefix: asdict(absence) for prefix, absence in known.items()}))
    return known


def note(path: Path, text: str) -> None:
    """Write what the next look needs, whole or not at all. A disk that takes nothing ends no start: it is a hint."""
    with contextlib.suppress(OSError):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)
