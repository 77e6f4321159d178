"""Step costs of ranks and shapes that nobody timed, against those that were."""

from pathlib import Path

import pytest
from experiment_settings import TABLE_24B, TABLE_24B_LOAD

from benchmarks.engine.engine_shapes import SHAPES
from experiments import other_ranks
from simulator.engine.cost_table import read_table
from simulator.fit import observations


def test_step_costs_of_another_shape_come_out_as_they_were_measured():
    measured = read_table(Path("simulator/engine/tables/h100-llama-8b-steps.json"))
    derived = other_ranks.derive(read_table(TABLE_24B), SHAPES["mistral-24b"], SHAPES["llama-8b"], 1)
    for known, found, short in ((measured.fp16, derived.fp16, 0.13), (measured.fp8, derived.fp8, 0.27)):
        assert found.fixed_ms == pytest.approx(known.fixed_ms, rel=0.05)
        for decodes in (1, 32, 128):  # of 512 tokens each, as the source has them
            expected = known.step_s(decodes, decodes, 512 * decodes)
            assert found.step_s(decodes, decodes, 0) == pytest.approx(expected, rel=0.08)
        for tokens in (256, 512, 1024, 2048):  # a third of the layers' size is multiplied less well
            assert 1 - short < found.step_s(tokens, 0, 0) / known.step_s(tokens, 0, 0) < 1
    assert derived.engine.kv_tokens == pytest.approx(measured.engine.kv_tokens, rel=0.03)


@pytest.mark.parametrize(
    ("model", "ranks", "most", "fp16_off", "fp8_off"),
    [
        ("mistral-24b", 2, 2048, 0.04, 0.08),
        ("llama-70b", 4, 256, 0.04, 0.10),
        ("llama-70b", 4, 2048, 0.12, 0.24),
        ("llama-70b", 2, 2048, 0.13, 0.22),
    ],
)
def test_what_engines_of_more_ranks_timed_at_their_start_is_near_what_one_rank_says(
    model, ranks, most, fp16_off, fp8_off
):
    """All measured on H100, and nothing of the derivation fitted to more than one rank."""
    timed = observations.read_csv(
        Path("benchmarks/results/start-costs-ranks.csv"), ("gpu", "ranks", *observations.START_COLUMNS)
    )
    derived = other_ranks.derive(read_table(TABLE_24B_LOAD), SHAPES["mistral-24b"], SHAPES[model], ranks)
    measured = [
        row for row in timed.rows if (row["model"], row["ranks"]) == (model, str(ranks)) and "H100" in row["gpu"]
    ]
    assert len(measured) == len(derived.start_costs) == 16
    for row, (tokens, fp16_ms, fp8_ms) in zip(measured, derived.start_costs, strict=True):
        assert int(row["tokens"]) == tokens
        if tokens <= most:
            assert fp16_ms == pytest.approx(float(row["fp16_ms"]), rel=fp16_off)
            assert fp8_ms == pytest.approx(float(row["fp8_ms"]), rel=fp8_off)
