"""Experiments: what a configuration may say, what is sent to the load test, what a campaign starts and kills."""

import shutil
from pathlib import Path

import httpx
import pytest
import yaml
from experiment_settings import written

from benchmarks.http import http_systems
from deploy.environment import free_ports
from experiments import __main__ as command
from experiments import campaign, config, predict, results, systems
from experiments.config import ExperimentError
from loadtest.service.admin import ServiceClient
from simulator.fit.observations import STEP_COLUMNS, read_csv

CONFIGS = Path("experiments/configs")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_experiment_is_valid_and_named_like_its_file(path):
    assert config.load(path).name == path.stem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": None}, "give either shape or model"),
        ({"shape": "llama-9b"}, "expected one of llama-8b"),
        ({"turbo": True}, "turbo"),
        ({"runs": [{"name": "a"}]}, "run a: give either a directive or a policy"),
        ({"runs": [{"name": "a", "system": "vllm_fp16", "directive": "fp16"}]}, "takes no directive"),
        ({"runs": [{"name": "a", "directive": "fp16"}] * 2}, "expected different names"),
        ({"runs": [{"name": "a", "policy": {"name": "slo_auot"}}]}, "policy.name: expected one of"),
        ({"runs": [{"name": "a", "policy": {"name": "deadlines", "fraction": 1}}]}, "fraction"),
        ({"load": {"start_s": 0, "duration_s": 10, "rates_rps": []}}, "rates_rps"),
        ({"engine": {"plugin": {"graph_token": 2048}}}, "got graph_token"),
        ({"engine": {"plugin": {"max_num_seqs": 8}}}, "got max_num_seqs"),
        ({"engine": {"plugin": {"experts": "three"}}}, "experts: Input should be 'auto', 'nested' or 'plain'"),
        ({"engine": {"plugin": {"graph_tokens": -1}}}, "graph_tokens: Input should be greater"),
    ],
)
def test_a_fault_in_the_configuration_is_named_before_anything_starts(tmp_path, changes, message):
    with pytest.raises(ExperimentError, match=r"experiment\.yaml: ") as caught:
        config.load(written(tmp_path, **changes))
    assert message in str(caught.value)


def test_a_key_twice_in_the_configuration_is_refused(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text() + "slo: {ttft_ms: 5000, tpot_ms: 500}\n")
    with pytest.raises(ExperimentError, match=r"experiment\.yaml: expected YAML: line \d+: .* got 'slo' again"):
        config.load(path)


@pytest.mark.parametrize("option", [{"graph_tokens": 96}, {"experts": "plain"}])
def test_options_of_nested_weights_reach_the_service(tmp_path, option):
    experiment = config.load(written(tmp_path, engine={"plugin": option}))
    arguments = systems.engine_of(experiment, "nestedfp")
    assert http_systems.deployment(arguments, 8000, 1)["engine"].items() >= option.items()


def test_the_load_test_understands_what_it_is_asked(tmp_path):
    experiment = config.load(written(tmp_path))
    for run, policy in zip(experiment.runs, ("fp16", "adaptive", "plain-peer"), strict=True):
        asked = campaign.loadtest_of(experiment, run, 4, 1, Path("trace.csv"), "http://127.0.0.1:1234", tmp_path)
        assert asked.policies == (policy,)
        assert (asked.rate_rps, asked.seed, asked.duration_s) == (4, 1, 10)


def test_runs_with_a_prefix_cache_have_engines_of_their_own_and_no_prediction(tmp_path):
    runs = [
        {"name": name, "policy": {"name": "deadlines"}, "session_share": share} for name, share in (("a", 1), ("b", 0))
    ]
    experiment = config.load(written(tmp_path, engine={"enable_prefix_caching": True}, runs=runs))
    arguments = systems.engine_of(experiment, "nestedfp")
    assert arguments.arguments()["enable_prefix_caching"]
    assert http_systems.deployment(arguments, 8000, 1)["engine"]["enable_prefix_caching"]
    asked = ((experiment, run, 4, 1, Path("t.jsonl"), "http://127.0.0.1:1", tmp_path) for run in experiment.runs)
    assert [campaign.loadtest_of(*each).session_share for each in asked] == [1, 0]
    running = campaign.Campaign(experiment, Path("t.jsonl"), tmp_path, print)
    assert running.starts([(1, 2.0, run) for run in experiment.runs]) == [[(1, 2.0, run)] for run in experiment.runs]
    with pytest.raises(ExperimentError, match="no prefix cache; measure it"):
        predict.arrivals(experiment, Path("t.jsonl"), 4, 1)


