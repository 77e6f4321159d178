"""A model that its checkpoint does not fill with finite numbers is not served; one that vLLM may load is.

The checkpoints have the names of Hugging Face's and random weights. Each is loaded as an engine's worker loads it.
"""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model_kinds import LFM2_MOE, QWEN3_MOE, loaded
from vllm_parts import MODEL

from nestedfp.checkpoint import CheckpointError
from nestedfp.offline.convert import convert

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from nestedfp.vllm_plugin.loading.load_check import LoadCheck, Writes, checked

pytestmark = pytest.mark.usefixtures("experts_group", "dtype_again")

KINDS = {
    "nested": {},
    "plain": {"quantization": None},
}
ATTENTION = {f"self_attn.{name}_proj.weight": (64, 64) for name in "qkvo"}
EXPERTS = {
    f"experts.{i}.{name}.weight": shape
    for i in range(4)
    for name, shape in {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}.items()
}
QWEN_LAYER = {
    **ATTENTION,
    **{f"self_attn.{name}_norm.weight": (32,) for name in "qk"},
    **{f"{name}_layernorm.weight": (64,) for name in ("input", "post_attention")},
    "mlp.gate.weight": (4, 64),
    **{f"mlp.{name}": shape for name, shape in EXPERTS.items()},
}
MOE = {
    "model.embed_tokens.weight": (128, 64),
    "lm_head.weight": (128, 64),
    "model.norm.weight": (64,),
    **{f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in QWEN_LAYER.items()},
}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def shipped(layers=2, **changes):
    """The shipped model's first layers."""
    config = {**json.loads((MODEL / "config.json").read_text()), "num_hidden_layers": layers, **changes}
    tensors = load_file(MODEL / "model.safetensors")
    kept = tuple(f"model.layers.{layer}." for layer in range(layers))
    return config, {name: it for name, it in tensors.items() if ".layers." not in name or name.startswith(kept)}


def moe():
    torch.manual_seed(0)
    return QWEN3_MOE, {name: (torch.randn(shape) * 0.1).half() for name, shape in MOE.items()}


def biased():
    """A model with biases in q, k and v, embeddings that are tied, and tensors that the model class passes over."""
    config, tensors = shipped(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    for layer in range(config["num_hidden_layers"]):
        for name in "qkv":
            stem = f"model.layers.{layer}.self_attn.{name}_proj"
            tensors[f"{stem}.bias"] = torch.zeros(len(tensors[f"{stem}.weight"])).half()
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.full((8,), torch.inf)
    return config, tensors


def load(folder, kind="nested", **arguments):
    with checked():
        return loaded(folder, **KINDS[kind], **arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [shipped, moe, biased])
def test_whole_checkpoints_load(tmp_path, make, kind):
    load(write(tmp_path / "a", *make()), kind)


@pytest.mark.parametrize("beyond", [0, 1, 100_000])
def test_converted_checkpoints_load(tmp_path, beyond):
    config, tensors = shipped()
    tensors["model.layers.1.self_attn.k_proj.weight"].view(-1)[:beyond] = 2.5
    convert(write(tmp_path / "a", config, tensors), tmp_path / "b")
    load(tmp_path / "b")


def test_a_model_of_vectors_loads_without_the_head_that_it_does_not_have(tmp_path):
    config, tensors = shipped(tie_word_embeddings=False)
    load(write(tmp_path / "a", config, tensors), runner="pooling")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight \(0 of"):
        load(tmp_path / "a")


def test_a_shared_head_may_stand_in_the_checkpoint_too(tmp_path):
    config, tensors = shipped(tie_word_embeddings=True)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    load(write(tmp_path / "a", config, tensors))


def test_random_weights_need_no_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LFM2_MOE))
    load(tmp_path, load_format="dummy")


LAYER = "model.layers.0."
LOST = {
    "a layer": ([LAYER + "self_attn.o_proj.weight"], r"self_attn\.o_proj\.weight \(0 of 65536 elements\)"),
    "half of one": (
        [LAYER + "mlp.up_proj.weight"],
        r"gate_up_proj\.weight \(229376 of 458752 elements of gate_proj and up_proj",
    ),
    "a part of three": ([LAYER + "self_attn.k_proj.weight"], r"qkv_proj\.weight \(98304 of 131072 elements"),
    "embeddings": (["model.embed_tokens.weight"], r"model\.embed_tokens\.weight \(0 of"),
    "a norm": (["model.norm.weight"], r"model\.norm\.weight \(0 of 256 elements\)"),
    "several": ([LAYER + "input_layernorm.weight", LAYER + "mlp.down_proj.weight"], "2 parameters of the model"),
}


@pytest.mark.parametrize(("lost", "kind"), [*((lost, "nested") for lost in LOST), ("half of one", "plain")])
def test_what_a_checkpoint_lacks_is_named(tmp_path, lost, kind):
    names, said = LOST[lost]
    config, tensors = shipped()
    for name in names:
        del tensors[name]
    with pytest.raises(CheckpointError, match=said):
        load(write(tmp_path / "a", config, tensors), kind)


