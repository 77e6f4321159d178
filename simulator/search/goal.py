"""What a search is after: numbers of a simulation that must hold, and the one that should be as large or small as can be.

``tight_slo>=0.99``, ``ttft_ms.p99<=500``, or against a policy on the same load: ``tight_slo>=static_fp8-0.01``. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.policies import POLICIES
from simulator.errors import SimulationError
from simulator.simulation_summary import SimulationSummary
from workload.percentiles import Percentiles

PERCENTILES = tuple(Percentiles.model_fields)
NAMES = tuple(
    name if field.annotation is not Percentiles else f"{name}.{part}"
    for name, field in SimulationSummary.model_fields.items()
    for part in (PERCENTILES if field.annotation is Percentiles else ("",))
    if name not in ("policy", "decisions", "load", "wall_s", "seed", "events")
)


def number(summary: SimulationSummary, name: str) -> float | None:
    """One of ``NAMES``; None when the run had nothing to measure."""
    outer, _, inner = name.partition(".")
    value = getattr(summary, outer)
    found: float | None = getattr(value, inner) if inner else value
    return found


@dataclass(frozen=True, slots=True)
class Constraint:
    """One number, and what it must not pass."""

    name: str
    at_least: bool  # else at most
    limit: float  # or what is added to the policy's number
    policy: str = ""

    def violation(self, summary: SimulationSummary, references: Mapping[str, SimulationSummary]) -> float:
        """How far the run misses it, in the number's unit; 0 or less where it holds.

        ``references`` are the runs at the same load by policy. A number that was not measured misses by infinity.
        """
        base = number(references[self.policy], self.name) if self.policy else 0.0
        value = number(summary, self.name)
        if value is None or base is None:
            return float("inf")
        return base + self.limit - value if self.at_least else value - base - self.limit

    def __str__(self) -> str:
        right = f"{self.policy}{self.limit:+g}" if self.policy else f"{self.limit:g}"
        return f"{self.name} {'>=' if self.at_least else '<='} {right}"


def parse(text: str) -> Constraint:
    """A constraint as it is written.

    Raises:
        SimulationError: saying what was expected.
    """
    found = re.fullmatch(r"\s*([a-z0-9_.]+)\s*(>=|<=)\s*([a-z][a-z0-9_]*)?\s*([+-]?\s*[0-9.eE-]+)?\s*", text)
    wrong = SimulationError(
        f"--constraint: expected NAME>=NUMBER, NAME<=NUMBER or NAME>=POLICY-NUMBER, such as tight_slo>=0.99, got {text!r}"
    )
    if found is None or not (found[3] or found[4]):
        raise wrong
    check_name("--constraint", found[1])
    if found[3] and found[3] not in POLICIES:
        raise SimulationError(f"--constraint: expected one of the policies {', '.join(POLICIES)}, got {found[3]!r}")
    try:
        limit = float(found[4].replace(" ", "")) if found[4] else 0.0
    except ValueError as error:
        raise wrong from error
    return Constraint(found[1], found[2] == ">=", limit, found[3] or "")


def check_name(option: str, name: str) -> None:
    """Raise SimulationError for a number that no run has."""
    if name not in NAMES:
        raise SimulationError(f"{option}: expected one of {', '.join(NAMES)}, got {name!r}")


@dataclass(frozen=True, slots=True)
class Score:
    """How good a set of runs is, one run per load."""

    violations: tuple[float, ...]  # of each constraint at each load
    value: float  # mean over the loads, larger is better

    @property
    def violation(self) -> float:
        """Sum of what is missed."""
        return sum(max(0.0, missed) for missed in self.violations)

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds at every load."""
        return self.violation <= 0

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: first what is missed, then the value."""
        return self.violation, -self.value


@dataclass(frozen=True, slots=True)
class Goal:
    """Constraints, and what is sought."""

    constraints: tuple[Constraint, ...]
    objective: str
    maximise: bool

    def score(self, runs: Sequence[SimulationSummary], references: Sequence[Mapping[str, SimulationSummary]]) -> Score:
        """Judge runs, one per load, with the reference runs at each of these loads."""
        violations = tuple(
            constraint.violation(run, known)
            for run, known in zip(runs, references, strict=True)
            for constraint in self.constraints
        )
        values = [number(run, self.objective) for run in runs]
        if any(value is None for value in values):
            return Score(violations, -float("inf"))
        mean = sum(value for value in values if value is not None) / len(values)
        return Score(violations, mean if self.maximise else -mean)
