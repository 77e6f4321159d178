"""A small random model of each family, served: its exact answers are those of transformers, an independent source.

transformers makes the models, and computes in FP32 what the engines compute in FP16. Runs on a GPU as well (-m "").
"""

import random
import warnings

import pytest
import torch
from processes import run_json

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

pytestmark = pytest.mark.engine

SMALL = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LATENT = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
}
FAMILIES = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {**EXPERTS, "head_dim": 32, "num_experts": 4, "norm_topk_prob": True},
    "glm4_moe": {
        **EXPERTS,
        "head_dim": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
    },
    "deepseek_v2": LATENT,
    "deepseek_v3": {
        **LATENT,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "rope_parameters": YARN,
    },
}
RANKS = {"deepseek_v2": 2 if torch.cuda.device_count() != 1 else 1}  # latent attention is split by heads
TOKENS = 16
ENGINE = {
    "quantization": "nestedfp",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "seed": 0,
    "skip_tokenizer_init": True,
    "additional_config": {"nestedfp": {"gemm_choice": "model", "step_costs": "off"}},  # a GPU would time each model
}


def random_model(name, folder, **sizes):
    """Write a family's model; return it."""
    torch.manual_seed(1)
    config = CONFIG_MAPPING[name](**{**SMALL, **FAMILIES[name], **sizes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Each family's model, its prompts, and the runs of its engine: exact, fast, and pinned in FP8 mode."""
    draw, folder = random.Random(3), tmp_path_factory.mktemp("families")
    models = {name: random_model(name, folder / name) for name in FAMILIES}
    lengths = (5, 17, 90)  # the last: 45 rows of each expert
    prompts = [[draw.randrange(5, 4000) for _ in range(length)] for length in lengths]
    runs = [{"mode": mode, "prompts": [{"prompt_token_ids": each} for each in prompts]} for mode in ("fp16", "fp8")]
    runs.append({**runs[1], "extra_args": {"precision": "fp16"}})
    engines = [{**ENGINE, "model": str(folder / name), "tensor_parallel_size": RANKS.get(name, 1)} for name in FAMILIES]
    found = run_json("engine_scenario.py", {"engines": engines, "runs": runs})["engines"]
    return {name: (models[name].float(), prompts, *each) for name, each in zip(FAMILIES, found, strict=True)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_s_exact_answers_are_those_of_transformers_and_fast_ones_are_near_them(served, family):
    model, prompts, exact, fast, pinned = served[family]
    assert not [run["error"] for run in (exact, fast, pinned) if "error" in run]
    off_fast = 0.5 if EXPERTS.items() <= FAMILIES[family].items() else 0.3  # a router may choose another expert
    for run, off in ((exact, 0.02), (fast, off_fast)):
        for prompt, tokens, best in zip(prompts, run["tokens"], run["logprobs"], strict=True):
            with torch.inference_mode():
                expected = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            first = torch.tensor(best)[:, 0]
            assert (expected.gather(1, torch.tensor(tokens)[:, None])[:, 0] - first).abs().max() < off
            assert (expected.max(-1).values - first).abs().max() < off
    assert pinned["logprobs"] == exact["logprobs"] != fast["logprobs"]
    assert pinned["precision"][0]["completion"] == {"fp16": TOKENS, "fp8": 0}
    assert fast["precision"][0]["completion"] == {"fp16": 0, "fp8": TOKENS}
