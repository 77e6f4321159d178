"""Every record that crosses a process boundary between replicas, controller and operator.

Frozen pydantic models: unknown keys, NaN and infinities are refused. All ``*_s`` times are durations in seconds unless
the name says which clock. Must not import ray, vllm or torch.
"""

from typing import Annotated

from pydantic import Field

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Milliseconds = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
ReplicaId = Annotated[str, Field(min_length=1, max_length=256)]


class LatencyWindow(FrozenModel):
    """Percentiles of a latency over the replica's sliding window; all zero when ``count`` is 0."""

    count: Count = 0
    p50_ms: Milliseconds = 0.0
    p90_ms: Milliseconds = 0.0
    p99_ms: Milliseconds = 0.0


class PathStats(FrozenModel):
    """The way from a client's socket to the engine and back, in the replica's process that serves HTTP."""

    in_path: Count = 0  # requests accepted over HTTP that the engine does not have yet
    wait_p90_ms: Milliseconds = 0.0  # from arrival at our first process to the hand-over to the engine, sliding window
    delivery_p90_ms: Milliseconds | None = None  # from the engine's output to its bytes written; None: not measured
    loop_lag_ms: Milliseconds = 0.0  # largest lag of the event loop in the last second
    open_streams: Count = 0
    paused_streams: Count = 0  # of them, those whose clients do not read


class StandingOrder(FrozenModel):
    """The operator's override. Replicas keep it, and tell it to a controller that has started anew."""

    mode: DirectiveMode  # fp16 or fp8
    remaining_s: Seconds | None = None  # None: until it is handed back


class Room(FrozenModel):
    """Prompt tokens that an engine can take so that their first tokens come in time (nestedfp/steps/prompt_room.py)."""

    tokens: int  # below zero: as many are late already
    full_tokens: Count
    tokens_per_s: Annotated[float, Field(ge=0)]
    load_share: Annotated[float, Field(ge=0)] = 0.0
    pinned_share: Annotated[float, Field(ge=0)] = 0.0


class EngineStats(FrozenModel):
    """What the engine's scheduler says of itself (``nestedfp_stats``). Totals count from the start of the engine.

    The one place for a new statistic: snapshot and status have every field of it.
    """

    progress_age_s: Seconds | None = None  # how long the engine has had work and made no step; None: not reported
    # precision
    mode: Mode  # of the last step that ran
    directive: DirectiveMode  # in force on this replica
    epoch: Count  # of the directive in force; 0 before the first one
    switches: Count
    steps_fp16: Count
    steps_fp8: Count
    steps_mixed: Count = 0  # with exact and fast requests; in neither of the two above
    fp8_reasons: dict[str, Count] = Field(default_factory=dict)  # of them, by what asked for FP8 (nestedfp/steps)
    tokens_fp16: Count  # prompt and completion tokens computed in FP16 steps
    tokens_fp8: Count
    fp16_only: bool = False  # no layer has an FP8 mode: every step runs FP16, whatever the directive
    # Step size from which FP8 saved time at the start; None: not measured, or it never did.
    fp8_pays_from_tokens: Count | None = None
    fp8_weight_share: Annotated[float, Field(ge=0, le=1)] | None = None  # of the weights' bytes; None: not reported
    kv_cache: Mode = Mode.FP16  # precision of its entries; fp8: no answer is exact
    step_ms_fp16: Milliseconds | None = None  # EWMA of the durations of non-empty steps; None before the first one
    step_ms_fp8: Milliseconds | None = None
    step_s_fp16: Seconds = 0.0  # total that steps took
    step_s_fp8: Seconds = 0.0
    # Draft tokens that steps of a precision verified, and of them accepted.
    drafted_fp16: Count = 0
    drafted_fp8: Count = 0
    accepted_fp16: Count = 0
    accepted_fp8: Count = 0
    # What steps as long as the objectives allow compute in a second, prompts and answers together; None: not reported.
    exact_tokens_per_s: Annotated[float, Field(ge=0)] | None = None
    fast_tokens_per_s: Annotated[float, Field(ge=0)] | None = None
    room: Room | None = None  # None: not reported
    # queue
    waiting: Count  # requests not yet admitted by the engine's scheduler
    waiting_tokens: Count  # their prompt tokens that must still be computed
    oldest_wait_s: Seconds
    blocked: Count = 0  # requests that wait for a grammar or for KV entries from elsewhere, not for their turn
    running: Count
    kv_usage: Annotated[float, Field(ge=0, le=1)]
    # totals
    arrivals: Count  # requests
    arrived_tokens: Count  # their prompt tokens
    finished: Count


