"""Models with parts that have no FP8 mode: which of their layers are nested, and that the load says so.

The models are loaded as an engine's worker loads them, with random weights in shapes that the tests make.
"""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm_parts import MODEL, Engine, FrontEnd, engine_config, engine_request, model_parallel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.model_loader import get_model

    from nestedfp.vllm_plugin.frontend import collected
    from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts
    from nestedfp.vllm_plugin.weights.coverage import cover, report

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
LFM2_MOE = {
    **COMMON,
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "layer_types": ["full_attention", "full_attention"],
    "norm_eps": 1e-5,
    "num_dense_layers": 1,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.0,
}


def load(folder, config, **arguments):
    (folder / "config.json").write_text(json.dumps(config))
    return loaded(folder, load_format="dummy", **arguments)


def loaded(folder, **arguments):
    arguments = {"model": str(folder), "skip_tokenizer_init": True, "enforce_eager": True, **arguments}
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
    model = load(tmp_path, QWEN3_MOE, additional_config={"nestedfp": {"experts": "plain"}})
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


def test_the_router_of_an_lfm2_moe_is_never_nested_and_its_other_layers_are(tmp_path):
    model = load(tmp_path, LFM2_MOE)
    kinds = linears(model)
    assert [nested for name, nested in kinds.items() if name.endswith(".gate")] == [False], "of the layer with experts"
    assert all(nested for name, nested in kinds.items() if name.endswith((".qkv_proj", ".out_proj", ".w13", ".w2")))
    found = cover(model)
    assert found.plain["routers"] == 4 * 64 * 2
    assert found.experts > 0 == found.plain["experts"]


def test_latent_attention_keeps_the_projection_that_vllm_reads_itself(tmp_path):
    kinds = linears(load(tmp_path, DEEPSEEK))
    assert not any(nested for name, nested in kinds.items() if name.endswith("kv_b_proj"))
    assert all(nested for name, nested in kinds.items() if name.endswith((".o_proj", ".q_b_proj", ".down_proj")))


def test_latent_attention_is_never_given_to_kernels_that_are_wrong_in_fp16(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    given = {"model": str(tmp_path), "load_format": "dummy", "skip_tokenizer_init": True}
    config = engine_config(**given, spec_method="ngram", spec_tokens=3)  # which vLLM takes out of the arguments
    assert config.attention_config.backend.name == "CPU_MLA"
    assert config.speculative_config.num_speculative_tokens == 3
    for chosen in (
        {"attention_backend": "AMX_MLA"},
        {"attention_config": {"backend_per_kind": {"mla_attention": "AMX_MLA"}}},
    ):
        with pytest.raises(ValueError, match="'CPU_MLA' for latent attention on a CPU"):
            engine_config(**given, **chosen)


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


def test_a_model_of_which_no_layer_can_be_nested_runs_and_discloses_fp16_under_a_directive_of_fp8(tmp_path):
    for file in ("config.json", "generation_config.json"):
        shutil.copy(MODEL / file, tmp_path)
    tensors = load_file(MODEL / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name] = torch.full_like(tensors[name], 2.0)  # all beyond 1.75: too many for an outlier list
    save_file(tensors, tmp_path / "model.safetensors")
    model = loaded(tmp_path)
    assert not any(linears(model).values())
    share = report(model).fp8_share
    assert share == 0.0

    def served(ranks):
        """Whether the engine says that it has no FP8 mode, and what it discloses of a request."""
        engine, front = Engine(), FrontEnd()
        engine.scheduler.nestedfp_take_fp8_shares(ranks)
        engine.direct("fp8")
        request = engine_request("a", 20)
        with collected() as counts:
            front.add(request)
        engine.add(request)
        while engine.scheduler.has_unfinished_requests():
            front.receive(engine.step())
        return engine.scheduler.nestedfp_stats()["fp16_only"], counts["a"]

    assert served([share]) == (True, TokenCounts(prompt_fp16=20, completion_fp16=4))
    assert served([share, 0.5]) == (False, TokenCounts(prompt_fp8=20, completion_fp8=4)), "one rank has some"


@pytest.mark.parametrize("method", ["reload_weights", "start_weight_update", "update_weights"])
def test_weights_of_a_running_worker_are_not_replaced(method):
    from nestedfp.vllm_plugin.ranks.worker import NestedFPWorker

    with pytest.raises(RuntimeError, match="start another engine with the new checkpoint"):
        getattr(NestedFPWorker, method)(object())


def test_a_models_own_attention_layers_say_whether_whole_steps_can_be_one_graph(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.v1.attention.backend import AttentionCGSupport

        from nestedfp.vllm_plugin.ranks.graphs import _takes_any_queries
    layers = [module for module in load(tmp_path, QWEN3_MOE).modules() if isinstance(module, AttentionLayerBase)]
    assert len(layers) == QWEN3_MOE["num_hidden_layers"]
    config = engine_config()
    assert not any(_takes_any_queries(layer, config) for layer in layers), "attention on a CPU"
    builder = layers[0].get_attn_backend().get_builder_cls()
    monkeypatch.setattr(builder, "_cudagraph_support", AttentionCGSupport.ALWAYS)
    assert all(_takes_any_queries(layer, config) for layer in layers)


def test_the_families_that_vllm_refuses_in_fp16_are_known():
    from vllm.config import model

    from nestedfp.eligible import BEYOND

    assert set(model._FLOAT16_NOT_SUPPORTED_MODELS) <= set(BEYOND)
