"""Lines that say what is going on."""

import time
from typing import TextIO

PERIOD_S = 5.0


class Progress:
    """``say`` may be called as often as one likes; it prints every few seconds."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file, self._last_s = file, -PERIOD_S

    def say(self, text: str) -> None:
        """Print the present state, unless something was printed just now."""
        if time.monotonic() - self._last_s >= PERIOD_S:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line."""
        self._last_s = time.monotonic()
        print(text, file=self._file, flush=True)
