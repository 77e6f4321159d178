"""Says how often a log may repeat itself: what fails ten times a second would otherwise be written ten times a second."""

import time

MOST_KEPT = 100  # messages may hold numbers that differ each time


class Quiet:
    """Remembers what has been said lately."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def may_say(self, what: str, every_s: float) -> bool:
        """Whether it is to be said now; then it is not for so many seconds."""
        now_s = time.monotonic()
        if now_s < self._until_s.get(what, 0.0):
            return False
        if len(self._until_s) > MOST_KEPT:
            self._until_s.clear()
        self._until_s[what] = now_s + every_s
        return True