class ReplicaState(EngineStats):
    """The engine's statistics, and what its replica adds that the status shows as well."""

    ready: bool  # False while warming up, and once its engine has died or hangs
    fault: Annotated[str, Field(max_length=256)] | None = None  # why it can take no request, though it did
    stats_age_s: Seconds = 0.0  # of the engine's statistics, when the snapshot was taken
    lease_remaining_s: Seconds  # likewise
    admission_scale: Fraction = 1.0  # in force on this replica
    # What it holds over its admission limits as they are at scale 1; None: not reported.
    inside_share: Annotated[float, Field(ge=0)] | None = None
    refused: Count = 0  # requests that no replica took, each replica's part of them; they are not among the arrivals
    # totals of answered requests by the class of their answer (nestedfp/answers.py)
    answers_exact: Count = 0
    answers_weights_exact: Count = 0
    answers_fast: Count = 0
    answers_mixed: Count = 0
    # totals of finished requests since the engine's start
    slo_evaluated: Count = 0  # whose latencies were held against the SLO
    within_slo: Count = 0  # those of them that met both objectives
    path: PathStats | None = None  # None: not reported


class ReplicaSnapshot(ReplicaState):
    """State of one replica, sent about every 100 ms.

    Latencies are measured on the whole path: TTFT from the arrival of a request over HTTP to its first byte written, TPOT
    between bytes written.
    """

    replica_id: ReplicaId
    seq: Count  # grows by one with each snapshot
    ready_for_s: Seconds | None = None  # how long it has been ready; None: not reported
    rule: StepRule | None = None  # in force on this replica; None: not reported
    order: StandingOrder | None = None  # that this replica was last told of, less the time since; None: none
    desired_replicas: Count | None = None  # that it was last told of, with a lease or without; None: none
    # latency
    ttft: LatencyWindow = LatencyWindow()
    tpot: LatencyWindow = LatencyWindow()


class Fallback(FrozenModel):
    """What is in force where the policy cannot be asked."""

    mode: DirectiveMode = DirectiveMode.AUTO
    rule: StepRule | None = None  # None: the deadlines of the SLO, which an engine keeps on its own


class Terms(FrozenModel):
    """What comes with a directive besides, and raises no epoch: the next renewal brings it soon enough."""

    lease_s: Annotated[float, Field(gt=0)]  # how long a replica may act on a directive without hearing of it again
    slo: Slo | None = None  # what finished requests are held against; None: the replica's own
    fallback: Fallback | None = None  # without a lease from now on; None: what the replica started with
    # Replicas pass it on to the autoscaler; None: as many as without a controller.
    desired_replicas: Count | None = None
    order: StandingOrder | None = None  # the operator's
    replicas: Count | None = None  # ready ones that the controller knows; None: not reported


class Directive(Terms):
    """What the controller tells one replica. Epochs only grow; a replica ignores an older epoch than its own."""

    epoch: Annotated[int, Field(ge=1)]
    mode: DirectiveMode
    reason: str
    rule: StepRule = StepRule()
    admission_scale: Fraction = 1.0  # each replica multiplies its admission limit by this


class DirectiveAck(FrozenModel):
    """A replica's answer to a directive: what is in force now, that directive or a newer one."""

    replica_id: str
    epoch: Count
    directive: DirectiveMode
