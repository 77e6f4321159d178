"""What the controller says about itself: decision log and status. Frozen pydantic models; times in seconds. Pure."""

import enum
from typing import Literal

from pydantic import Field

from controller.messages import Count, LatencyWindow, Milliseconds, ReplicaState, Seconds, StandingOrder
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel

# 4: slo_evaluated; 5: no scopes, no loads; 6: no advisory mode.
SCHEMA_VERSION = 6


class Rung(enum.StrEnum):
    """How far the controller has gone against an overload; each rung includes the ones before it."""

    NONE = "none"
    DEGRADE = "degrade"  # FP8
    SHED = "shed"  # and lower admission limits
    SCALE = "scale"  # and more replicas asked for


class DecisionOutcome(enum.StrEnum):
    """What became of a decision."""

    APPLIED = "applied"  # the directive changed
    HELD = "held"  # a guard held back what the policy wanted; written when proposal or reason change
    RELEASED = "released"  # nothing is held back any more, and nothing changed
    STATED = "stated"  # something new, and the directive stays: FP8 is not enough, replicas wanted
    RENUMBERED = "renumbered"  # the same directive under a higher epoch
    RELOADED = "reloaded"  # another configuration


class DecisionRecord(FrozenModel):
    """One decision: a line of the decision log."""

    kind: Literal["decision"] = "decision"
    schema_version: int = SCHEMA_VERSION
    decision_id: Count  # grows by one, from 1 at the start of the controller
    now_s: float  # the loop's clock
    wall_s: float | None = None  # seconds since 1970, stamped by the driver
    outcome: DecisionOutcome = DecisionOutcome.APPLIED
    from_mode: DirectiveMode
    to_mode: DirectiveMode
    wanted: DirectiveMode | None = None  # the policy's proposal for most replicas; None when it was not asked
    exceptions: dict[str, DirectiveMode] = Field(default_factory=dict)  # replicas that differ from to_mode
    rule: StepRule
    epoch: Count
    policy: str
    reason: str
    inputs: dict[str, float]  # what the decision rested on, units in the names
    rung: Rung = Rung.NONE
    admission_scale: float = 1.0
    desired_replicas: int | None = None


class ReplicaStatus(ReplicaState):
    """One replica, as the controller last heard of it. Epoch and directive are of its latest snapshot or acknowledgement."""

    id: str
    acked: bool  # reports the directive in force: its epoch, its mode and a running lease
    stale: bool  # silent for longer than the guards allow
    age_s: Seconds  # since the last snapshot, by the controller's clock
    directed: DirectiveMode  # what it should have in force
    ttft_p90_ms: Milliseconds | None  # None: no request in the window
    tpot_p90_ms: Milliseconds | None
    path_saturated: bool = False  # the path limits this replica, not its engine
    arrivals_per_s: float | None  # None: not known yet
    tokens_per_s: float | None


class StatusReport(FrozenModel):
    """The answer to GET /status."""

    schema_version: int = SCHEMA_VERSION
    mode: DirectiveMode  # in force, but for the replicas in exceptions
    exceptions: dict[str, DirectiveMode] = Field(default_factory=dict)
    epoch: Count
    reason: str  # of the directive in force
    last_reason: str  # of the latest step, which may have held a change back ("held_by_quorum")
    wanted: DirectiveMode | None = None  # what the policy wanted in the latest step; None: it was not asked
    policy: str
    slo_ttft_ms: Milliseconds | None = None  # objectives; None: not reported
    slo_tpot_ms: Milliseconds | None = None
    rung: Rung = Rung.NONE
    fp8_insufficient: bool = False  # FP8 alone does not hold the SLO
    admission_scale: float = 1.0
    desired_replicas: int | None = None  # stated to the autoscaler; None: as many as without the controller
    since_s: Seconds  # how long the mode has been in force
    rule: StepRule
    override: StandingOrder | None
    path_saturated: bool = False  # the path limits a replica, not its engine: another precision would not help it
    replicas: tuple[ReplicaStatus, ...]
    broadcasts: LatencyWindow = LatencyWindow()  # of the last hour: from a decision to the last acknowledgement
    decisions: dict[DecisionOutcome, dict[str, Count]] = Field(default_factory=dict)  # since the start, by reason
    config_loads: Count = 0  # reloads of the configuration since the start
    config_error: str | None = None  # of the last reload, when it was refused
    step_errors: Count = 0
