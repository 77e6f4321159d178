"""The controller's section of the service configuration: one frozen model, unknown keys refused.

``explain`` turns pydantic's report into one line per fault that names the key.
"""

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from controller.guards import GuardConfig
from controller.k_of_n import KOfN
from controller.ladder import LadderConfig
from controller.policies import POLICIES, PolicyConfig
from controller.policies.base import Settings, Slo
from controller.policies.slo_feedback import SloAuto
from controller.schema import Fallback, Scope


class ControllerConfig(Settings):
    """All that the control loop needs to know. Every duration is in seconds."""

    policy: PolicyConfig = SloAuto()
    scope: Scope = Scope.CLUSTER  # for whom one decision holds
    replicas_per_step: Annotated[int, Field(ge=1)] = 32  # in the scope replica: decided in one step at most, in turn
    k_of_n: KOfN = KOfN()  # parameters of that scope
    guards: GuardConfig = GuardConfig()
    ladder: LadderConfig = LadderConfig()  # what comes when FP8 is not enough
    advisory: bool = False  # decide and log, but leave the replicas in the mode of the start
    slo: Slo = Slo()
    fallback: Fallback = Fallback()  # what a replica does without a lease
    report_period_s: Annotated[float, Field(gt=0)] = 0.1  # pause between a replica's snapshots
    step_period_s: Annotated[float, Field(gt=0)] = 0.1  # pause between two decisions
    lease_s: Annotated[float, Field(gt=0)] = 2.0  # each answer to a snapshot renews it
    renew_s: Annotated[float, Field(gt=0)] = 0.5  # pause between broadcasts to replicas that lag or are silent
    rate_window_s: Annotated[float, Field(gt=0)] = 1.0  # span over which arrival and token rates are taken
    forget_after_s: Annotated[float, Field(gt=0)] = 10.0  # silence after which a replica no longer counts
    decisions_kept: Annotated[int, Field(ge=1)] = 1000  # in memory, for the decisions endpoint
    reload_on_change: bool = False  # take the file up again whenever it changes, besides when the operator asks

    @model_validator(mode="after")
    def _durations_agree(self) -> Self:
        for small, small_s, factor, large, large_s in (
            ("report_period_s", self.report_period_s, 2, "lease_s", self.lease_s),
            ("renew_s", self.renew_s, 1, "lease_s", self.lease_s),
            ("report_period_s", self.report_period_s, 2, "guards.stale_after_s", self.guards.stale_after_s),
            ("report_period_s", self.report_period_s, 2, "rate_window_s", self.rate_window_s),
            ("guards.stale_after_s", self.guards.stale_after_s, 1, "forget_after_s", self.forget_after_s),
        ):
            if large_s < factor * small_s:
                times = f"{factor} * " if factor > 1 else ""
                raise ValueError(
                    f"expected {large} >= {times}{small}, got {large}={large_s:g} and {small}={small_s:g}; "
                    f"raise {large} or lower {small}"
                )
        return self


def check_reload(old: ControllerConfig, new: ControllerConfig) -> None:
    """Refuse what a running controller cannot take up: replicas read these keys once, when they start.

    Raises:
        ValueError: naming the key.
    """
    for key in ("fallback", "report_period_s"):
        if getattr(old, key) != getattr(new, key):
            raise ValueError(
                f"controller.{key}: cannot change while replicas run, which read it when they start; expected "
                f"{getattr(old, key)!r}, got {getattr(new, key)!r}; restart the service to change it"
            )


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
    return f"{key}: {fault['msg']}, got {fault['input']!r}"
