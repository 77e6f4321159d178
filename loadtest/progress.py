"""One line that says what is going on: redrawn on a terminal, printed every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console

PLAIN_PERIOD_S = 5.0


class Progress:
    """Use as a context manager; ``say`` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("starting") if console.is_terminal else None
        self._last_s = -PLAIN_PERIOD_S

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show the present state; replaces what was said before."""
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._last_s >= PLAIN_PERIOD_S:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._last_s = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