def test_rates_are_chosen_in_the_order_of_the_option_and_unknown_ones_refused():
    assert command.chosen("--rates", "4,2", (2.0, 4.0)) == (4.0, 2.0)
    assert command.chosen("--rates", None, (2.0, 4.0)) == (2.0, 4.0)
    with pytest.raises(ExperimentError, match="--rates: unknown: 3; known: 2, 4"):
        command.chosen("--rates", "3", (2.0, 4.0))


def test_wrong_arguments_end_with_a_sentence_and_status_two(tmp_path, capsys):
    path = written(tmp_path)
    assert command.main(["run", str(path), "--trace", str(tmp_path / "none.csv")]) == 2
    assert "--trace: no such file" in capsys.readouterr().err
    assert command.main(["run", str(path), "--trace", str(path), "--runs", "worst"]) == 2
    assert "unknown: worst; known: fp16, best, peer" in capsys.readouterr().err
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert command.main(["summary", str(tmp_path / "latin.yaml")]) == 2
    assert "expected YAML: 'utf-8' codec" in capsys.readouterr().err
    assert command.main(["summary", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


def status_client(*answers):
    """A client of a service whose status routes answer so, one after the other.

    Each says of each replica whether it is stale, None where it is not ready; or is None: no controller.
    """
    left = list(answers)

    def status(_):
        now = left.pop(0)
        told = [
            {"id": str(i), "mode": "fp16", "ready": s is not None, "stale": bool(s)} for i, s in enumerate(now or ())
        ]
        body = {"mode": "fp16", "epoch": 1, "replicas": told}
        return httpx.Response(200 if now is not None else 503, json=body)

    return ServiceClient("http://127.0.0.1:1", None, httpx.MockTransport(status))


def test_a_load_waits_for_replicas_that_were_killed(monkeypatch):
    monkeypatch.setattr(systems, "POLL_S", 0.01)
    said = []
    answers = ([False], [False, True], [False, None], None, [False, False])
    systems.wait_until_whole(status_client(*answers), 2, 20, said.append)
    assert said == ["waiting: 1 of 2 replicas answer"]
    systems.wait_until_whole(status_client([False, False]), 2, 0, said.append)
    assert len(said) == 1
    with pytest.raises(ExperimentError, match="expected 2 replicas to answer within 0 s, 1 do"):
        systems.wait_until_whole(status_client([False, True]), 2, 0, said.append)


@pytest.mark.serve
def test_an_experiment_runs_policies_on_one_service_kills_what_it_should_and_sums_up(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:00:{i // 2:02d}.{500 * (i % 2):03d}0000,40,8\n" for i in range(80))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    path = tmp_path / "live.yaml"
    live = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    live["load"] = {"start_s": 0, "duration_s": 4, "rates_rps": [2]}
    live["load"] |= {"cooldown_s": 0, "drain_s": 30, "settle_limit_s": 60}
    live["runs"] = [run for run in live["runs"] if "system" not in run]  # not the peer
    live["runs"][-1]["kill"]["at_s"] = 2
    live |= {"name": "live", "slo": {"ttft_ms": 60000, "tpot_ms": 60000}}
    path.write_text(yaml.safe_dump(live))
    words = ["run", str(path), "--trace", str(trace), "--out", str(tmp_path / "out")]
    words += ["--step-log", str(tmp_path / "steps")]
    try:
        assert command.main([*words, "--port", str(free_ports(1)[0]), "--results", str(tmp_path)]) == 0
    finally:
        for log in (tmp_path / "out" / "logs").glob("*/*.log"):
            print(log.read_text()[-2000:])
    found = {cell.policy: cell for cell in results.read(tmp_path / "live").runs}
    assert set(found) == {"fp16", "deadlines", "killed"}
    assert capsys.readouterr().out.count("killed controller") == 1
    assert all(cell.requests == 8 and not cell.errors for cell in found.values()), found
    assert found["fp16"].fp16_token_share == 1
    kept = [
        path.read_text(errors="replace") for path in (tmp_path / "out" / "logs" / "nestedfp" / "replicas").iterdir()
    ]
    assert any("Finished initializing replica" in text for text in kept), "no engine's log is kept"
    logged = [row for path in (tmp_path / "steps").iterdir() for row in read_csv(path, STEP_COLUMNS).rows]
    assert sum(int(row["prefill_tokens"]) for row in logged) >= 24 * 40
    assert sum(int(row["decode_requests"]) for row in logged) >= 24 * 7, (
        "the last token of an answer is not computed on"
    )
    shutil.rmtree(tmp_path / "out")
