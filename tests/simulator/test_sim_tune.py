"""The search for a policy's parameters. Run: python -m pytest tests/simulator/test_sim_tune.py"""

import csv
import json
from pathlib import Path

import pytest
import yaml
from sim_builders import exit_status

from controller.config import ControllerConfig
from controller.policies import POLICIES
from simulator import run as simulation
from simulator.errors import SimulationError
from simulator.search import goal, space, tune
from simulator.simulation_summary import SimulationSummary
from workload.percentiles import Percentiles

pytestmark = pytest.mark.slow

COMMON = ("--generate", "bursts", "--duration", "30", "--load", "0.8")


def tuned(*words: object) -> int:
    return exit_status(tune.main, *words)


def summary(**values: object) -> SimulationSummary:
    usual = {name: 0 for name in SimulationSummary.model_fields} | {"policy": "x", "load": 0.8, "decisions": {}}
    return SimulationSummary.model_validate({**usual, "ttft_ms": Percentiles(), "tpot_ms": Percentiles(), **values})


# -- space -------------------------------------------------------------------------------------------------------------


def test_bounds_come_from_the_policys_model_and_open_ones_move_inwards():
    found = {p.name: p for p in space.bounded(POLICIES["slo_auto"].config)}
    assert (found["enter_fraction"].low, found["enter_fraction"].high) == (0.01, 1.0)  # above 0, at most 1
    assert (found["calm_budget_fraction"].low, found["calm_budget_fraction"].high) == (0.01, 0.99)  # a union with null
    assert (found["fp16_step_ratio"].low, found["fp16_step_ratio"].high) == (1.0, 4.0)
    assert "first_hold_s" not in found  # no upper bound
    assert "min_window_count" not in found


CROSSING = ("enter_fraction", "leave_fraction")  # one must stay below the other, wherever the first one lies


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"static_fp16", "static_fp8"}))
def test_both_ends_of_every_span_are_values_that_the_model_takes(name: str):
    config = POLICIES[name].config
    needed = {"step_budget_tokens": 8192} if name == "engine_auto" else {}
    tried = 0
    for parameter in space.bounded(config):
        if "." not in parameter.name and parameter.name not in CROSSING:
            for value in (parameter.low, parameter.high):
                given = {"name": name, **needed, parameter.name: parameter.rounded(value)}
                assert getattr(config.model_validate(given), parameter.name) == parameter.rounded(value)
                tried += 1
    assert tried


def test_given_parameters_reach_into_models_and_keep_their_other_keys():
    (enter,) = space.given("wait_s.enter=0.05:0.5", POLICIES["threshold"].config)
    assert enter == space.Parameter("wait_s.enter", 0.05, 0.5, whole=False)
    section = {"name": "threshold", "wait_s": {"enter": 0.1, "leave": 0.02}}
    assert space.applied(section, {enter.name: 0.3}) == {"name": "threshold", "wait_s": {"enter": 0.3, "leave": 0.02}}
    assert section["wait_s"] == {"enter": 0.1, "leave": 0.02}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enter_fraction", "expected name=low:high"),
        ("enter_fraction=0.5", "expected name=low:high"),
        ("speed=0:1", "expected one of "),
        ("enter_fraction=0.9:0.5", "expected low < high"),
        ("enter_fraction=0.5:nan", "expected low < high"),
        ("enter_fraction=0.5:1.5", "takes values from 0 to 1"),
        ("min_judged=10:20.5", "expected whole numbers"),
    ],
)
def test_wrong_parameters_are_refused(text: str, message: str):
    with pytest.raises(SimulationError, match=message):
        space.given(text, POLICIES["slo_feedback"].config)


# -- goal --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "holds", "misses"),
    [
        ("tight_slo>=0.99", {"tight_slo": 0.99}, {"tight_slo": 0.98}),
        ("switches_per_min <= 6", {"switches_per_min": 6}, {"switches_per_min": 7}),
        ("ttft_ms.p99<=500", {"ttft_ms": Percentiles(p99=400)}, {"ttft_ms": Percentiles(p99=501)}),
        ("ttft_ms.p99<=500", {"ttft_ms": Percentiles(p99=400)}, {"ttft_ms": Percentiles()}),
        ("tight_slo>=static_fp8-0.01", {"tight_slo": 0.95}, {"tight_slo": 0.93}),
        ("tight_slo>=static_fp8", {"tight_slo": 0.955}, {"tight_slo": 0.945}),
    ],
)
def test_constraints(text: str, holds: dict[str, object], misses: dict[str, object]):
    constraint = goal.parse(text)
    known = {"static_fp8": summary(tight_slo=0.95)}
    assert constraint.violation(summary(**holds), known) <= 1e-12
    assert constraint.violation(summary(**misses), known) > 0


@pytest.mark.parametrize(
    "text",
    ["tight_slo", "tight_slo>0.9", "tight_slo>=", "speed>=1", "tight_slo>=best-0.1", "tight_slo>=0.9.9", "a>=1e"],
)
def test_wrong_constraints_are_refused(text: str):
    with pytest.raises(SimulationError, match="--constraint: expected"):
        goal.parse(text)


