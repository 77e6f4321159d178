"""Predictions of experiments."""

from pathlib import Path

import pytest
from experiment_settings import TABLE_24B, written

from experiments import __main__ as command
from experiments import config, predict
from experiments.config import ExperimentError
from simulator.engine.cost_table import read_table
from simulator.errors import SimulationError


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
    assert (fp16.policy, fp16.fp16_token_share, fp16.slo_attainment) == ("fp16", 1, 1)
    assert best.policy == "best"
    assert fp16.tpot_ms.p50 == pytest.approx(18, abs=2)  # a step of one or two decodes, by the table
    said = capsys.readouterr().out
    assert "fp16 at 2 requests/s, seed 0: 100.0 % in the SLO, 100.0 % exact answers" in said


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("2023-11-16 18:15:46,100,5\n", "the trace holds 1 requests, 20 are needed for 2 requests/s over 10 s"),
        ("2023-11-16 18:15:46,100,many\n", "trace.csv:2: GeneratedTokens: expected a whole number"),
    ],
)
def test_a_trace_that_does_not_serve_is_one_line_and_status_2(tmp_path, capsys, rows, message):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    words = ["--trace", str(trace), "--table", str(TABLE_24B), "--results", str(tmp_path)]
    path = written(tmp_path, shape="mistral-24b")
    assert command.main(["predict", str(path), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_prediction_is_of_the_experiments_engine_not_of_the_one_the_table_was_measured_on(tmp_path):
    engine = {"max_num_seqs": 7, "max_num_batched_tokens": 64, "max_model_len": 512}
    experiment = config.load(written(tmp_path, shape="mistral-24b", engine=engine))
    table = Path("simulator/engine/tables/h100-mistral-24b-steps.json")
    measured, copy = read_table(table), predict.limited_table(table, experiment)
    limits = copy.engine
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_tokens) == (7, 64, 512)
    assert (limits.kv_tokens, copy.fp16, copy.fp8) == (measured.engine.kv_tokens, measured.fp16, measured.fp8)
    with pytest.raises(SimulationError, match="make one with python -m simulator fit"):
        predict.limited_table(tmp_path / "none.json", experiment)


@pytest.mark.parametrize("engine", [{"shape": "llama-70b"}, {"engine": {"tensor_parallel_size": 2}}])
def test_a_table_of_another_shape_or_of_other_ranks_is_refused(tmp_path, engine):
    experiment = config.load(written(tmp_path, **{"shape": "mistral-24b", **engine}))
    with pytest.raises(ExperimentError, match=r"expected steps of .* GPUs, got those of mistral-24b on 1; log some"):
        predict.limited_table(TABLE_24B, experiment)
    of_two = tmp_path / "two.json"
    table = TABLE_24B.read_text().replace('"mistral-24b"', '"llama-70b"', 1)
    of_two.write_text(table.replace('"gpu"', '"ranks": 2, "gpu"', 1))
    both = config.load(written(tmp_path, shape="llama-70b", engine={"tensor_parallel_size": 2}))
    assert predict.limited_table(of_two, both).ranks == 2


@pytest.mark.parametrize(("shape", "experts", "mixed"), [
    ("mistral-24b", "auto", True), ("qwen3-30b-a3b", "auto", False), ("qwen3-30b-a3b", "plain", True),
])  # fmt: skip
def test_steps_of_nested_experts_are_predicted_with_one_precision(tmp_path, shape, experts, mixed):
    table = tmp_path / "table.json"
    table.write_text(TABLE_24B.read_text().replace('"mistral-24b"', f'"{shape}"', 1))
    experiment = config.load(written(tmp_path, shape=shape, engine={"plugin": {"experts": experts}}))
    assert predict.limited_table(table, experiment).engine.mixed_steps is mixed
