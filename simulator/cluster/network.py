"""The way between controller and replicas: messages are lost, doubled and delayed, and so overtake each other. Seeded.

Each message has a fate of its own: a list of delays, empty when it is lost. Delays are log-normal around a median.
"""

from math import log
from typing import Annotated

import numpy as np
from pydantic import Field

from workload.frozen import FrozenModel

BLOCK = 4096  # random numbers drawn at a time


class NetworkConfig(FrozenModel):
    """One way of a message. The defaults are those of calls between processes of one cluster."""

    delay_ms: Annotated[float, Field(ge=0)] = 1.0  # median
    spread: Annotated[float, Field(ge=1)] = 2.0  # 84th percentile of the delay over its median
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    duplication: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Network:
    """Draws the fate of each message."""

    def __init__(self, config: NetworkConfig, seed: int) -> None:
        self._config = config
        self._rng = np.random.default_rng([0x4E37, seed])
        self._sure = config.loss == 0 and config.duplication == 0
        self._delays_s: list[float] = []
        self._chances: list[float] = []

    def fate(self) -> tuple[float, ...]:
        """Delays in seconds of the copies that arrive."""
        if self._sure:
            return (self._delay_s(),)
        if not self._chances:
            self._chances = self._rng.random(BLOCK).tolist()
        chance = self._chances.pop()
        if chance < self._config.loss:
            return ()
        if chance < self._config.loss + (1 - self._config.loss) * self._config.duplication:
            return (self._delay_s(), self._delay_s())
        return (self._delay_s(),)

    def _delay_s(self) -> float:
        if not self._delays_s:
            factors = np.exp(log(self._config.spread) * self._rng.standard_normal(BLOCK))
            self._delays_s = (self._config.delay_ms * 1e-3 * factors).tolist()
        return self._delays_s.pop()
