"""The way between controller and replicas: every message is delayed, so that messages overtake each other. Seeded."""

from math import log

import numpy as np

BLOCK = 4096  # random numbers drawn at a time
DELAY_S = 1e-3  # median, of calls between processes of one cluster
SPREAD = 2.0  # 84th percentile of the delay over its median


class Network:
    """Draws the delay of each message, log-normal."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([0x4E37, seed])
        self._delays_s: list[float] = []

    def delay_s(self) -> float:
        """Seconds until the next message arrives."""
        if not self._delays_s:
            self._delays_s = (DELAY_S * np.exp(log(SPREAD) * self._rng.standard_normal(BLOCK))).tolist()
        return self._delays_s.pop()
