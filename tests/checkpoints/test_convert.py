"""Checkpoint to checkpoint: what is nested, what is listed, what stays plain, and what is refused with nothing written."""

import errno
import json
from hashlib import sha256

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nestedfp.checkpoint import INDEX_NAME, CheckpointError, read_header
from nestedfp.cli.main import main
from nestedfp.format import FORMAT_VERSION, join
from nestedfp.offline import convert as offline_convert
from nestedfp.offline import folder as offline_folder
from nestedfp.offline import reading
from nestedfp.offline import rewrite as offline_rewrite
from nestedfp.offline.convert import convert, restore
from nestedfp.offline.inspect import inspect

Q, K, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
UP, GATE = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "gate"))
DOWN = "model.layers.0.mlp.down_proj.weight"
EMBED = "model.embed_tokens.weight"


def weights(dtype=torch.float16):
    torch.manual_seed(0)
    shapes = {Q: (64, 64), K: (32, 64), V: (32, 64), UP: (96, 64), GATE: (96, 64), DOWN: (64, 96), EMBED: (50, 64)}
    return {name: (torch.randn(shape) * 0.1).to(dtype) for name, shape in shapes.items()}


def write(folder, tensors, **config):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def read(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_planes_join_to_the_original_and_everything_else_is_kept(tmp_path):
    original = weights()
    report = convert(write(tmp_path / "a", original), tmp_path / "b")
    result = read(tmp_path / "b")
    assert len(report.nested) == 6
    for name in (Q, K, V, UP, GATE, DOWN):
        stem = name.removesuffix(".weight")
        assert name not in result
        assert torch.equal(join(result[f"{stem}.weight_upper"], result[f"{stem}.weight_lower"]), original[name])
    assert torch.equal(result[EMBED], original[EMBED])
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "nestedfp", "format_version": FORMAT_VERSION, "ignore": []}
    assert (tmp_path / "b" / "tokenizer.json").read_text() == "{}"
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in "ab"]
    assert abs(sizes[0] - sizes[1]) < 2000, "the same bytes: only the header differs"


def test_a_weight_beyond_the_range_stays_plain_on_disk_and_is_listed(tmp_path):
    tensors = weights()
    tensors[UP][3, 5] = 2.5
    report = convert(write(tmp_path / "a", tensors), tmp_path / "b")
    assert report.listed == {UP.removesuffix(".weight"): 1}
    assert torch.equal(read(tmp_path / "b")[UP], tensors[UP])


def test_too_many_beyond_the_range_keep_the_fused_group_plain(tmp_path):
    tensors = weights()
    tensors[K][:8] = 3.0
    report = convert(write(tmp_path / "a", tensors), tmp_path / "b")
    ignored = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == sorted(name.removesuffix(".weight") for name in (Q, K, V))
    assert set(report.nested) == {name.removesuffix(".weight") for name in (UP, GATE, DOWN)}