@pytest.mark.parametrize("name", ["weight", "model.norm.weight", LAYER + "mlp.up_proj", LAYER + "self_attn.o_proj"])
def test_what_a_converted_checkpoint_lacks_is_named(tmp_path, name):
    convert(write(tmp_path / "plain", *shipped()), tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    kept = {each: tensor for each, tensor in tensors.items() if not each.startswith(name)}
    save_file(kept, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    if len(kept) == len(tensors):
        load(tmp_path / "a")
        return
    with pytest.raises(CheckpointError, match="the checkpoint lacks weights of"):
        load(tmp_path / "a")


@pytest.mark.parametrize("name", [LAYER + "mlp.experts.3.up_proj.weight", LAYER + "mlp.gate.weight", "lm_head.weight"])
def test_what_a_checkpoint_with_experts_lacks_is_named(tmp_path, name):
    config, tensors = moe()
    del tensors[name]
    with pytest.raises(CheckpointError, match="the checkpoint lacks weights of 1 parameters"):
        load(write(tmp_path / "a", config, tensors))


BAD = {
    "nan": lambda tensor: tensor.view(-1)[-1:].fill_(torch.nan),
    "infinity": lambda tensor: tensor.view(-1)[-1:].fill_(-torch.inf),
}


@pytest.mark.parametrize(
    ("name", "kind", "bad"),
    [
        ("model.embed_tokens.weight", "nested", "nan"),
        ("model.norm.weight", "plain", "nan"),
        ("model.norm.weight", "plain", "infinity"),
        (LAYER + "self_attn.q_proj.bias", "nested", "infinity"),
        (LAYER + "mlp.down_proj.weight", "nested", "nan"),
        (LAYER + "mlp.down_proj.weight", "plain", "infinity"),
    ],
)
def test_a_value_that_is_none_is_named(tmp_path, name, bad, kind):
    config, tensors = biased()
    BAD[bad](tensors[name])
    parameter = name.replace("q_proj", "qkv_proj").removesuffix(".weight")
    with pytest.raises(ValueError, match=rf"{parameter}.*: 1 of \d+ weights are NaN or infinite"):
        load(write(tmp_path / "a", config, tensors), kind)


@pytest.mark.parametrize(
    "name", [LAYER + "mlp.experts.2.down_proj.weight", LAYER + "mlp.gate.weight", "lm_head.weight"]
)
def test_a_value_that_is_none_is_named_in_experts_routers_and_heads(tmp_path, name):
    config, tensors = moe()
    BAD["nan"](tensors[name])
    with pytest.raises(ValueError, match=r"1 of .* weights are NaN or infinite as (torch\.float16|FP16)"):
        load(write(tmp_path / "a", config, tensors))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("model.embed_tokens.weight", torch.bfloat16),
        ("model.norm.weight", torch.float32),
        (LAYER + "mlp.down_proj.weight", torch.bfloat16),
    ],
)
def test_a_value_beyond_the_range_of_fp16_is_named(tmp_path, name, dtype):
    config, tensors = shipped()
    tensors = {each: tensor.to(dtype) for each, tensor in tensors.items()}
    load(write(tmp_path / "a", config, tensors))
    tensors[name].view(-1)[3] = 70000.0
    for kind in ("nested", "plain"):
        with pytest.raises(
            ValueError, match=rf"{name.removesuffix('.weight')}.*: 1 of \d+ weights are NaN or infinite"
        ):
            load(write(tmp_path / "a", config, tensors), kind)


@pytest.mark.engine
def test_an_engine_says_what_its_checkpoint_lacks(tmp_path):
    from test_engine import scenario

    shutil.copytree(MODEL, tmp_path / "a")
    config, tensors = shipped()
    del tensors[LAYER + "self_attn.o_proj.weight"]
    write(tmp_path / "a", config, tensors)
    with pytest.raises(
        AssertionError, match=r"the checkpoint lacks weights of 1 parameters of the model: .*o_proj\.weight"
    ):
        scenario({"model": str(tmp_path / "a")}, [{"prompts": ["Once"]}])


class Embedding(VocabParallelEmbedding):
    """One as it was allocated."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.full((4, 2), torch.nan).half())


@pytest.mark.parametrize(("is_drafter", "missing"), [(True, 1), (False, 3)])
def test_a_drafter_may_lack_its_embedding_and_its_map_of_tokens(is_drafter, missing):
    model = torch.nn.Module()
    model.embed_tokens, model.norm = Embedding(), torch.nn.RMSNorm(4)
    model.draft_to_target = torch.nn.Parameter(torch.zeros(4, dtype=torch.long), requires_grad=False)
    writes = Writes()
    check = LoadCheck(model, writes, is_drafter=is_drafter)
    with pytest.raises(CheckpointError, match=f"lacks weights of {missing} parameters.*norm.weight"):
        check.require(set())
    with writes, torch.no_grad():
        model.norm.weight.fill_(2.0)
    if is_drafter:
        check.require(set())
