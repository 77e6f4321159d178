"""Sums over sliding windows from a ring of time buckets: bounded memory, any window up to the ring's length. Pure."""

from dataclasses import dataclass, replace

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Ring:
    """Two counters in buckets of equal length.

    Attributes:
        bucket_s: length of a bucket in seconds; windows are rounded to whole buckets, the present one on top.
        count: finished buckets kept.
    """

    bucket_s: float
    count: int
    began_s: float | None = None  # of the first sample
    last_s: float = 0.0  # of the latest sample
    index: int = 0  # of the present bucket, counted from the clock's zero
    present: Pair = (0.0, 0.0)
    past: tuple[float, ...] = ()  # of the first counter, oldest first
    past_second: tuple[float, ...] = ()

    def add(self, now_s: float, first: float, second: float) -> "Ring":
        """Count; time that runs backwards counts as standing still."""
        now_s = max(now_s, self.last_s) if self.began_s is not None else now_s
        index = int(now_s // self.bucket_s)
        if self.began_s is None:
            return replace(self, began_s=now_s, last_s=now_s, index=index, present=(first, second))
        if index == self.index:
            present = (self.present[0] + first, self.present[1] + second)
            # replace() would take longer than the rest
            return Ring(self.bucket_s, self.count, self.began_s, now_s, index, present, self.past, self.past_second)
        empty = (0.0,) * min(index - self.index - 1, self.count)
        return replace(
            self,
            last_s=now_s,
            index=index,
            present=(first, second),
            past=(*self.past, self.present[0], *empty)[-self.count :],
            past_second=(*self.past_second, self.present[1], *empty)[-self.count :],
        )

    def over(self, span_s: float) -> Pair:
        """Sums over the last ``span_s`` seconds, rounded up to a bucket."""
        first = max(0, len(self.past) - round(span_s / self.bucket_s))
        return self.present[0] + sum(self.past[first:]), self.present[1] + sum(self.past_second[first:])

    @property
    def span_s(self) -> float:
        """Seconds that the sums of the whole ring can cover."""
        if self.began_s is None:
            return 0.0
        return min(self.last_s - self.began_s, (self.count + 1) * self.bucket_s)
