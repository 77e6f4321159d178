"""Every record that crosses a process boundary between replicas, controller and operator.

Frozen pydantic models: unknown keys, NaN and infinities are refused. All ``*_s`` times are durations in seconds unless
the name says which clock. Must not import ray, vllm or torch.
"""

from typing import Annotated, Literal

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
    judged: Count = 0  # finished requests whose latencies were held against the SLO
    within_slo: Count = 0  # those of them that met both objectives
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
    reason: str = ""  # "applied", "renewed", "older_epoch", "conflict"


class Fallback(Record):
    """What a replica does when it holds no lease: before the first directive, and after the controller fell silent.

    The default lets the engine choose for itself, so that a lost controller costs neither the SLO nor the quality.
    """

    mode: DirectiveMode = DirectiveMode.AUTO
    rule: StepRule = StepRule(fp8_wait_s=0.1)  # half of the usual interactive TTFT objective of 200 ms


class OverrideView(Record):
    """The operator's override, as the status shows it."""

    mode: DirectiveMode
    remaining_s: Seconds | None  # None: holds until it is handed back


class ReplicaStatus(Record):
    """One replica, as the controller last heard of it."""

    id: str
    mode: Mode
    epoch: Count
    directive: DirectiveMode
    acked: bool  # reports the directive in force: its epoch, its mode and a running lease
    ready: bool
    stale: bool  # silent for longer than the guards allow
    age_s: Seconds  # since the last snapshot, by the controller's clock
    lease_remaining_s: Seconds  # when the snapshot was taken
    running: Count
    waiting: Count
    waiting_tokens: Count
    oldest_wait_s: Seconds
    kv_usage: float
    tokens_fp16: Count
    tokens_fp8: Count
    switches: Count
    ttft_p90_ms: Milliseconds | None  # None: no request in the window
    tpot_p90_ms: Milliseconds | None
    arrivals_per_s: float | None  # None: not known yet
    tokens_per_s: float | None


class DecisionRecord(Record):
    """One change of the directive: a line of the decision log."""

    kind: Literal["decision"] = "decision"
    schema_version: int = SCHEMA_VERSION
    decision_id: Count  # grows by one, from 1 at the start of the controller
    now_s: float  # the loop's clock
    wall_s: float | None = None  # seconds since 1970, stamped by the driver
    from_mode: DirectiveMode
    to_mode: DirectiveMode
    rule: StepRule
    epoch: Count
    policy: str
    reason: str
    inputs: dict[str, float]  # what the decision rested on, units in the names


class BroadcastRecord(Record):
    """How a directive reached the replicas: a line of the decision log, written once all have acknowledged it."""

    kind: Literal["broadcast"] = "broadcast"
    schema_version: int = SCHEMA_VERSION
    wall_s: float | None = None
    epoch: Count
    mode: DirectiveMode
    replicas: Count
    last_ack_ms: Milliseconds  # from the decision to the last replica's acknowledgement


class StatusReport(Record):
    """The answer to GET /status."""

    mode: DirectiveMode  # in force cluster-wide
    epoch: Count
    reason: str  # of the directive in force
    last_reason: str  # of the latest step, which may have held a change back ("held_by_dwell")
    policy: str
    since_s: Seconds  # how long the mode has been in force
    rule: StepRule
    override: OverrideView | None
    replicas: tuple[ReplicaStatus, ...]
    broadcast: BroadcastRecord | None = None  # of the latest directive that every replica has acknowledged
    step_errors: Count = 0
