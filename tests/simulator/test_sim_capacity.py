"""How many replicas a trace needs. Run: python -m pytest tests/simulator/test_sim_capacity.py"""

import json
from pathlib import Path

import pytest
from sim_builders import exit_status

from simulator.errors import SimulationError
from simulator.search import capacity

pytestmark = pytest.mark.slow

COMMON = ("--generate", "poisson", "--duration", "40", "--rate", "30")


def run(*words: object) -> int:
    return exit_status(capacity.main, *words)


def test_the_answer_is_the_smallest_number_that_holds(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out.json"
    words = (*COMMON, "--table", table, "--slo", "tight>=0.9", "--gpus-per-replica", 2, "--json", out)
    assert run(*words) == 0
    plain = json.loads(out.read_text())
    answers = {answer["policy"]: answer for answer in plain["answers"]}
    assert list(answers) == ["static_fp16", "static_fp8", "slo_auto"]
    for answer in answers.values():
        tried = {int(replicas): share for replicas, share in answer["tried"].items()}
        assert tried[answer["replicas"]] == answer["attainment"] >= 0.9
        assert tried[answer["replicas"] - 1] == answer["attainment_with_one_less"] < 0.9
        assert answer["gpus"] == 2 * answer["replicas"]
    assert answers["static_fp8"]["replicas"] < answers["static_fp16"]["replicas"]
    assert answers["static_fp8"]["replicas"] <= answers["slo_auto"]["replicas"] <= answers["static_fp16"]["replicas"]
    assert answers["static_fp16"]["fp16_token_share"] == 1.0
    assert answers["static_fp8"]["fp16_token_share"] == 0.0
    assert f"FP16 alone: {answers['static_fp16']['gpus']}" in capsys.readouterr().out


def test_one_replica_that_is_enough_has_no_one_less(tmp_path: Path, table: Path):
    words = ("--generate", "poisson", "--duration", "40", "--rate", "1", "--table", table, "--slo", "loose>=0.9")
    assert run(*words, "--policy", "threshold", "--json", tmp_path / "o.json") == 0
    for answer in json.loads((tmp_path / "o.json").read_text())["answers"]:
        assert (answer["replicas"], answer["attainment_with_one_less"], len(answer["tried"])) == (1, None, 1)


def test_too_few_replicas_are_told_with_what_they_attain(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
):
    words = (*COMMON, "--table", table, "--slo", "tight>=0.9", "--max-replicas", 1, "--json", tmp_path / "o.json")
    assert run(*words) == 3
    answers = json.loads((tmp_path / "o.json").read_text())["answers"]
    assert [answer["replicas"] for answer in answers] == [None] * 3
    printed = capsys.readouterr().out
    assert f"does not hold with up to 1 replicas (at 1: {100 * answers[0]['attainment']:.2f} %)" in printed


@pytest.mark.parametrize("text", ["tight", "tight>0.9", "tight>=0", "tight>=1.5", "tight>=95", "best>=0.9"])
def test_wrong_demands_are_refused(text: str):
    with pytest.raises(SimulationError, match="--slo: expected tight>=SHARE"):
        capacity.parse_slo(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--slo", "tight>=0.9"), "expected one of --trace and --generate"),
        (("--slo", "tight>=0.9", "--generate", "poisson"), "expected --rate"),
        (("--slo", "tight>=0.9", *COMMON, "--load", "0.8"), "--load and --replicas: expected neither"),
        (("--slo", "tight>=0.9", *COMMON, "--policy", "best"), "--policy: expected one of"),
        (("--slo", "tight>=0.9", *COMMON, "--max-replicas", "0"), "--max-replicas: expected 1 or more"),
        (("--slo", "tight>=0.9", "--generate", "poisson", "--rate", "-1"), "--rate: expected"),
        (("--slo", "tight>=0.9", "--trace", "missing.csv"), "cannot read the trace"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_status_2(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
