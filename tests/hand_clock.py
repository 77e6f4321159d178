"""A clock that a test sets by hand."""


class HandClock:
    """Called, it tells its time in seconds; set ``now_s`` to let time pass."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