@pytest.mark.parametrize(("name", "dtype"), [(DOWN, torch.bfloat16), (EMBED, torch.float32), (DOWN, torch.float64)])
def test_an_overflowing_cast_is_refused(tmp_path, name, dtype):
    tensors = weights(dtype)
    tensors[name][1, 2] = -65504
    if dtype is not torch.bfloat16:  # which rounds it to 65536
        convert(write(tmp_path / "a", tensors), tmp_path / "b")
    tensors[name][1, 2] = -65536
    with pytest.raises(CheckpointError, match=rf"{name}: 1 values beyond FP16's 65504 overflow"):
        convert(write(tmp_path / "a", tensors), tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        (DOWN, float("nan")),
        (EMBED, float("inf")),
        ("model.norm.weight", float("-inf")),
        ("model.layers.0.self_attn.q_proj.bias", float("nan")),
        ("x.experts.gate_up_proj", float("inf")),
    ],
)
def test_nonfinite_values_of_any_tensor_are_refused_and_nothing_is_written(tmp_path, name, bad):
    tensors = {
        "model.norm.weight": torch.ones(64).half(),
        "model.layers.0.self_attn.q_proj.bias": torch.ones(64).half(),
    }
    tensors |= {**weights(), "x.experts.gate_up_proj": torch.ones(2, 64, 64).bfloat16()}
    tensors[name].view(-1)[-1] = bad
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: {name}: 1 of \d+ weights are NaN or infinite"):
        convert(write(tmp_path / "a", tensors), tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_layers_that_vllm_would_find_no_planes_for_are_not_converted(tmp_path):
    tensors = weights()
    names = ["model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.kv_b_proj.weight", EMBED, "lm_head.weight"]
    names += ["model.layers.0.block_sparse_moe.router.layer.weight", "model.layers.0.visual.pos_embed.weight"]
    names += ["model.layers.0.mlp.gate.wg.weight", "model.layers.0.mlp.shared_expert_gate.weight"]
    tensors |= {name: tensors[DOWN].clone() for name in names}
    convert(write(tmp_path / "a", tensors), tmp_path / "b")
    assert all(name in read(tmp_path / "b") for name in names)


def test_an_existing_target_is_left_alone(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").write_text("x")
    with pytest.raises(CheckpointError, match="exists"):
        convert(write(tmp_path / "a", weights()), tmp_path / "b")
    assert (tmp_path / "b" / "precious").read_text() == "x"


def before_the_rest(monkeypatch, act):
    """Have ``act(partial folder)`` happen once, when the shards of a conversion are written."""
    rest = offline_rewrite.write_rest

    def write_rest(source, partial, *others):
        monkeypatch.setattr(offline_rewrite, "write_rest", rest)
        act(partial)
        rest(source, partial, *others)

    monkeypatch.setattr(offline_rewrite, "write_rest", write_rest)


def test_of_two_conversions_to_one_target_one_is_refused_and_the_other_is_whole(tmp_path, monkeypatch, capsys):
    source, other = write(tmp_path / "a", weights()), write(tmp_path / "c", weights(torch.bfloat16))

    def run(*sources):
        return [main(["convert", str(each), str(tmp_path / "b")]) for each in sources]

    before_the_rest(monkeypatch, lambda _: run(source, other))
    assert run(source) == [2]
    said = capsys.readouterr().err
    assert "another run is making it" in said
    assert "was made by somebody else meanwhile" in said
    assert read(tmp_path / "b")[EMBED].dtype == torch.bfloat16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("change", ["lose a tensor", "lose a shard", "replace the source"])
def test_a_result_that_does_not_hold_all_of_the_source_does_not_appear(tmp_path, monkeypatch, change):
    source = write(tmp_path / "a", weights())

    def spoil(partial):
        if change == "replace the source":
            write(source, weights(torch.bfloat16))
        shard = partial / "model.safetensors"
        if change == "lose a tensor":
            kept = read(partial)
            del kept[EMBED]
            save_file(kept, shard)
        if change == "lose a shard":
            shard.rename(shard.with_name("other.safetensors"))

    before_the_rest(monkeypatch, spoil)
    with pytest.raises(CheckpointError, match=r"changed while it was being read|the disk lost what was written"):
        convert(source, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_target_inside_the_source_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is inside"):
        convert(write(tmp_path / "a", weights()), tmp_path / "a" / "b")


def test_whatever_is_not_nested_keeps_its_bits_and_companions_their_folders(tmp_path):
    torch.manual_seed(1)
    others = {
        "model.layers.0.mlp.gate.e_score_correction_bias": torch.randn(8),
        "model.layers.0.conv1d.weight": torch.randn(8, 1, 4).bfloat16(),
        "model.norm.weight": torch.randn(64).bfloat16(),
        "model.layers.0.attn.masked_bias": torch.tensor(-1e9),
        "model.ids": torch.arange(3),
    }
    source = write(tmp_path / "a", {**weights(torch.bfloat16), **others})
    (source / "modules.json").write_text('[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Normalize"}]')
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    convert(source, tmp_path / "b")
    result = read(tmp_path / "b")
    for name, tensor in others.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name], tensor)
    assert (tmp_path / "b" / "1_Pooling" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("modules", ["{}", "[3]", '[{"path": "../a"}]', '[{"path": ".."}]', "["])
def test_a_wrong_list_of_companion_folders_is_named(tmp_path, modules):
    source = write(tmp_path / "a", weights())
    (source / "modules.json").write_text(modules)
    if modules == "{}":
        convert(source, tmp_path / "b")
        return
    with pytest.raises(CheckpointError, match=r"modules\.json: expected"):
        convert(source, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


PLANES = {f"a.weight_{plane}": torch.ones(2, 2).byte() for plane in ("upper", "lower")}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (weights(), {"quantization_config": {"quant_method": "fp8"}}, "quantised already"),
        (weights(), {"quantization_config": "awq"}, "quantization_config is 'awq', expected an object"),
        (weights(), {"text_config": {"quantization_config": {"quant_method": "awq"}}}, "(awq)"),
        (weights(), [], "config.json: expected a JSON object, got list"),
        (weights(), None, "no config.json"),
        ({EMBED: weights()[EMBED]}, {}, "none of 1 tensors is a projection of a decoder layer"),
        ({**weights(), DOWN: torch.ones(64, 96).to(torch.float8_e4m3fn)}, {}, "is F8_E4M3, expected"),
        ({**weights(), "x.scale": torch.ones(2).to(torch.float8_e5m2)}, {}, "x.scale is F8_E5M2"),
        (PLANES, {}, "already"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, capsys, tensors, config, message):
    written = write(tmp_path / "a", tensors) / "config.json"
    written.unlink() if config is None else written.write_text(json.dumps(config))
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_a_target_that_cannot_be_made_is_one_line(tmp_path, capsys):
    source = write(tmp_path / "a", weights())
    (tmp_path / "file").write_text("")
    assert main(["convert", str(source), str(tmp_path / "file" / "b")]) == 2
    assert f"expected a folder to make it in, and {tmp_path / 'file'} is a file" in capsys.readouterr().err
    assert main(["convert", str(source), "/proc/x/y"]) == 2
    assert "error: /proc/x" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


def sharded(folder, first, second, **config):
    """Write a checkpoint of two shards and an index."""
    write(folder, first, tie_word_embeddings=True, torch_dtype="float16", **config)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    save_file(second, folder / "model-2.safetensors", metadata={"format": "pt", "made_by": "hand"})
    places = {**dict.fromkeys(first, "model-1.safetensors"), **dict.fromkeys(second, "model-2.safetensors")}
    size = sum(tensor.nbytes for tensor in (*first.values(), *second.values()))
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_text("pickled")
    return folder


def halves():
    tensors = weights()
    tensors[DOWN][0, :2] = torch.tensor([2.5, -1.76]).half()  # a list
    tensors["model.norm.weight"] = torch.randn(64).bfloat16()
    tensors["ids"] = torch.arange(3)
    second = {name: tensors.pop(name) for name in (UP, DOWN, "ids", K)}
    return tensors, second


def digests(folder):
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}


def test_restoring_gives_the_same_files_back(tmp_path):
    source = sharded(tmp_path / "a", *halves())
    report = convert(source, tmp_path / "b")
    restored = restore(tmp_path / "b", tmp_path / "c")
    assert digests(tmp_path / "c") == digests(source)
    assert digests(tmp_path / "b") != digests(source)
    assert report.sha256 == restored.sha256
    for shard in source.glob("*.safetensors"):
        assert report.sha256[shard.name] == sha256(shard.read_bytes()[read_header(shard)[2] :]).hexdigest()
    for name in (INDEX_NAME, "config.json", "tokenizer.json", "chat_template.jinja"):
        texts = [(folder / name).read_text() for folder in (source, tmp_path / "c")]
        assert json.loads(texts[0]) == json.loads(texts[1]) if name.endswith("json") else texts[0] == texts[1]
    assert not (tmp_path / "b" / "pytorch_model.bin").exists(), "other forms of the weights stay behind"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_layers_of_other_types_come_back_as_fp16(tmp_path, dtype):
    tensors = weights(dtype)
    report = convert(write(tmp_path / "a", tensors), tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "c")
    for name, tensor in read(tmp_path / "c").items():
        expected = tensors[name].half() if name != EMBED else tensors[name]
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)
    changed = sum(int((each.half().to(dtype) != each).sum()) for each in tensors.values())
    assert report.inexact_casts == changed


@pytest.mark.parametrize(
    ("plane", "said"), [("lower", "do not join to the weights"), ("upper", "no weight has such bytes")]
)
def test_damaged_planes_are_not_restored(tmp_path, capsys, plane, said):
    convert(write(tmp_path / "a", weights()), tmp_path / "b")
    shard = tmp_path / "b" / "model.safetensors"
    header, _, data = read_header(shard)
    content = bytearray(shard.read_bytes())
    content[data + header[DOWN.replace("weight", f"weight_{plane}")]["data_offsets"][0]] ^= 1
    shard.write_bytes(bytes(content))
    assert main(["restore", str(tmp_path / "b"), str(tmp_path / "c")]) == 2
    assert said in (line := capsys.readouterr().err)
    assert line.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_plain_checkpoint_is_not_restored(tmp_path, capsys):
    assert main(["restore", str(write(tmp_path / "a", weights())), str(tmp_path / "b")]) == 2
    assert "holds no planes" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_run_goes_on_with_the_shards_that_are_missing(tmp_path, monkeypatch, capsys, error):
    source = sharded(tmp_path / "a", *halves())
    rewritten, original = [], offline_rewrite._rewrite_shard

    def rewrite_shard(shard, *others):
        rewritten.append(shard.name)
        if rewritten == ["model-1.safetensors", "model-2.safetensors"]:
            made = others[2]
            made.with_name(f"{made.name}.tmp").write_text("half")  # as a killed process leaves it
            raise error
        return original(shard, *others)

    monkeypatch.setattr(offline_rewrite, "_rewrite_shard", rewrite_shard)
    command = ["convert", str(source), str(tmp_path / "b")]
    assert main(command) in (2, 130)
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "b").exists()
    assert main(command) == 0
    assert rewritten == ["model-1.safetensors", "model-2.safetensors", "model-2.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    restore(tmp_path / "b", tmp_path / "c")
    assert digests(tmp_path / "c") == digests(source)
    assert not list((tmp_path / "b").glob("*.tmp"))


def test_a_disk_without_room_is_named_before_the_shards_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(offline_convert, "profiles", lambda *_: pytest.fail("read"))
    usage = offline_folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(offline_folder.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert main(["convert", str(write(tmp_path / "a", weights())), str(tmp_path / "b")]) == 2
    assert "the disk has 0.00 GB free; make room" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_layer_of_several_chunks_is_converted_as_one_of_one(tmp_path, monkeypatch):
    source = sharded(tmp_path / "a", *halves())
    monkeypatch.setattr(reading, "CHUNK_ELEMENTS", 1000)
    convert(source, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "c")
    assert digests(tmp_path / "c") == digests(source)


@pytest.mark.parametrize("config", [{"model_type": "gemma2"}, {"text_config": {"model_type": "gemma3_text"}}])
def test_a_model_whose_activations_leave_fp16s_range_is_named(tmp_path, config):
    folder = write(tmp_path / "a", weights())
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"activations of a gemma\w+ model leave FP16's range .* serve the checkpoint in BF16"
    ):
        convert(folder, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert "leave FP16's range" in inspect(folder, lambda _: None).faults["config.json"]
