"""Experiments: what a configuration may say, what is sent to the load test, and what comes out of reports."""

import contextlib
import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest
import yaml

from benchmarks.http import http_systems
from benchmarks.steps import step_summary
from deploy.environment import free_ports
from experiments import __main__ as command
from experiments import campaign, config, oracle_bounds, other_ranks, plots, predict, results, systems
from experiments.config import ExperimentError
from experiments.other_ranks import Shape
from loadtest.cli import parse_config
from loadtest.report.run_summary import summarise
from simulator.engine.cost_table import read_table
from simulator.fit import observations
from workload.records import PrecisionTokens, RequestRecord, write_jsonl
from workload.slo import Slo

CONFIGS = Path("experiments/configs")
SLO = Slo(ttft_ms=200, tpot_ms=33)


def settings(**changes):
    whole = {
        "name": "test",
        "shape": "llama-8b",
        "slo": {"ttft_ms": 200, "tpot_ms": 33},
        "load": {"start_s": 0, "duration_s": 10, "rates_rps": [2, 4], "seeds": [0, 1]},
        "runs": [
            {"name": "fp16", "directive": "fp16"},
            {"name": "best", "policy": {"name": "deadlines"}},
            {"name": "peer", "system": "vllm_fp8"},
        ],
    }
    return {**whole, **changes}


