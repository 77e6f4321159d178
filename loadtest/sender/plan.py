"""What crosses the boundary between the load test and the process that sends the requests. Pydantic models only.

The plan goes in as a JSON file, events come out as JSON lines on standard output, requests as JSON lines in a file.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from workload.frozen import FrozenModel
from workload.records import Policy
from workload.traces import Arrival

# How the error of a request begins: open at the end of the run, or for as long as one may take; whole, but not as long as asked.
CUT = "cut at the end of the run"
TOO_LONG = "no complete answer within"
WRONG_LENGTH = "expected another number of output tokens"


class PlannedRequest(FrozenModel):
    """One request to send."""

    at_s: Annotated[float, Field(ge=0)]
    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]
    precision: Literal["exact", "fast"] | None = None  # that it asks for
    blocks: tuple[int, ...] = ()  # its beginning: as of other prompts with the same, ``block_tokens`` each
    block_tokens: int = 0
    session: str | None = None  # the conversation that it is of, if it says so

    @classmethod
    def of(cls, arrival: Arrival, **more: Any) -> "PlannedRequest":
        """Return an arrival's request."""
        return cls.model_validate(asdict(arrival) | more)


class SendPlan(FrozenModel):
    """The requests of one run and their bounds.

    ``open``: each request is sent at its ``at_s``, whatever happened to the earlier ones. ``closed``: users send one request after
    another, in the order of the list, for ``duration_s``.
    """

    kind: Literal["open", "closed"]
    policy: Policy
    run: Annotated[int, Field(ge=0)]  # number of the run within the load test; part of every prompt
    url: str
    allow_host: str | None = None  # other than this machine, where the URL may go
    model: str
    requests: tuple[PlannedRequest, ...]
    duration_s: Annotated[float, Field(gt=0)]
    drain_s: Annotated[float, Field(ge=0)] = 0.0  # after the last arrival, then what is left is cut
    users: Annotated[int, Field(ge=1)] = 1
    request_timeout_s: Annotated[float, Field(gt=0)]
    seed: int
    records_path: Path

    @property
    def bound_s(self) -> float:
        """When the last request is cut, seconds after the start."""
        if self.kind == "closed":
            return self.duration_s
        return max(self.duration_s, self.requests[-1].at_s) + self.drain_s


class Event(FrozenModel):
    """A line of the sender's standard output."""

    event: Literal["start", "progress", "end"]
    elapsed_s: float = 0.0
    sent: int = 0
    in_flight: int = 0
    done: int = 0
    errors: int = 0
