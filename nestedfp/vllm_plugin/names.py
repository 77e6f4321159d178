"""Every name of vLLM that the plugin uses, and the parameters that it counts on: what to look at for another version of vLLM.

``missing`` says which of them have moved. A test holds this list against the imports in this folder.
"""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

# "module:name" -> parameters, in this order, where we override, wrap or call by position; None: the name alone matters.
NAMES: dict[str, tuple[str, ...] | None] = {
    # front end
    "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.to_beam_search_params": ("self",),
    "vllm.entrypoints.openai.completion.protocol:CompletionRequest.to_beam_search_params": ("self",),
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self",),
    "vllm.exceptions:VLLMValidationError": None,
    "vllm.outputs:PoolingRequestOutput": None,
    "vllm.outputs:RequestOutput.add": ("self", "next_output", "aggregate"),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": ("self", "request_id", "prompt", "params"),
    "vllm.v1.engine.output_processor:OutputProcessor.add_request": ("self", "request"),
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs": ("self", "engine_core_outputs"),
    "vllm.v1.engine.output_processor:RequestState._new_request_output": (
        "self",
        "external_req_id",
        "outputs",
        "finished",
    ),
    # scheduler
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler": None,
    "vllm.v1.core.sched.interface:PauseState.UNPAUSED": None,
    "vllm.v1.core.sched.output:SchedulerOutput": None,
    "vllm.v1.core.sched.request_queue:FCFSRequestQueue": None,
    "vllm.v1.core.sched.request_queue:create_request_queue": ("policy",),
    "vllm.v1.core.sched.scheduler:Scheduler.add_request": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": ("self",),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:Scheduler._free_request": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler._get_local_prefix_cache_hit": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler._handle_stopped_request": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler._is_blocked_waiting_status": ("status",),
    "vllm.v1.core.sched.scheduler:Scheduler._preempt_request": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead": (
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
    ),
    "vllm.v1.core.sched.scheduler:Scheduler._try_promote_blocked_waiting_request": ("self", "request"),
    "vllm.v1.core.sched.scheduler:Scheduler._update_request_as_session": ("self", "session", "update"),
    "vllm.v1.engine:EngineCoreRequestType.UTILITY": None,
    "vllm.v1.engine.core:EngineCore": None,
    "vllm.v1.engine.core:EngineCoreProc._handle_client_request": ("self", "request_type", "request"),
    "vllm.v1.engine.core:EngineCoreProc.process_input_sockets": ("self",),
    "vllm.v1.request:Request.update_block_hashes": ("self",),
    "vllm.v1.request:RequestStatus.PREEMPTED": None,
    # prefix cache
    "vllm.v1.core.block_pool:BlockHashToBlockMap.get_one_block": ("self", "key"),
    "vllm.v1.core.block_pool:BlockPool.cache_full_blocks": (
        "self",
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
    ),
    "vllm.v1.core.block_pool:BlockPool.cache_partial_block": ("self", "request", "block", "num_tokens"),
    "vllm.v1.core.block_pool:BlockPool.get_cached_block": ("self", "block_hash", "kv_cache_group_ids"),
    "vllm.v1.core.block_pool:BlockPool.move_block_hashes": ("self", "src_block", "dst_block"),
    "vllm.v1.core.kv_cache_utils:KVCacheBlock": None,
    "vllm.v1.core.kv_cache_utils:make_block_hash_with_group_id": ("block_hash", "group_id"),
    # quantisation and layers
    "vllm.compilation.passes.inductor_pass:InductorPass.hash_source": None,
    "vllm.compilation.passes.inductor_pass:enable_fake_mode": ("fn",),
    "vllm.compilation.passes.vllm_inductor_pass:VllmPatternMatcherPass.match_table": None,
    "vllm.config:VllmConfig": None,
    "vllm.config:get_current_vllm_config": (),
    "vllm.config.compilation:CUDAGraphMode": None,
    "vllm.config.compilation:CompilationMode.VLLM_COMPILE": None,
    "vllm.config:set_current_vllm_config": ("vllm_config",),
    "vllm.distributed:parallel_state": None,
    "vllm.distributed.parallel_state:get_pp_group": (),
    "vllm.distributed.parallel_state:get_tp_group": (),
    "vllm.ir.ops.layernorm:rms_norm": None,
    "vllm.ir.ops.layernorm:fused_add_rms_norm": None,
    "vllm.logger:init_logger": ("name",),
    "vllm.model_executor.layers.activation:SiluAndMul.forward_native": ("x",),
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase.get_attn_backend": ("self",),
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase.get_kv_cache_spec": ("self", "vllm_config"),
    "vllm.model_executor.layers.fused_moe:RoutedExperts": None,
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod": None,
    "vllm.model_executor.layers.linear:LinearBase": None,
    "vllm.model_executor.layers.linear:LinearMethodBase.create_weights": ("self", "layer"),
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod": None,
    "vllm.model_executor.layers.quantization:QUANTIZATION_METHODS": None,
    "vllm.model_executor.layers.quantization:register_quantization_config": ("quantization",),
    "vllm.model_executor.layers.quantization.base_config:QuantizationConfig.get_quant_method": (
        "self",
        "layer",
        "prefix",
    ),
    "vllm.model_executor.layers.quantization.base_config:QuantizeMethodBase": None,
    "vllm.model_executor.layers.quantization.utils.quant_utils:is_layer_skipped": (
        "prefix",
        "ignored_layers",
        "fused_mapping",
    ),
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding": None,
    "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod": None,
    "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model": ("self", "vllm_config", "model_config"),
    "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_weights": ("self", "model", "model_config"),
    "vllm.model_executor.model_loader.utils:initialize_model": ("vllm_config",),
    "vllm.model_executor.model_loader.reload.layerwise:initialize_online_processing": ("layer",),
    "vllm.model_executor.parameter:ModelWeightParameter": None,
    # workers
    "vllm.v1.outputs:AsyncModelRunnerOutput.get_output": ("self",),
    "vllm.v1.core.kv_cache_utils:check_enough_kv_cache_memory": ("vllm_config", "kv_cache_spec", "available_memory"),
    "vllm.platforms:current_platform": None,
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._bookkeeping_sync": ("self",),
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._sample": ("self",),
    "vllm.v1.worker.cpu_worker:CPUWorker.compile_or_warm_up_model": ("self",),
    "vllm.v1.attention.backend:AttentionCGSupport.ALWAYS": None,
    "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder.build": (
        "self",
        "common_prefix_len",
        "common_attn_metadata",
        "fast_build",
    ),
    "vllm.v1.worker.gpu:cudagraph_utils": None,
    "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor": (
        "cg_mode",
        "num_tokens",
        "num_reqs",
        "uniform_token_count",
        "max_query_len",
        "num_active_loras",
    ),
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates": ("self",),
    "vllm.v1.worker.gpu:model_runner": None,
    "vllm.v1.worker.gpu.model_runner:sort_batch_req_ids": (
        "num_tokens_per_req",
        "draft_tokens",
        "decode_query_len",
    ),
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._model_forward": ("self",),
    "vllm.v1.attention.backend:AttentionMetadataBuilder.reorder_batch_threshold": None,
    "vllm.v1.worker.gpu_worker:Worker.execute_model": ("self", "scheduler_output"),
    "vllm.v1.worker.gpu_worker:Worker.sample_tokens": ("self", "grammar_output"),
    "vllm.version:__version__": None,
}


def missing(names: Mapping[str, tuple[str, ...] | None] = NAMES) -> list[str]:
    """Return what is not there or takes other parameters, one sentence each."""
    return [problem for name, wanted in names.items() if (problem := _problem(name, wanted))]


def _problem(name: str, wanted: tuple[str, ...] | None) -> str | None:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{module}.{part}")
    except (ImportError, AttributeError):
        return f"{name} is not there"
    if wanted is None:
        return None
    parameters = _parameters(found)
    return None if parameters[: len(wanted)] == list(wanted) else f"{name} takes {parameters}, expected {list(wanted)}"


def _parameters(found: Any) -> Iterable[str]:
    return list(inspect.signature(inspect.unwrap(found)).parameters)
