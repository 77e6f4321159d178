"""Models with parts that have no FP8 mode: which of their layers are nested, and that the load says so.

The models are loaded as an engine's worker loads them, with random weights in shapes that the tests make.
"""

import json
import warnings

import pytest
import torch
from vllm_parts import engine_config, model_parallel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.model_loader import get_model

    from nestedfp.vllm_plugin.coverage import cover

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "float16",
}
QWEN3_MOE = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
DEEPSEEK = {
    **COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def load(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    arguments = {"model": str(folder), "load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True}
    configuration = engine_config(**arguments, max_model_len=128)
    with warnings.catch_warnings(), set_current_vllm_config(configuration):
        warnings.simplefilter("ignore")
        model_parallel(folder)
        return get_model(vllm_config=configuration)


def linears(model):
    return {
        name: bool(getattr(module, "nestedfp", False))
        for name, module in model.named_modules()
        if isinstance(module, LinearBase)
    }


def test_a_router_is_never_nested_and_experts_are_named_at_load(tmp_path):
    model = load(tmp_path, QWEN3_MOE)
    kinds = linears(model)
    assert not any(nested for name, nested in kinds.items() if name.endswith(".gate"))
    assert all(nested for name, nested in kinds.items() if name.endswith((".qkv_proj", ".o_proj")))
    found = cover(model)
    assert 0 < found.fp8_share < 0.5
    assert found.plain["experts"] > found.nested
    assert found.plain["routers"] == 2 * 4 * 64 * 2
    line = found.line()
    assert "have an FP8 mode; always FP16: experts" in line
    assert "although the experts compute in FP16" in line


def test_latent_attention_keeps_the_projection_that_vllm_reads_itself(tmp_path):
    kinds = linears(load(tmp_path, DEEPSEEK))
    assert not any(nested for name, nested in kinds.items() if name.endswith("kv_b_proj"))
    assert all(nested for name, nested in kinds.items() if name.endswith((".o_proj", ".q_b_proj", ".down_proj")))


def test_a_layer_that_computes_in_fp32_stays_plain(tmp_path):
    from vllm.model_executor.layers.linear import ReplicatedLinear

    model_config = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(model_config))
    configuration = engine_config(model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True)
    with set_current_vllm_config(configuration):
        model_parallel(tmp_path)
        head = ReplicatedLinear(
            64, 2, params_dtype=torch.float32, quant_config=configuration.quant_config, prefix="score"
        )
    assert head.weight.dtype == torch.float32
    assert type(head.quant_method).__name__ == "UnquantizedLinearMethod"


@pytest.mark.parametrize("method", ["reload_weights", "start_weight_update", "update_weights"])
def test_weights_of_a_running_worker_are_not_replaced(method):
    from nestedfp.vllm_plugin.worker import NestedFPWorker

    with pytest.raises(RuntimeError, match="start another engine with the new checkpoint"):
        getattr(NestedFPWorker, method)(object())
