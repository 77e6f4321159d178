"""Service-level objectives of a request."""

from typing import Annotated

from pydantic import Field

from workload.frozen import FrozenModel


class Slo(FrozenModel):
    """The objectives that a request should meet. The defaults are the usual interactive ones."""

    ttft_ms: Annotated[float, Field(gt=0)] = 200.0  # time to first token
    tpot_ms: Annotated[float, Field(gt=0)] = 33.3  # time per output token


USUAL_SLO = Slo()