def test_what_holds_everywhere_comes_before_what_is_better_somewhere():
    sought = goal.Goal((goal.parse("tight_slo>=0.9"),), "fp16_token_share", maximise=True)

    def score(*runs: tuple[float, float]) -> goal.Score:
        return sought.score([summary(tight_slo=t, fp16_token_share=s) for t, s in runs], [{} for _ in runs])

    holds, missed_once, missed_more = (
        score((0.91, 0.2), (0.9, 0.4)),
        score((0.99, 0.9), (0.89, 0.9)),
        score((0.5, 1.0), (0.5, 1.0)),
    )
    assert holds.feasible
    assert not missed_once.feasible
    assert holds.value == pytest.approx(0.3)
    assert sorted([missed_more, holds, missed_once], key=lambda s: s.rank) == [holds, missed_once, missed_more]


# -- command line ------------------------------------------------------------------------------------------------------


def test_the_result_is_the_best_trial_that_holds_and_simulates_to_the_same_numbers(tmp_path: Path, table: Path):
    out = tmp_path / "best.yaml"
    words = (*COMMON, "--table", table, "--policy", "token_fraction", "--constraint", "tight_slo>=0.2", "--trials", 5)
    assert tuned(*words, "--out", out) == 0
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert float(rows[0]["fraction"]) == 0.5  # the parameters as they are come first
    holding = [row for row in rows if row["holds"] == "True"]
    assert all((float(row["tight_slo"]) >= 0.2) == (row["holds"] == "True") for row in rows)
    best = max(holding, key=lambda row: float(row["fp16_token_share"]))
    section = yaml.safe_load(out.read_text())["controller"]
    assert section["policy"] == {"name": "token_fraction", "fraction": float(best["fraction"])}
    assert ControllerConfig.model_validate(section).slo.ttft_ms > 0

    assert (
        simulation.main([*COMMON, "--table", str(table), "--config", str(out), "--json", str(tmp_path / "o.json")]) == 0
    )
    again = json.loads((tmp_path / "o.json").read_text())
    assert again["tight_slo"] == float(best["tight_slo"])
    assert again["fp16_token_share"] == float(best["fp16_token_share"])


def test_the_same_seed_gives_the_same_trials_also_in_several_processes(tmp_path: Path, table: Path):
    words = (*COMMON, "--table", table, "--policy", "slo_auto", "--constraint", "tight_slo>=static_fp8-0.5")
    for name, jobs in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        assert tuned(*words, "--trials", 3, "--jobs", jobs, "--out", tmp_path / f"{name}.yaml") in (0, 3)
    a, b, c, d = ((tmp_path / f"{name}.csv").read_text() for name in "abcd")
    assert (a, c) == (b, d)
    assert a.splitlines()[:2] == c.splitlines()[:2]


def test_nothing_feasible_is_status_3_with_the_nearest_trial_and_no_configuration(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "best.yaml"
    words = (*COMMON, "--table", table, "--policy", "token_fraction", "--constraint", "ttft_ms.p99<=0.001")
    assert tuned(*words, "--trials", 3, "--out", out) == 3
    printed = capsys.readouterr()
    assert "none of 3 trials holds the constraints" in printed.err
    with out.with_suffix(".csv").open() as file:
        nearest = min(csv.DictReader(file), key=lambda row: float(row["ttft_ms.p99"]))
    assert f"nearest:       {nearest['trial']:>5s}" in printed.out
    assert not out.exists()


def test_the_search_ends_with_its_time(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]):
    words = (*COMMON, "--table", table, "--policy", "token_fraction", "--constraint", "tight_slo>=0")
    assert tuned(*words, "--trials", 50, "--time-limit", 1e-6, "--out", tmp_path / "b.yaml") == 0
    assert "stopped after 1 of 50 trials" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "static_fp16", "--constraint", "tight_slo>=0.9"), "static_fp16 has no parameter"),
        (("--constraint", "tight_slo>=0.9"), "expected --policy NAME"),
        (("--policy", "best", "--constraint", "tight_slo>=0.9"), "--policy: expected one of"),
        (("--policy", "slo_auto", "--constraint", "tight"), "--constraint: expected"),
        (
            ("--policy", "slo_auto", "--constraint", "tight_slo>=0.9", "--maximise", "joy"),
            "--maximise: expected one of",
        ),
        (("--policy", "slo_auto", "--constraint", "tight_slo>=0.9", "--trials", "0"), "--trials: expected"),
        (("--policy", "slo_auto", "--constraint", "tight_slo>=0.9", "--parameters", "x=1:2"), "--parameters: expected"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_status_2(
    words: tuple[str, ...], message: str, tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
):
    assert tuned(*COMMON, "--table", table, *words, "--out", tmp_path / "b.yaml") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
