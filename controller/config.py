"""The controller's section of the service configuration: one frozen model, unknown keys refused.

``explain`` turns pydantic's report into one line per fault that names the key.
"""

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from controller.policies import POLICIES, PolicyConfig
from controller.policies.base import Observation
from controller.policies.deadlines import Deadlines
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import USUAL_SHARES
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo

REPORT_PERIOD_S = 0.1  # pause between a replica's snapshots
STEP_PERIOD_S = 0.05  # longest pause between two decisions
RENEW_S = 0.5  # after which a replica's call is answered though nothing is new


class LadderConfig(FrozenModel):
    """Off by default: without ``shed`` and ``scale`` the controller only says when FP8 cannot hold the SLO."""

    shed: bool = False  # may lower admission limits
    scale: bool = False  # may state a number of replicas
    shed_after_s: Annotated[float, Field(ge=0)] = 10.0
    shed_every_s: Annotated[float, Field(gt=0)] = 2.0  # pause between two steps down, and up while nobody is refused
    # Pause between two steps down while the queue drains, or is gone.
    shed_settle_s: Annotated[float, Field(gt=0)] = 10.0
    shed_factor: Annotated[float, Field(gt=0, lt=1)] = 0.8  # of the admission limit that a step down leaves
    min_admission_scale: Annotated[float, Field(gt=0, le=1)] = 0.05
    recover_after_s: Annotated[float, Field(gt=0)] = 15.0  # calm before each step up
    scale_after_s: Annotated[float, Field(ge=0)] = 30.0
    # Of the replicas that exact_first keeps exact: with less for scale_after_s it asks for one more. None: only misses ask.
    exact_share: Annotated[float, Field(gt=0, le=1)] | None = None
    scale_down_after_s: Annotated[float, Field(gt=0)] = 120.0
    min_replicas: Annotated[int, Field(ge=1)] = 1  # when nothing is stated
    max_replicas: Annotated[int, Field(ge=1)] | None = None  # required with scale

    @model_validator(mode="after")
    def _numbers_agree(self) -> Self:
        if self.scale and (self.max_replicas is None or self.max_replicas < self.min_replicas):
            raise ValueError(
                f"expected max_replicas >= min_replicas with scale: true, got max_replicas={self.max_replicas} and "
                f"min_replicas={self.min_replicas}; set max_replicas"
            )
        if self.exact_share is not None and not self.scale:
            raise ValueError("exact_share asks for replicas: expected scale: true with it, got scale: false")
        return self


class ControllerConfig(FrozenModel):
    """All that the control loop needs to know. Every duration is in seconds."""

    policy: PolicyConfig = Deadlines()
    ladder: LadderConfig = LadderConfig()  # what comes when FP8 is not enough
    slo: Slo = Slo()
    lease_s: Annotated[float, Field(ge=3 * RENEW_S, le=3600)] = 2.0  # each answer to a replica's call renews it
    reload_on_change: bool = False  # take the file up again whenever it changes, besides when the operator asks

    @model_validator(mode="after")
    def _exact_replicas_are_there_to_share(self) -> Self:
        if self.ladder.exact_share is not None and self.policy.name != "exact_first":
            raise ValueError(
                f"ladder.exact_share is of the policy exact_first, which has exact replicas; got {self.policy.name}; remove it"
            )
        return self

    @property
    def lapsed(self) -> tuple[DirectiveMode, StepRule]:
        """What a replica does without a lease, and without an operator's order: mode and rule.

        What the policy says, where it says the same whatever it observes or leaves it to the engines; under any other every engine
        keeps the deadlines of the SLO by itself.
        """
        spec = POLICIES[self.policy.name]
        decision, _ = spec.decide(Observation(0.0, (), slo=self.slo), spec.start(), self.policy)
        if spec.adaptive and decision.mode is not DirectiveMode.AUTO:
            return DirectiveMode.AUTO, USUAL_SHARES.rule(self.slo.ttft_ms, self.slo.tpot_ms)
        return decision.mode, decision.rule


def check_deployed(deployed: ControllerConfig, new: ControllerConfig) -> None:
    """Refuse what the service around the controller was not deployed for: Serve's autoscaler has its bounds from then.

    Raises:
        ValueError: naming the key.
    """
    had, wanted = deployed.ladder, new.ladder
    if wanted.scale and not had.scale:
        raise ValueError(
            "controller.ladder.scale: the service was deployed without it, so that nothing would bring the replicas that the "
            "controller asked for; deploy it anew to change it"
        )
    if wanted.scale and (wanted.max_replicas or 0) > (had.max_replicas or 0):
        raise ValueError(
            f"controller.ladder.max_replicas: expected at most {had.max_replicas}, with which the service was deployed, got "
            f"{wanted.max_replicas}; deploy it anew to change it"
        )


MOST_SHOWN = 200  # characters of a wrong value


def explain(error: ValidationError, prefix: str = "") -> str:
    """Say what is wrong with a configuration, one line per fault: ``key: what is wrong``.

    ``prefix`` is put before each key, for a section that is part of a larger file ("controller.").
    """
    return "\n".join(_explain_one(dict(fault), prefix) for fault in error.errors(include_url=False))


def _explain_one(fault: dict[str, object], prefix: str) -> str:
    parts = fault["loc"]
    assert isinstance(parts, tuple), "pydantic gives the place of a fault as a tuple"
    # Pydantic puts the chosen alternative of a union into the path; it is not a key of the file.
    keys = [str(part) for i, part in enumerate(parts) if not (i and parts[i - 1] == "policy" and part in POLICIES)]
    key = (prefix + ".".join(keys)).rstrip(".") or "the whole"
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key; remove it or correct its name"
    if fault["type"] == "missing":
        return f"{key}: required, but missing"
    if fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = fault["input"]
        name = given.get("name") if isinstance(given, dict) else given
        return f"{key}.name: expected one of {', '.join(POLICIES)}, got {name!r}"
    if fault["type"] == "value_error":
        return f"{key}: {str(fault['msg']).removeprefix('Value error, ')}"
    given = repr(fault["input"])
    if len(given) > MOST_SHOWN:  # it may be a whole file
        given = f"{given[:MOST_SHOWN]}... ({len(given)} characters)"
    return f"{key}: {fault['msg']}, got {given}"
