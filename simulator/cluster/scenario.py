"""The cluster of a simulation. A frozen model."""

from typing import Annotated

from pydantic import Field

from workload.frozen import FrozenModel

Seconds = Annotated[float, Field(ge=0)]


class Scenario(FrozenModel):
    """One simulated cluster."""

    replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] | None = None  # of the autoscaler; None: it may not add any
    cold_start_s: Seconds = 60.0  # until an added replica serves
    admission_limit: Annotated[int, Field(ge=1)] | None = None  # sequences inside a replica
    rest_s: Seconds = 0.0  # before the first request
    pinned_share: Annotated[float, Field(ge=0, le=1)] = 0.0  # of the requests demand exact FP16
    seed: Annotated[int, Field(ge=0)] = 0
