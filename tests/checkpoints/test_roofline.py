"""Bytes, arithmetic and least times of a step, against numbers worked out by hand and against measured tables."""

import json

import pytest
from processes import ROOT

from nestedfp.cli.main import main
from nestedfp.offline import roofline
from nestedfp.offline.roofline import EXACT, FAST, GPUS

LLAMA = str(ROOT / "models" / "llama-8b-shape")
MEASURED = ROOT / "simulator" / "engine" / "tables" / "h100-llama-8b-load.json"


@pytest.fixture
def llama():
    return roofline.shape_of(json.loads((ROOT / "models/llama-8b-shape/config.json").read_text()), None, set())


def test_bytes_and_arithmetic_of_a_step(llama):
    linear = 32 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
    head = 4096 * 4096
    exact, fast = (roofline.step(llama, GPUS["H100"], answers, 8, 100, 1) for answers in (EXACT, FAST))
    assert exact.weight_bytes == 2 * (linear + head)
    assert fast.weight_bytes == linear + 2 * head
    assert exact.kv_bytes == fast.kv_bytes == 8 * 100 * 2 * 2 * 32 * 8 * 128
    assert exact.flops == 2 * 8 * (linear + head) + 4 * 8 * 100 * 32 * 32 * 128
    assert exact.predicted_ms == pytest.approx((2 * (linear + head) + exact.kv_bytes) / 3.35e9, rel=0.01)
    halved = roofline.step(llama, GPUS["H100"], EXACT, 8, 100, 2)
    assert halved.weight_bytes == exact.weight_bytes / 2


def test_the_arithmetic_takes_over_where_the_free_rows_end(llama):
    for answers in (EXACT, FAST):
        free = roofline.free_rows(GPUS["H100"], answers)
        bounds = [roofline.step(llama, GPUS["H100"], answers, rows, 0, 1).bound_by for rows in (free // 2, free * 2)]
        assert bounds == ["memory", "arithmetic"]


def test_headers_and_config_agree_on_a_model_that_has_both():
    folder = ROOT / "models" / "fairytales-8m"
    config = json.loads((folder / "config.json").read_text())
    from nestedfp.offline.inspect import inspect

    layers = inspect(folder, lambda _: None, headers_only=True).layers
    shapes = {layer.module: layer.weight.shape for layer in layers}
    read = roofline.shape_of(config, shapes, {layer.module for layer in layers if layer.verdict.is_linear})
    made = roofline.shape_of(config, None, set())
    assert sum(n * k for n, k in read.linear) == sum(n * k for n, k in made.linear)
    assert read.plain == made.plain == ((4096, 256),)


def test_measured_steps_are_slower_than_the_best_and_within_a_factor(tmp_path, capsys):
    command = ["roofline", LLAMA, "--measured", str(MEASURED), "--json", str(tmp_path / "r.json")]
    assert main([*command, "--plot", str(tmp_path / "r.svg")]) == 0
    assert "fast pays: predicted from 1 rows on, measured from 1 rows on" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert all(1 < step["measured_ms"] / step["predicted_ms"] < 2.5 for step in report["steps"])
    assert report["free_rows"] == {"exact": 295, "fast": 295}
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_the_formula_is_the_simulators():
    from simulator.engine.cost_table import read_table

    table, raw = read_table(MEASURED), json.loads(MEASURED.read_text())
    for rows in (1, 100, 1000):
        for answers, costs in ((EXACT, table.fp16), (FAST, table.fp8)):
            expected = costs.step_s(rows, rows, rows * 300) * 1e3
            assert roofline.measured_ms(raw, answers, rows, 300) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{moe}"], "num_experts: experts are read as tokens choose them"),
        (["{bare}"], "hidden_size is None, expected a positive integer"),
        (["{none}"], "no config.json"),
        ([LLAMA, "--gpu", "Z80"], "expected one of H100"),
        ([LLAMA, "--ranks", "0"], "expected --ranks of 1 or more"),
        ([LLAMA, "--measured", "{bare}/config.json"], "expected a table of the simulator"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, said):
    for name, config in (("moe", {"num_experts": 8}), ("bare", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    places = {name: tmp_path / name for name in ("moe", "bare", "none")}
    assert main(["roofline", *(word.format(**places) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
