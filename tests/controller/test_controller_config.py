"""The controller's configuration: good defaults, and one clear line per fault."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from controller.config import ControllerConfig, check_deployed, explain
from controller.policies import POLICIES
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import exact_steps
from nestedfp.steps.step_rule import StepRule

BAND = {"enter": 0.1, "leave": 0.1}
ALL_OFF = dict.fromkeys(("wait_ratio", "waiting_tokens", "ttft_ratio", "tpot_ratio"))


def policy(name: str, **parameters: Any) -> dict[str, Any]:
    return {"policy": {"name": name, **parameters}}


def explain_fault(data: Any, prefix: str = "") -> str:
    with pytest.raises(ValidationError) as caught:
        ControllerConfig.model_validate(data)
    return explain(caught.value, prefix)


def test_an_empty_section_is_a_working_configuration() -> None:
    config = ControllerConfig.model_validate({})
    assert config.policy.name == "deadlines"
    assert config.lapsed[0] is DirectiveMode.AUTO
    assert config.slo.ttft_ms == 200


def test_without_a_controller_an_engine_keeps_the_deadlines_of_the_slo_by_itself() -> None:
    config = ControllerConfig.model_validate({"slo": {"ttft_ms": 400}, "policy": {"name": "threshold"}})
    mode, rule = config.lapsed
    assert (mode, rule.ttft_deadline_s) == (DirectiveMode.AUTO, pytest.approx(0.8 * 0.4))
    own = ControllerConfig.model_validate({"policy": {"name": "deadlines", "ttft_fraction": 0.5}})
    assert own.lapsed[1].ttft_deadline_s == pytest.approx(0.1)  # as the controller that was lost had said
    paper = ControllerConfig.model_validate({"policy": {"name": "token_fraction", "fraction": 0.25}})
    assert paper.lapsed == (DirectiveMode.AUTO, StepRule(fp8_budget_fraction=0.25))


@pytest.mark.parametrize(("name", "mode"), [("static_fp16", DirectiveMode.FP16), ("static_fp8", DirectiveMode.FP8)])
def test_without_a_controller_a_fixed_precision_stays(name: str, mode: DirectiveMode) -> None:
    rule = exact_steps(33.3) if mode is DirectiveMode.FP16 else StepRule()
    config = {"policy": {"name": name}, "slo": {"ttft_ms": 200, "tpot_ms": 33.3}}
    assert ControllerConfig.model_validate(config).lapsed == (mode, rule)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_named_and_is_the_one_its_config_says(name: str) -> None:
    config = ControllerConfig.model_validate({"policy": {"name": name}})
    assert isinstance(config.policy, POLICIES[name].config)
    assert config.policy.name == name


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"polcy": {}}, r"polcy: unknown key"),
        ({"ladder": {"shedd": True}}, r"ladder\.shedd: unknown key"),
        (policy("threshold", wait_ratio={**BAND, "leaf": 1}), r"policy\.wait_ratio\.leaf: unknown key"),
        (policy("treshold"), r"policy\.name: expected one of exact_first.*threshold.*, got 'treshold'"),
        ({"policy": {}}, r"policy\.name: expected one of"),
        ({"policy": "threshold"}, r"policy"),
        (policy("threshold", wait_ratio=BAND), r"policy\.wait_ratio: expected leave < enter"),
        (policy("threshold", wait_ratio={"enter": 0.1}), r"policy\.wait_ratio\.leave: required"),
        (policy("threshold", **ALL_OFF), r"policy: expected thresholds for at least one signal"),
        ({"lease_s": 0.15}, r"lease_s: Input should be greater than or equal to 1.5, got 0.15"),
        ({"renew_s": 3}, r"renew_s: unknown key"),
        ({"slo": {"ttft_ms": 0}}, r"slo\.ttft_ms: .* got 0"),
        ({"slo": {"tpot_ms": float("nan")}}, r"slo\.tpot_ms: .* got nan"),
        ({"ladder": {"scale": True}}, r"ladder: expected max_replicas >= min_replicas with scale: true"),
        ({"ladder": {"shed_factor": 1}}, r"ladder\.shed_factor: "),
        (policy("deadlines", leave_after_s=30), r"policy\.leave_after_s: unknown key"),
        (policy("exact_first", max_switches_per_minute=3), r"policy\.max_switches_per_minute: unknown key"),
        ({"guards": {"quorum": 1}}, r"guards: unknown key"),
        (policy("deadlines", rows_ttft_fraction=0.5), r"policy\.rows_ttft_fraction: unknown key"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_a_fault_gives_one_line_that_names_the_key(data: dict[str, Any], line: str) -> None:
    text = explain_fault(data)
    assert re.search(line, text), text
    assert "\n" not in text


def test_a_value_that_is_a_whole_file_is_shortened() -> None:
    line = explain_fault({"lease_s": 5000 * "x"})
    assert line.startswith("lease_s: ")
    assert line.endswith("xxx... (5002 characters)")
    assert len(line) < 400


def test_two_faults_give_two_lines_under_the_prefix_of_the_file() -> None:
    lines = explain_fault({"lease": 1, "ladder": {"shed_factor": 2}}, "controller.").splitlines()
    assert [line.split(":")[0] for line in lines] == ["controller.ladder.shed_factor", "controller.lease"]


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ({"scale": True, "max_replicas": 8}, None),
        ({"scale": True, "max_replicas": 9}, r"controller\.ladder\.max_replicas: expected at most 8, .* got 9"),
        ({}, None),
    ],
)
def test_a_reload_asks_for_no_replicas_that_the_service_was_not_deployed_for(
    ladder: dict[str, Any], message: str | None
) -> None:
    new = ControllerConfig.model_validate({"ladder": ladder})
    deployed = ControllerConfig.model_validate({"ladder": {"scale": True, "max_replicas": 8}})
    if message is None:
        check_deployed(deployed, new)
    else:
        with pytest.raises(ValueError, match=message):
            check_deployed(deployed, new)
    if new.ladder.scale:
        with pytest.raises(ValueError, match=r"controller\.ladder\.scale: the service was deployed without it"):
            check_deployed(ControllerConfig(), new)
