"""Engines on a CPU that have more than a dense model: latent attention. Exact answers are plain vLLM's there too.

The models are small and random, or the shipped one.
"""

import json
import shutil

import pytest
import torch
from greedy import assert_same_greedy_tokens
from processes import run_json
from safetensors.torch import save_file
from test_model_kinds import DEEPSEEK
from vllm_parts import MODEL

pytestmark = pytest.mark.engine

PROMPTS = ["Once upon a time there was a king who", "The old woman said to the fox:", "In the middle of the forest"]
PINNED = {"precision": "fp16"}
COMMON = {"enforce_eager": True, "seed": 0}


def run(engine, runs, nested=True):
    quantization = {"quantization": "nestedfp"} if nested else {}
    payload = {"engines": [{**COMMON, **quantization, **engine}], "runs": runs, "nested": nested}
    found = run_json("engine_scenario.py", payload)["engines"][0]
    assert not [each["error"] for each in found if "error" in each]
    return found


def best(run):
    return torch.tensor(run["logprobs"])[:, :, 0]


def test_latent_attention_serves_both_classes(tmp_path):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / file, tmp_path)
    sizes = {"vocab_size": 4096, "hidden_size": 128, "max_position_embeddings": 512}
    experts = {
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
    }
    config = {**DEEPSEEK, **sizes, **experts}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.manual_seed(2)
    shapes = deepseek_shapes(config)
    save_file(
        {name: (torch.randn(s) * 0.05 if len(s) == 2 else torch.ones(s)).half() for name, s in shapes.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    engine = {"model": str(tmp_path), "enable_prefix_caching": False}
    runs = [{"mode": mode, "prompts": PROMPTS} for mode in ("fp16", "fp8")]
    runs.append({"mode": "fp8", "prompts": PROMPTS, "extra_args": PINNED})
    # On a CPU with AMX plain vLLM would take kernels whose results in FP16 are wrong, and differ from run to run.
    (reference,) = run({**engine, "attention_backend": "CPU_MLA"}, runs[:1], nested=False)
    exact, fast, pinned = run(engine, runs)
    assert_same_greedy_tokens(exact, reference)
    assert pinned["logprobs"] == exact["logprobs"] != fast["logprobs"]
    assert (best(fast)[:, 0] - best(exact)[:, 0]).abs().max() < 0.3
    assert fast["precision"][0]["completion"] == {"fp16": 0, "fp8": 16}


def deepseek_shapes(config):
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    inner = config["moe_intermediate_size"]
    shapes = {"model.embed_tokens": (4096, hidden), "model.norm": (hidden,), "lm_head": (4096, hidden)}
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        shapes |= {f"{stem}{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
        attention = {
            "q_a_proj": (config["q_lora_rank"], hidden),
            "q_a_layernorm": (config["q_lora_rank"],),
            "q_b_proj": (heads * (nope + rope), config["q_lora_rank"]),
            "kv_a_proj_with_mqa": (rank + rope, hidden),
            "kv_a_layernorm": (rank,),
            "kv_b_proj": (heads * (nope + value), rank),
            "o_proj": (hidden, heads * value),
        }
        shapes |= {f"{stem}self_attn.{name}": shape for name, shape in attention.items()}
        mlps = {"": config["intermediate_size"]}
        if layer >= config["first_k_dense_replace"]:
            shapes[f"{stem}mlp.gate"] = (config["n_routed_experts"], hidden)
            mlps = {"shared_experts.": inner} | {f"experts.{i}.": inner for i in range(config["n_routed_experts"])}
        for prefix, size in mlps.items():
            shapes |= {f"{stem}mlp.{prefix}{name}_proj": (size, hidden) for name in ("gate", "up")}
            shapes[f"{stem}mlp.{prefix}down_proj"] = (hidden, size)
    return {f"{name}.weight": shape for name, shape in shapes.items()}
