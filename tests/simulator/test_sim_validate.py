"""A simulated service plays the live one: the validation must find its engine and its modes again.

Run: python -m pytest tests/simulator/test_sim_validate.py
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sim_builders import FP8, FP16, make_requests, make_table, policy_config

from nestedfp.modes import Mode
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.fit import live_run, validate
from simulator.output import record, sample, timeline
from workload.synthetic import synthetic_trace

pytestmark = pytest.mark.slow

SECTION = {"slo": {"ttft_ms": 700, "tpot_ms": 100}, "guards": {"dwell_fp8_s": 5}}
POLICIES = {"fp16": "static_fp16", "fp8": "static_fp8", "adaptive": "threshold"}


def play(policy: str) -> RunResult:
    """One sequence at a time, so that a request's tokens come at even steps."""
    arrivals = synthetic_trace(4, 120.0, mean_rate_rps=1.8)
    requests = make_requests(*((a.at_s, min(a.prompt_tokens, 1500), min(a.output_tokens, 60)) for a in arrivals))
    cluster = Cluster(make_table(max_num_seqs=1), policy_config(policy, **SECTION), Scenario(), observe=sample)
    return cluster.run(requests)


def write_phase(folder: Path, phase: str, result: RunResult) -> list[dict[str, Any]]:
    with (folder / f"requests-{phase}.jsonl").open("w") as file:
        for request in result.requests:
            line = record(request, phase, "test").model_dump(mode="json")
            step_ms = request.tpot_ms or 0.0
            chunks = [request.ttft_ms + step_ms * number for number in range(request.output_tokens)]
            file.write(json.dumps({**line, "error": None, "chunk_ms": chunks}) + "\n")
    return [taken.model_dump(mode="json") | {"policy": phase} for taken in timeline(result, phase)]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    taken = [line for phase, policy in POLICIES.items() for line in write_phase(folder, phase, play(policy))]
    (folder / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in taken))
    (folder / "service.yaml").write_text(
        yaml.safe_dump(
            {
                "engine": {"max_num_seqs": 1, "max_num_batched_tokens": 2048},
                "controller": {"policy": {"name": "threshold"}, **SECTION},
            }
        )
    )
    options = {"service_config": str(folder / "service.yaml")}
    (folder / "summary.json").write_text(
        json.dumps({"model": "test", "load": {"duration_s": 120.0}, "options": options})
    )
    return folder


def test_steps_are_found_again_in_the_moments_at_which_tokens_arrived(run_folder: Path):
    run = live_run.read_run(run_folder)
    for phase, cost in (("fp16", FP16), ("fp8", FP8)):
        observations = live_run.steps_of(run.phases[phase])
        assert len(observations) > 500
        for observation in observations:
            ((step, count),) = observation.steps
            assert count == 1
            assert observation.seconds == pytest.approx(
                cost.step_s(step.tokens, step.decodes, step.kv_tokens), rel=0.01
            )


def test_a_simulated_service_is_recognised(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "found.json"
    assert validate.main(["--run", str(run_folder), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    for mode in Mode:
        assert found["fit"][mode]["median_relative"] < 0.01
    for phase in POLICIES:
        for level in ("p50", "p90"):
            assert found["phases"][phase]["ttft_ms"][level]["error"] == pytest.approx(0, abs=0.1)
            assert found["phases"][phase]["tpot_ms"][level]["error"] == pytest.approx(0, abs=0.02)
    adaptive = found["phases"]["adaptive"]
    assert adaptive["switches"]["live"] >= 2
    assert adaptive["same_mode_share"] > 0.9
    text = capsys.readouterr().out
    assert "the same mode" in text
    assert "modes simulated" in text


def test_a_wrong_engine_is_recognised_as_wrong(run_folder: Path, tmp_path: Path):
    out = tmp_path / "found.json"
    table = validate.fit_engine(live_run.read_run(run_folder), {"max_num_seqs": 1}, 100_000)
    slow = table.model_copy(update={"fp8": table.fp16})
    (tmp_path / "slow.json").write_text(slow.model_dump_json())
    assert validate.main(["--run", str(run_folder), "--table", str(tmp_path / "slow.json"), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["phases"]["fp8"]["tpot_ms"]["p50"]["error"] > 0.3


@pytest.mark.parametrize("broken", ["summary.json", "timeline.jsonl", "requests-fp8.jsonl"])
def test_a_folder_that_is_no_run_is_one_clear_error(
    broken: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for file in run_folder.iterdir():
        if file.name != broken:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert validate.main(["--run", str(tmp_path)]) == 1
    assert f"{broken}: cannot read" in capsys.readouterr().err
    (tmp_path / broken).write_text("{}\n" * 2)
    assert validate.main(["--run", str(tmp_path)]) == 1
    assert "not the files of a load test" in capsys.readouterr().err
