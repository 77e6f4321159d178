"""What a policy sees and what it says. Pure: no clock, no I/O, no logging, no randomness.

A policy is a function ``decide(observation, state, config) -> (Decision, state)``. Rates are per second of the
controller's clock; everything else has its unit in its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field

from controller.schema import ReplicaSnapshot
from nestedfp.modes import DirectiveMode
from nestedfp.step_rule import StepRule


class Settings(BaseModel):
    """Base of all configuration models: immutable, no unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Slo(Settings):
    """The objectives that a request should meet. The defaults are the usual interactive ones."""

    ttft_ms: Annotated[float, Field(gt=0)] = 200.0  # time to first token
    tpot_ms: Annotated[float, Field(gt=0)] = 33.3  # time per output token


USUAL_SLO = Slo()
NO_THRESHOLDS = StepRule()


@dataclass(frozen=True, slots=True)
class Rates:
    """Differences of a replica's totals over ``span_s`` seconds, all per second."""

    span_s: float
    arrivals: float  # requests
    arrived_tokens: float  # their prompt tokens
    tokens_fp16: float  # prompt and completion tokens computed in FP16 steps
    tokens_fp8: float
    waiting_tokens: float  # growth of the queue; negative when it drains
    steps_fp16: float = 0.0
    steps_fp8: float = 0.0
    judged: float = 0.0  # finished requests held against the SLO
    within_slo: float = 0.0  # of them, those that met it, or would have but for what the path added

    @property
    def tokens(self) -> float:
        return self.tokens_fp16 + self.tokens_fp8


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the controller knows it: the last snapshot and what follows from the ones before."""

    snapshot: ReplicaSnapshot
    age_s: float = 0.0  # since the snapshot arrived
    rates: Rates | None = None  # None: too few snapshots, a restart, or implausible totals
    standing_tokens: int = 0  # the smallest waiting_tokens over the window: the queue that never drained
    fp16_step_age_s: float | None = None  # since FP16 steps were last counted; None: never
    path_age_s: float | None = None  # since the path, not the engine, last was the limit; None: never
    cold: bool = False  # computes its first requests: its steps are still slow

    @property
    def replica_id(self) -> str:
        return self.snapshot.replica_id

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits: latencies and step times say nothing about the present."""
        return self.snapshot.running == 0 and self.snapshot.waiting == 0


class Replicas(Protocol):
    """Views of replicas: a tuple of a few, a ``table.Table`` of many."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ReplicaView]: ...
    @overload
    def __getitem__(self, index: int, /) -> ReplicaView: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[ReplicaView, ...]: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a policy may look at."""

    now_s: float  # the caller's clock: monotonic when live, virtual in a simulation
    replicas: Replicas  # sorted by replica_id
    current: DirectiveMode = DirectiveMode.FP16  # the directive in force, whoever put it there
    slo: Slo = USUAL_SLO


@dataclass(frozen=True, slots=True)
class Decision:
    """The directive that a policy wants, and why."""

    mode: DirectiveMode
    reason: str  # machine readable: "queue_over_enter"
    rule: StepRule = NO_THRESHOLDS  # used by the mode "auto" only
    inputs: tuple[tuple[str, float], ...] = ()  # what it rested on, for the decision log
    fp16_load: float | None = None  # offered load / what the replicas could serve in FP16; None: not known
    fp8_load: float | None = None  # the same for FP8; above 1, degrading alone cannot hold the SLO


ConfigT = TypeVar("ConfigT", bound=Settings)
StateT = TypeVar("StateT")


@dataclass(frozen=True)
class PolicySpec(Generic[ConfigT, StateT]):
    """A row of the policy table."""

    config: type[ConfigT]
    decide: Callable[[Observation, StateT, ConfigT], tuple[Decision, StateT]]
    start: Callable[[ConfigT], tuple[Decision, StateT]]  # before anything has been observed
    adaptive: bool  # False: the answer depends on the configuration only, so no guard may hold it back
