"""The answer to GET /status: what is in force, why, and how each replica stands. Pure."""

from pydantic import Field

from controller.schema import (
    SCHEMA_VERSION,
    BroadcastRecord,
    Count,
    Milliseconds,
    PathStats,
    ProxyStats,
    Record,
    Rung,
    Scope,
    Seconds,
)
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.step_rule import StepRule


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
    stale: bool  # silent for longer than the guards allow, or its engine does not answer or make steps
    age_s: Seconds  # since the last snapshot, by the controller's clock
    fault: str | None = None  # why its latest snapshots are no evidence; None: they are
    directed: DirectiveMode  # what it should have in force
    overridden: bool = False  # the operator's word for this replica alone
    lease_remaining_s: Seconds  # when the snapshot was taken
    admission_scale: float = 1.0
    refused: Count = 0
    running: Count
    waiting: Count
    waiting_tokens: Count
    oldest_wait_s: Seconds
    blocked: Count = 0
    kv_usage: float
    tokens_fp16: Count
    tokens_fp8: Count
    fp16_only: bool = False
    fp8_pays_from_tokens: Count | None = None
    fp8_weight_share: float | None = None
    switches: Count
    ttft_p90_ms: Milliseconds | None  # None: no request in the window
    tpot_p90_ms: Milliseconds | None
    path: PathStats | None = None
    path_saturated: bool = False  # the path limits this replica, not its engine
    stats_age_s: Seconds = 0.0
    progress_age_s: Seconds | None = None
    arrivals_per_s: float | None  # None: not known yet
    tokens_per_s: float | None


class BroadcastStats(Record):
    """Times from decision to last acknowledgement over the latest broadcasts."""

    count: Count = 0
    p50_ms: Milliseconds | None = None  # None: no broadcast yet
    p99_ms: Milliseconds | None = None


class StatusReport(Record):
    """The answer to GET /status."""

    schema_version: int = SCHEMA_VERSION
    mode: DirectiveMode  # in force, but for the replicas in exceptions
    exceptions: dict[str, DirectiveMode] = Field(default_factory=dict)
    epoch: Count
    reason: str  # of the directive in force
    last_reason: str  # of the latest step, which may have held a change back ("held_by_dwell")
    wanted: DirectiveMode | None = None  # what the policy wanted in the latest step; None: it was not asked
    policy: str
    scope: Scope = Scope.CLUSTER
    fp8_replicas: Count = 0  # directed to FP8, of those known
    advisory: bool = False
    advised_mode: DirectiveMode | None = None  # what would be in force; None unless advisory
    advised_exceptions: dict[str, DirectiveMode] = Field(default_factory=dict)
    rung: Rung = Rung.NONE
    fp8_insufficient: bool = False  # FP8 alone does not hold the SLO
    admission_scale: float = 1.0
    desired_replicas: int | None = None  # stated to the autoscaler; None: as many as without the controller
    fp16_load: float | None = None
    fp8_load: float | None = None
    since_s: Seconds  # how long the mode has been in force
    rule: StepRule
    override: OverrideView | None
    replica_overrides: dict[str, OverrideView] = Field(default_factory=dict)
    path_saturated: bool = False  # the path limits a replica, not its engine: another precision would not help it
    proxy: ProxyStats | None = None  # None: not told
    replicas: tuple[ReplicaStatus, ...]
    broadcast: BroadcastRecord | None = None  # of the latest directive that every replica has acknowledged
    broadcasts: BroadcastStats = BroadcastStats()
    config_loads: Count = 0  # reloads of the configuration since the start
    config_error: str | None = None  # of the last reload, when it was refused
    step_errors: Count = 0
