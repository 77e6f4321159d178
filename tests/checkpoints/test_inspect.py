"""Statistics and verdicts of a checkpoint's layers, against plain torch and against the loader's own rule."""

import json
import sys

import pytest
import torch
from processes import ROOT
from safetensors.torch import save_file

from nestedfp.checkpoint import FLOATS
from nestedfp.cli.main import main
from nestedfp.format import LIMIT, split, upper_to_float
from nestedfp.nested_weight import NestedWeight, nest
from nestedfp.offline.convert import convert
from nestedfp.offline.inspect import inspect
from nestedfp.offline.profile import Profile, Tally

LAYER = "model.layers.{}.mlp.{}_proj"


def write(folder, tensors):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    return folder


def of(tensor, parts=1):
    tally = Tally(tensor.dtype)
    for part in tensor.chunk(parts):
        tally.add(part)
    return tally.profile()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_profile_is_what_torch_counts(dtype):
    torch.manual_seed(0)
    weight = torch.randn(300, 70).double() * 0.4
    weight.view(-1)[:12] = torch.tensor([1e-9, 3e-8, -5e-6, 0.0, 1.75, 1.76, -60000.0, 65504.0, 0.1, -2.0, 6e-5, 9e-5])
    weight = weight.to(dtype)
    if dtype is torch.bfloat16:
        weight.view(-1)[7] = 65280.0  # the largest that does not overflow
    half, values = weight.half(), weight.double()
    got, inside = of(weight, 3), half.abs() <= LIMIT
    error = torch.where(inside, half.double() - upper_to_float(split(half.clamp(-LIMIT, LIMIT))[0]).double(), 0)
    assert (got.total, got.nonfinite, got.overflowed) == (weight.numel(), 0, 0)
    assert got.outliers == int((~inside).sum())
    assert got.subnormals == int(((half != 0) & (half.abs() < 2**-14)).sum())
    assert got.flushed == int(((values != 0) & (half == 0)).sum())
    assert got.rounded == int((half.double() != values).sum()) - got.flushed
    assert (got.minimum, got.maximum) == (half.min().item(), half.max().item())
    assert got.fp8_error == pytest.approx((error.square().sum() / half.double().square().sum()).sqrt().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_faults_are_counted(dtype):
    weight = torch.tensor([float("nan"), float("inf"), 1.0, -2.0]).to(dtype)
    assert of(weight).fault == "2 of 4 weights are NaN or infinite"
    if dtype is not torch.float16:
        assert of(torch.tensor([1e6, 1.0, -7e4]).to(dtype)).fault.startswith("2 values beyond FP16's 65504 overflow")


def test_profiles_of_parts_add_up():
    weight = torch.randn(64, 8).half() * 2
    whole, sum_ = of(weight), sum(map(of, weight.split(16)), Profile())
    assert sum_.fp8_error == pytest.approx(whole.fp8_error)
    assert (sum_.minimum, sum_.maximum, sum_.outliers) == (whole.minimum, whole.maximum, whole.outliers)


@pytest.fixture
def mixed(tmp_path):
    """Layers of every verdict, beside an embedding, a router and an expert."""
    torch.manual_seed(1)
    tensors = {LAYER.format(i, kind): torch.randn(64, 64) * 0.1 for i in range(3) for kind in ("gate", "up", "down")}
    tensors[LAYER.format(0, "down")][0, :3] = 3.0
    tensors[LAYER.format(1, "up")][0, :5] = 3.0  # 5 of 4,096 are too many, 5 of the 8,192 of gate and up are not
    tensors[LAYER.format(2, "gate")][0] = 4.0
    for name in ("model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.0.mlp.experts.0.gate"):
        tensors[name] = torch.randn(32, 64) * 0.1
    return write(tmp_path / "mixed", {f"{name}.weight": weight.half() for name, weight in tensors.items()})


def test_verdicts_are_the_loaders(mixed):
    verdicts = {layer.module: layer.verdict for layer in inspect(mixed, lambda _: None).layers}
    kinds = {module: verdict.kind for module, verdict in verdicts.items()}
    assert kinds[LAYER.format(0, "down")] == "listed"
    assert kinds[LAYER.format(0, "gate")] == kinds[LAYER.format(1, "gate")] == "nested"
    assert kinds[LAYER.format(1, "up")] == "listed"
    assert kinds[LAYER.format(2, "gate")] == kinds[LAYER.format(2, "up")] == "plain"
    assert kinds["model.layers.0.mlp.experts.0.gate"] == "nested", "an expert's, no router"
    for module in ("model.embed_tokens", "model.layers.0.mlp.gate"):
        assert (kinds[module], verdicts[module].is_linear) == ("plain", False)
    from safetensors.torch import load_file

    weights = load_file(mixed / "model.safetensors")
    for layer in range(3):  # as vLLM fuses them
        fused = torch.cat([weights[f"{LAYER.format(layer, kind)}.weight"] for kind in ("gate", "up")])
        assert isinstance(nest(fused), NestedWeight) == (kinds[LAYER.format(layer, "gate")] != "plain")


def test_the_command_prints_a_table_and_writes_json(mixed, tmp_path, capsys):
    assert main(["inspect", str(mixed), "--json", str(tmp_path / "i.json")]) == 0
    printed = capsys.readouterr()
    assert "gate_up               6      3      1      2" in printed.out
    assert f"plain: {LAYER.format(2, 'up')}: outliers: 64 of 8192" in printed.out
    assert printed.err == "", "no progress bar where there is no terminal"
    report = json.loads((tmp_path / "i.json").read_text())
    assert report["totals"]["verdicts"] == {"nested": 6, "listed": 2, "plain": 2}
    assert report["gemms"]["down_proj"]["outliers"] == 3
    layer = next(each for each in report["layers"] if each["module"] == LAYER.format(0, "down"))
    assert (layer["maximum"], layer["dtype"], layer["shape"]) == (3.0, "F16", [64, 64])


def test_a_converted_checkpoint_reads_as_its_original(mixed, tmp_path):
    convert(mixed, tmp_path / "nested")
    plain, nested = (inspect(folder, lambda _: None).as_json() for folder in (mixed, tmp_path / "nested"))
    assert {**plain, "model": ""} == {**nested, "model": ""}


def test_a_weight_that_fp16_cannot_hold_is_a_fault_and_an_exit_status(tmp_path, capsys):
    folder = write(
        tmp_path / "a", {"a_proj.weight": torch.tensor([[1.0, 7e4]]), "norm.weight": torch.tensor([1.0, torch.nan])}
    )
    assert main(["inspect", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "fault: a_proj.weight: 1 values beyond FP16's 65504" in said
    assert "fault: norm.weight: 1 of 2 weights are NaN" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{none}"], "no config.json; expected a Hugging Face checkpoint folder"),
        (["{empty}"], "no config.json"),
        (["{fp8}"], "quantised already (fp8)"),
        (["{good}", "--json", "{none}/x.json"], "cannot be read or written"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, said):
    (tmp_path / "empty").mkdir()
    good = write(tmp_path / "good", {"a_proj.weight": torch.ones(2, 2).half()})
    write(tmp_path / "fp8", {"a_proj.weight": torch.ones(2, 2).half()})
    (tmp_path / "fp8" / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    places = {"none": tmp_path / "none", "empty": tmp_path / "empty", "fp8": tmp_path / "fp8", "good": good}
    assert main(["inspect", *(word.format(**places) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def sparse(folder, layers, rows=8192, cols=8192):
    """Write a checkpoint of BF16 zeros that takes no room on the disk; return its bytes."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header, end = {}, 0
    for i in range(layers):
        size = 2 * rows * cols
        header[f"model.layers.{i}.mlp.down_proj.weight"] = {
            "dtype": FLOATS[1],
            "shape": [rows, cols],
            "data_offsets": [end, end + size],
        }
        end += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    return end


@pytest.mark.slow
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    import subprocess

    size = sparse(tmp_path / "big", 8)
    script = (
        "import resource, sys; from nestedfp.offline.inspect import inspect, table; from pathlib import Path\n"
        "kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = kb()\n"
        "found = inspect(Path(sys.argv[1]), lambda _: None); print(len(found.layers), kb() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "big")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    layers, grown_kb = map(int, done.stdout.split())
    assert layers == 8
    assert size > 1e9
    assert grown_kb < 250_000
