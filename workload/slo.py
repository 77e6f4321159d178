"""Service-level objectives of a request."""

from typing import Annotated

from pydantic import Field

from workload.frozen import FrozenModel


class Slo(FrozenModel):
    """The objectives that a request should meet. The defaults are the usual interactive ones."""

    ttft_ms: Annotated[float, Field(gt=0)] = 200.0  # time to first token
    tpot_ms: Annotated[float, Field(gt=0)] = 33.3  # time per output token

    def met(self, ttft_ms: float | None, tpot_ms: float | None) -> bool:
        """Whether an answer with these latencies keeps both; one without a first token misses, one token has no TPOT to miss."""
        return ttft_ms is not None and ttft_ms <= self.ttft_ms and (tpot_ms is None or tpot_ms <= self.tpot_ms)


USUAL_SLO = Slo()
