"""What a policy sees and what it says. Pure: no clock, no I/O, no logging, no randomness.

A policy is a function ``decide(observation, state, config) -> (Decision, state)``. Rates are per second of the
controller's clock; everything else has its unit in its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from controller.fleet.view import Replicas
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import USUAL_SLO, Slo

NO_THRESHOLDS = StepRule()


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a policy may look at."""

    now_s: float  # the caller's clock: monotonic when live, virtual in a simulation
    replicas: Replicas  # sorted by replica_id
    current: DirectiveMode = DirectiveMode.FP16  # the directive in force, whoever put it there
    slo: Slo = USUAL_SLO
    exceptions: Mapping[str, DirectiveMode] = field(default_factory=dict)  # replicas with another one than current

    def mode_of(self, replica_id: str) -> DirectiveMode:
        """The directive of one replica."""
        return self.exceptions.get(replica_id, self.current)


@dataclass(frozen=True, slots=True)
class Decision:
    """The directive that a policy wants, and why."""

    mode: DirectiveMode
    reason: str  # machine readable: "waiting_tokens_over_enter"
    rule: StepRule = NO_THRESHOLDS  # used by the mode "auto" only
    inputs: tuple[tuple[str, float], ...] = ()  # what it rested on, for the decision log
    exceptions: Mapping[str, DirectiveMode] = field(default_factory=dict)  # replicas that are to do other than mode

    def mode_of(self, replica_id: str) -> DirectiveMode:
        """What one replica is to do."""
        return self.exceptions.get(replica_id, self.mode)


ConfigT = TypeVar("ConfigT", bound=FrozenModel)
StateT = TypeVar("StateT")


@dataclass(frozen=True)
class PolicySpec(Generic[ConfigT, StateT]):
    """A row of the policy table."""

    config: type[ConfigT]
    decide: Callable[[Observation, StateT, ConfigT], tuple[Decision, StateT]]
    start: Callable[[], StateT]  # what it remembers before anything has been observed
    adaptive: bool  # False: the answer depends on the configuration only, so no guard may hold it back