def written(folder, **changes):
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(settings(**changes)))
    return path


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
        ({"engine": {"plugin": {"weights": "three_copies"}}}, "weights: Input should be 'nested' or 'two_copies'"),
        ({"engine": {"plugin": {"graph_tokens": -1}}}, "graph_tokens: Input should be greater"),
    ],
)
def test_a_fault_in_the_configuration_is_named_before_anything_starts(tmp_path, changes, message):
    with pytest.raises(ExperimentError, match=r"experiment\.yaml: ") as caught:
        config.load(written(tmp_path, **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("option", [{"graph_tokens": 96}, {"weights": "two_copies"}])
def test_options_of_nested_weights_reach_the_service(tmp_path, option):
    experiment = config.load(written(tmp_path, engine={"plugin": option}))
    arguments = systems.engine_of(experiment, "nestedfp")
    assert http_systems.deployment(arguments, 8000, 1)["engine"].items() >= option.items()


def test_the_load_test_understands_what_it_is_asked(tmp_path):
    experiment = config.load(written(tmp_path))
    for run, policy in zip(experiment.runs, ("fp16", "adaptive", "plain-peer"), strict=True):
        words = campaign.loadtest_command(experiment, run, 4, 1, Path("trace.csv"), "http://127.0.0.1:1234")
        asked = parse_config(words[3:])
        assert asked.policies == (policy,)
        assert (asked.rate_rps, asked.seed, asked.duration_s) == (4, 1, 10)
        assert not asked.needs_calibration


def test_a_load_is_as_large_as_the_experiment_says(tmp_path):
    load = {"start_s": 0, "duration_s": 30, "rates_rps": [480], "seeds": [0]}
    experiment = config.load(written(tmp_path, load=load))
    words = campaign.loadtest_command(experiment, experiment.runs[0], 480, 0, Path("trace.csv"), "http://127.0.0.1:1")
    assert parse_config(words[3:]).max_requests == 14400


def test_rates_are_chosen_in_the_order_of_the_option_and_unknown_ones_refused():
    assert command.chosen("--rates", "4,2", (2.0, 4.0)) == (4.0, 2.0)
    assert command.chosen("--rates", None, (2.0, 4.0)) == (2.0, 4.0)
    with pytest.raises(ExperimentError, match="--rates: unknown: 3; known: 2, 4"):
        command.chosen("--rates", "3", (2.0, 4.0))


def request(index, ttft_ms=100.0, gap_ms=20.0, tokens=11, precision="fp16", error=None):
    return RequestRecord(
        policy="adaptive",
        index=index,
        intended_s=index,
        sent_s=index,
        prompt_tokens=50,
        max_tokens=tokens,
        output_tokens=0 if error else tokens,
        status=None if error else 200,
        error=error,
        ttft_ms=None if error else ttft_ms,
        tpot_ms=None if error else gap_ms,
        latency_ms=None if error else ttft_ms + gap_ms * (tokens - 1),
        chunk_ms=() if error else tuple(ttft_ms + gap_ms * i for i in range(tokens)),
        precision_tokens=None
        if error
        else PrecisionTokens.model_validate({"prompt": {precision: 50}, "completion": {precision: tokens}}),
    )


def reported(out, run, rate, seed, records):
    """A report as the load test leaves it, from its own functions."""
    folder = out / "runs" / run / f"{rate:g}-{seed}" / "20260101T000000Z"
    folder.mkdir(parents=True)
    write_jsonl(folder / "requests-adaptive.jsonl", records)
    summary = summarise(records, (), SLO, 10.0).model_dump(mode="json")
    (folder / "summary.json").write_text(json.dumps({"runs": [summary]}))


def test_a_summary_counts_every_request_and_says_how_far_chance_reaches(tmp_path):
    experiment = config.load(written(tmp_path))
    good = [request(i) for i in range(6)]
    late = [request(6, ttft_ms=300.0), request(7, ttft_ms=900.0), request(8, gap_ms=50.0, precision="fp8")]
    reported(tmp_path, "best", 2, 0, [*good, *late, request(9, error="cut off")])
    reported(tmp_path, "best", 2, 1, good)
    (tmp_path / results.MACHINE).write_text("two cores\n")
    found = results.collect(experiment, tmp_path)
    first, second = found.runs
    assert found.machine == "two cores"
    assert (first.policy, first.rate_rps, first.seed, first.requests) == ("best", 2, 0, 10)
    assert first.tight_slo == pytest.approx(0.6)
    assert first.loose_slo == pytest.approx(0.8)  # all but the one at 900 ms and the one cut off
    assert first.tight_slo_low < 0.6 < first.tight_slo_high
    assert first.errors == {"cut off": 1}
    assert first.fp16_token_share == pytest.approx(8 / 9)
    assert second.tight_slo == second.tight_slo_high == 1

    line = results.table(found).splitlines()[-1]
    assert line.startswith("| 2 | best | 80.0 (60.0 to 100.0) | 90.0 |")
    results.write(found, tmp_path / "results")
    assert results.read(tmp_path / "results") == found
    plots.draw(found, tmp_path / "picture.svg")
    assert "requests within the SLO" in (tmp_path / "picture.svg").read_text()


def test_reports_of_another_machine_are_added_to_a_summary(tmp_path, capsys):
    path = written(tmp_path)
    parts, kept = (tmp_path / "first", tmp_path / "second"), tmp_path / "results"
    for part, machine, seeds in zip(parts, ("one", "two"), ((0, 1), (1,)), strict=True):
        for seed in seeds:
            late = [request(9, ttft_ms=900.0)] if part.name == "second" else []
            reported(part, "best", 2, seed, [request(0), *late])
        (part / results.MACHINE).write_text(machine)
    assert command.main(["summary", str(path), "--out", str(parts[1]), "--results", str(kept), "--add"]) == 2
    assert "No such file" in capsys.readouterr().err  # nothing there to add to
    for part, more in zip(parts, ([], ["--add"]), strict=True):
        assert command.main(["summary", str(path), "--out", str(part), "--results", str(kept), *more]) == 0
    folder = next(kept.glob("*"))
    found = results.read(folder)
    assert [(cell.seed, cell.tight_slo) for cell in found.runs] == [(0, 1.0), (1, 0.5)]
    assert found.machine == "one | then: two"
    with pytest.raises(ExperimentError, match="replicas: the summary there has 7"):
        results.joined(found.model_copy(update={"replicas": 7}), found)


@pytest.mark.parametrize("folder", sorted(path.parent for path in Path("docs/results").glob("*/summary.json")), ids=str)
def test_the_page_of_results_shows_the_numbers_that_were_measured_and_predicted(folder):
    page = Path("docs/results.md").read_text()
    measured = results.read(folder)
    assert results.table(measured) in page
    predicted = predict.Predictions.model_validate_json((folder / predict.KEPT).read_text())
    assert results.comparison(measured, predicted.runs) in page


UNMEASURED = [
    path.parent for path in Path("docs/results").glob("*/predicted.json") if not (path.parent / results.KEPT).exists()
]


@pytest.mark.parametrize("folder", sorted(UNMEASURED), ids=str)
def test_the_page_of_results_shows_what_was_predicted_of_experiments_that_have_not_run(folder):
    predicted = predict.Predictions.model_validate_json((folder / predict.KEPT).read_text())
    assert results.forecast(predicted.runs) in Path("docs/results.md").read_text()


@pytest.mark.parametrize("folder", sorted(path.parent for path in Path("docs/results").glob("*/oracle.json")), ids=str)
def test_the_page_of_results_shows_the_schedules_that_were_found(folder):
    assert oracle_bounds.table(oracle_bounds.read(folder)) in Path("docs/results.md").read_text()


def test_an_experiment_without_a_report_says_so(tmp_path):
    with pytest.raises(ExperimentError, match="found none: run the experiment first"):
        results.collect(config.load(written(tmp_path)), tmp_path)


def test_seconds_of_slow_answers_are_those_whose_mean_gap_is_above_the_objective():
    # Gaps end at 0.12, 0.14 ... s of second 0 for the fast one, at 2.15, 2.20 ... s for the slow one.
    records = [request(0, gap_ms=20.0), request(2, gap_ms=50.0)]
    assert results.tpot_miss_seconds(records, SLO) == 1
    assert results.tpot_miss_seconds([request(0, error="cut off")], SLO) == 0


def test_wrong_arguments_end_with_a_sentence_and_status_two(tmp_path, capsys):
    path = written(tmp_path)
    assert command.main(["run", str(path), "--trace", str(tmp_path / "none.csv")]) == 2
    assert "--trace: no such file" in capsys.readouterr().err
    assert command.main(["run", str(path), "--trace", str(path), "--runs", "worst"]) == 2
    assert "unknown: worst; known: fp16, best, peer" in capsys.readouterr().err
    assert command.main(["summary", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.slow
def test_an_experiment_is_predicted_on_the_arrivals_that_the_load_test_would_send(tmp_path, capsys):
    load = {"start_s": 0, "duration_s": 5, "rates_rps": [2], "seeds": [0]}
    path = written(tmp_path, load=load, shape="mistral-24b")
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:00:{i // 4:02d}.{250 * (i % 4):03d}0000,400,20\n" for i in range(80))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    table = Path("simulator/engine/tables/h100-mistral-24b-steps.json")
    words = ["predict", str(path), "--trace", str(trace), "--table", str(table), "--results", str(tmp_path)]
    assert command.main(words) == 0
    found = predict.Predictions.model_validate_json((tmp_path / "test" / predict.KEPT).read_text())
    assert found.table == table.name
    fp16, best = found.runs  # vLLM is not simulated
    assert (fp16.policy, fp16.fp16_token_share, fp16.tight_slo) == ("fp16", 1, 1)
    assert best.policy == "best"
    assert fp16.tpot_ms.p50 == pytest.approx(18, abs=2)  # a step of one or two decodes, by the table
    said = capsys.readouterr().out
    assert "fp16 at 2 requests/s, seed 0: 100.0 %" in said
    assert results.forecast(found.runs) in said


def test_a_prediction_is_of_the_experiments_engine_not_of_the_one_the_table_was_measured_on(tmp_path):
    engine = {"max_num_seqs": 7, "max_num_batched_tokens": 64, "max_model_len": 512}
    experiment = config.load(written(tmp_path, shape="mistral-24b", engine=engine))
    table = Path("simulator/engine/tables/h100-mistral-24b-steps.json")
    measured, copy = read_table(table), read_table(predict.limited_table(table, experiment, tmp_path))
    limits = copy.engine
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_tokens) == (7, 64, 512)
    assert (limits.kv_tokens, copy.fp16, copy.fp8) == (measured.engine.kv_tokens, measured.fp16, measured.fp8)
    with pytest.raises(config.ExperimentError, match="make one with python -m simulator fit"):
        predict.limited_table(tmp_path / "none.json", experiment, tmp_path)


TABLE_24B = Path("simulator/engine/tables/h100-mistral-24b-steps.json")
TABLE_24B_LOAD = Path("simulator/engine/tables/h100-mistral-24b-load.json")


def test_a_prediction_knows_the_kv_cache_that_an_experiments_engine_has(tmp_path):
    table = TABLE_24B_LOAD
    measured = read_table(table)
    same = {
        "max_num_seqs": measured.engine.max_num_seqs,
        "max_num_batched_tokens": measured.engine.max_num_batched_tokens,
        "max_model_len": measured.engine.max_model_tokens,
    }
    experiment = config.load(written(tmp_path, shape="mistral-24b", engine=same, kv_cache_tokens=19328))
    copy = read_table(predict.limited_table(table, experiment, tmp_path))
    assert copy.engine.kv_tokens == 19328 < measured.engine.kv_tokens
    assert copy.start_costs == measured.start_costs is not None, "what a step takes does not depend on the cache's size"


def test_step_costs_of_another_shape_come_out_as_they_were_measured():
    measured = read_table(Path("simulator/engine/tables/h100-llama-8b-steps.json"))
    derived = other_ranks.derive(read_table(TABLE_24B), Shape.of("mistral-24b"), Shape.of("llama-8b"), 1)
    for known, found, short in ((measured.fp16, derived.fp16, 0.13), (measured.fp8, derived.fp8, 0.27)):
        assert found.fixed_ms == pytest.approx(known.fixed_ms, rel=0.05)
        for decodes in (1, 32, 128):  # of 512 tokens each, as the source has them
            expected = known.step_s(decodes, decodes, 512 * decodes)
            assert found.step_s(decodes, decodes, 0) == pytest.approx(expected, rel=0.08)
        for tokens in (256, 512, 1024, 2048):  # a third of the layers' size is multiplied less well
            assert 1 - short < found.step_s(tokens, 0, 0) / known.step_s(tokens, 0, 0) < 1
    assert derived.engine.kv_tokens == pytest.approx(measured.engine.kv_tokens, rel=0.03)


def test_one_rank_of_the_same_shape_has_the_measured_costs():
    table, shape = read_table(TABLE_24B), Shape.of("mistral-24b")
    derived = other_ranks.derive(table, shape, shape, 1)
    assert (derived.fp16, derived.fp8, derived.engine) == (table.fp16, table.fp8, table.engine)


def test_what_an_engine_of_two_ranks_timed_at_its_start_is_near_what_one_rank_says():
    """Both measured, and nothing of the derivation fitted to the second."""
    timed = observations.read_csv(
        Path("benchmarks/results/start-costs-ranks.csv"), ("gpu", "ranks", *observations.START_COLUMNS)
    )
    shape = Shape.of("mistral-24b")
    derived = other_ranks.derive(read_table(TABLE_24B_LOAD), shape, shape, 2)
    measured = [row for row in timed.rows if (row["model"], row["ranks"]) == ("mistral-24b", "2")]
    assert len(measured) == len(derived.start_costs) == 16
    for row, (tokens, fp16_ms, fp8_ms) in zip(measured, derived.start_costs, strict=True):
        assert int(row["tokens"]) == tokens
        assert fp16_ms == pytest.approx(float(row["fp16_ms"]), rel=0.04)
        assert fp8_ms == pytest.approx(float(row["fp8_ms"]), rel=0.08)


def test_more_ranks_shorten_the_weights_part_and_add_sums():
    table, shape = read_table(TABLE_24B), Shape.of("mistral-24b")
    two, four = (other_ranks.derive(table, shape, shape, ranks) for ranks in (2, 4))
    sums_ms = 2 * shape.layers * other_ranks.ALL_REDUCE_US * 1e-3
    rest_ms = 2 * table.fp8.fixed_ms - table.fp16.fixed_ms  # of one step, whatever its weights
    weights_ms = table.fp16.fixed_ms - rest_ms
    assert two.fp16.fixed_ms == pytest.approx(rest_ms + weights_ms / 2 + sums_ms)
    assert four.fp16.fixed_ms == pytest.approx(rest_ms + weights_ms / 4 + sums_ms)
    assert four.engine.kv_tokens > 2 * two.engine.kv_tokens > 4 * table.engine.kv_tokens


def test_a_prediction_for_ranks_or_shapes_that_nothing_tells_of_says_so(tmp_path):
    ranks = {"tensor_parallel_size": 2}
    with pytest.raises(ExperimentError, match="weights of 141 GB do not fit into the 73 GB"):
        predict.limited_table(TABLE_24B, config.load(written(tmp_path, shape="llama-70b")), tmp_path)
    unknown = tmp_path / "unknown.json"
    unknown.write_text(TABLE_24B.read_text().replace('"mistral-24b"', '"phi-4"'))
    with pytest.raises(
        ExperimentError, match="on 2 ranks and the table is of phi-4 on one; expected both to be one of"
    ):
        predict.limited_table(unknown, config.load(written(tmp_path, shape="llama-8b", engine=ranks)), tmp_path)


@pytest.mark.slow
def test_schedules_that_know_the_future_are_sought_rate_by_rate_for_an_experiment(tmp_path, capsys):
    load = {"start_s": 0, "duration_s": 5, "rates_rps": [2, 3], "seeds": [0]}
    path = written(tmp_path, load=load, shape="mistral-24b")
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:00:{i // 4:02d}.{250 * (i % 4):03d}0000,400,20\n" for i in range(80))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    table = Path("simulator/engine/tables/h100-mistral-24b-steps.json")
    words = [
        "oracle",
        str(path),
        "--trace",
        str(trace),
        "--table",
        str(table),
        "--results",
        str(tmp_path),
        "--rounds",
        "1",
    ]
    for rate in ("3", "2"):
        assert command.main([*words, "--at", "static_fp8,deadlines", "--rates", rate]) == 0
    found = oracle_bounds.read(tmp_path / "test")
    names = ["static_fp8", "static_fp16", "deadlines", "oracle at static_fp8", "oracle at deadlines"]
    rows = [row for row in found.rows if not row.policy.startswith("rule ")]
    assert [(row.rate_rps, row.policy) for row in rows] == [(rate, name) for rate in (2, 3) for name in names]
    assert {row.policy for row in found.rows} > {"rule prompts 0.7, 0.8", "rule prompts"}
    for row in rows:  # nothing is at stake at so low a rate
        assert row.slo_attainment == 1
        assert (row.fp16_token_share == 1) == (row.policy != "static_fp8")
    assert oracle_bounds.table(found) in capsys.readouterr().out
    other = found.model_copy(update={"rounds": 2, "rows": found.rows[:1]})
    assert oracle_bounds.joined(found, other) == other  # sought in another way: nothing of before stays
    assert command.main([*words, "--at", "best"]) == 2
    assert "--at: expected one of the policies that run" in capsys.readouterr().err


def test_schedules_are_sought_for_one_replica_only(tmp_path, capsys):
    runs = [{"name": "best", "policy": {"name": "deadlines"}}]
    path = written(tmp_path, replicas=2, runs=runs)
    words = ["oracle", str(path), "--trace", "none.csv", "--table", "none.json", "--results", str(tmp_path)]
    assert command.main(words) == 2
    assert "a schedule is for one replica, the experiment has 2" in capsys.readouterr().err


@contextlib.contextmanager
def status_server(*answers):
    """Give the URL of a server whose status routes answer so, one after the other, the last one for ever.

    Each says of each replica whether it is stale, None where it is not ready; or is None: no controller.
    """
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            now = left.pop(0) if len(left) > 1 else left[0]
            replicas = [
                {"id": str(i), "mode": "fp16", "ready": stale is not None, "stale": bool(stale)}
                for i, stale in enumerate(now or ())
            ]
            body = json.dumps({"mode": "fp16", "epoch": 1, "replicas": replicas}).encode()
            self.send_response(200 if now is not None else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_load_waits_for_replicas_that_were_killed(monkeypatch):
    monkeypatch.setattr(systems, "POLL_S", 0.01)
    said = []
    with status_server([False], [False, True], [False, None], None, [False, False]) as url:
        systems.wait_until_whole(url, 2, 20, said.append)
    assert said == ["waiting: 1 of 2 replicas answer"]
    with status_server([False, False]) as url:
        systems.wait_until_whole(url, 2, 0, said.append)
    assert len(said) == 1
    with (
        status_server([False, True]) as url,
        pytest.raises(ExperimentError, match="expected 2 replicas to answer within 0 s, 1 do"),
    ):
        systems.wait_until_whole(url, 2, 0, said.append)


@pytest.mark.serve
def test_an_experiment_runs_policies_on_one_service_kills_what_it_should_and_sums_up(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:00:{i // 2:02d}.{500 * (i % 2):03d}0000,40,8\n" for i in range(80))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    path = tmp_path / "live.yaml"
    live = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    live["load"] = {"start_s": 0, "duration_s": 6, "rates_rps": [2], "drain_s": 30, "settle_limit_s": 60}
    live["runs"] = [run for run in live["runs"] if "system" not in run]  # not the peer
    live["runs"][-1]["kill"]["at_s"] = 2
    live |= {"name": "live", "slo": {"ttft_ms": 60000, "tpot_ms": 60000}}
    path.write_text(yaml.safe_dump(live))
    words = [
        "run",
        str(path),
        "--trace",
        str(trace),
        "--out",
        str(tmp_path / "out"),
        "--step-log",
        str(tmp_path / "steps"),
    ]
    try:
        assert command.main([*words, "--port", str(free_ports(1)[0]), "--results", str(tmp_path)]) == 0
    finally:
        for log in (tmp_path / "out" / "logs").glob("*.log"):
            print(log.read_text()[-2000:])
    found = {cell.policy: cell for cell in results.read(tmp_path / "live").runs}
    assert set(found) == {"fp16", "deadlines", "killed"}
    assert capsys.readouterr().out.count("killed controller") == 1
    assert all(cell.requests == 12 and not cell.errors for cell in found.values()), found
    assert found["fp16"].fp16_token_share == 1
    kept = [path.read_text(errors="replace") for path in (tmp_path / "out" / "logs" / "replicas").iterdir()]
    assert any("Started vLLM engine" in text for text in kept), "no engine's log is kept"
    logged = step_summary.steps_of(tmp_path / "steps" / "nestedfp")
    assert sum(step.tokens for step in logged) >= 36 * 47, (
        "of each request 40 prompt tokens, and one for each answered but one"
    )
    assert sum(step.long_requests for step in logged) >= 36
    shutil.rmtree(tmp_path / "out")
