"""Whether memory and descriptors stay flat: samples of every process, and what they grew by."""

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http.http_procs import Process, role_of

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SAMPLES_AT_LEAST = 10
END_SHARE = 0.2  # of the samples on either end, whose medians are compared


@dataclass(frozen=True, slots=True)
class SoakSample:
    """All processes of a service at one time: resident memory and open descriptors, by role."""

    rss_bytes: Counter[str]
    descriptors: Counter[str]


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak showed.

    Attributes:
        minutes: that it took.
        rss_growth_pct: of the resident memory of all processes, from its beginning to its end.
        fd_growth: of the number of their open descriptors.
    """

    minutes: float
    rss_growth_pct: float
    fd_growth: int


def sample(processes: Iterable[Process]) -> SoakSample:
    """Look at these processes; those that have ended since they were listed are left out."""
    rss, descriptors = Counter[str](), Counter[str]()
    for process in processes:
        folder = Path("/proc") / str(process.pid)
        try:
            pages = int((folder / "statm").read_text().split()[1])
            count = len(os.listdir(folder / "fd"))
        except OSError:
            continue
        role = role_of(process.command)
        rss[role] += pages * PAGE_BYTES
        descriptors[role] += count
    return SoakSample(rss, descriptors)


def growth(samples: Sequence[SoakSample], minutes: float) -> tuple[SoakResult, str]:
    """Return what a soak showed, and where it grew most, in words.

    Raises:
        ValueError: too few samples.
    """
    if len(samples) < SAMPLES_AT_LEAST:
        raise ValueError(
            f"expected at least {SAMPLES_AT_LEAST} samples of a soak, got {len(samples)}: let it run longer"
        )
    ends = max(2, round(END_SHARE * len(samples)))
    first, last = samples[:ends], samples[-ends:]

    def median(part: Sequence[SoakSample], what: str, role: str | None) -> float:
        counters: list[Counter[str]] = [getattr(each, what) for each in part]
        return statistics.median(counter.total() if role is None else counter[role] for counter in counters)

    def grown(what: str, role: str | None = None) -> float:
        return median(last, what, role) - median(first, what, role)

    total = median(first, "rss_bytes", None)
    roles = {role for each in samples for role in each.rss_bytes}
    most = max(roles, key=lambda role: grown("rss_bytes", role))
    shown = f"{total / 2**20:.0f} MiB at first; most in {most}, {grown('rss_bytes', most) / 2**20:+.1f} MiB"
    grew = {role: round(grown("descriptors", role)) for role in sorted(roles)}
    if changed := ", ".join(f"{role} {count:+d}" for role, count in grew.items() if count):
        shown += f"; descriptors: {changed}"
    pct = 100 * grown("rss_bytes") / total
    return SoakResult(round(minutes, 2), round(pct, 2), round(grown("descriptors"))), shown
