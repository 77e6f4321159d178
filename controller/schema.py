"""Every record that crosses a process boundary between replicas, controller and operator.

Frozen pydantic models: unknown keys, NaN and infinities are refused. All ``*_s`` times are durations in seconds unless
the name says which clock. Must not import ray, vllm or torch.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.step_rule import StepRule

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Milliseconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """Base of all records: immutable, no unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LatencyWindow(Record):
    """Percentiles of a latency over the replica's sliding window; all zero when ``count`` is 0."""

    count: Count = 0
    p50_ms: Milliseconds = 0.0
    p90_ms: Milliseconds = 0.0
    p99_ms: Milliseconds = 0.0


class ReplicaSnapshot(Record):
    """State of one replica, sent about every 100 ms. Totals count from the start of the replica's present engine."""

    replica_id: Annotated[str, Field(min_length=1, max_length=256)]
    incarnation: str  # changes when the engine restarts, so that totals may fall back to zero
    seq: Count  # grows by one with each snapshot of an incarnation
    ready: bool  # False while warming up
    # precision
    mode: Mode  # of the last step that ran
    directive: DirectiveMode  # in force on this replica
    epoch: Count  # of the directive in force; 0 before the first one
    lease_remaining_s: Seconds
    switches: Count
    steps_fp16: Count
    steps_fp8: Count
    tokens_fp16: Count  # prompt and completion tokens computed in FP16 steps
    tokens_fp8: Count
    # queue
    waiting: Count  # requests not yet admitted by the engine's scheduler
    waiting_tokens: Count  # their prompt tokens that must still be computed
    oldest_wait_s: Seconds
    running: Count
    kv_usage: Annotated[float, Field(ge=0, le=1)]
    # totals
    arrivals: Count  # requests
    arrived_tokens: Count  # their prompt tokens
    finished: Count
    # latency
    ttft: LatencyWindow = LatencyWindow()
    tpot: LatencyWindow = LatencyWindow()
    step_ms_fp16: Milliseconds | None = None  # smoothed duration of a non-empty step; None before the first one
    step_ms_fp8: Milliseconds | None = None


class Directive(Record):
    """What the controller tells replicas. Epochs only grow; a replica ignores an older epoch than its own."""

    epoch: Annotated[int, Field(ge=1)]
    mode: DirectiveMode
    lease_s: Annotated[float, Field(gt=0)]
    reason: str
    rule: StepRule = StepRule()


class DirectiveAck(Record):
    """A replica's answer to a directive: what is in force now, whether or not the directive was accepted."""

    replica_id: str
    epoch: Count
    directive: DirectiveMode
    accepted: bool
