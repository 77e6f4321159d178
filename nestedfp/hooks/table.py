"""Every name of vLLM that the plugin uses, by owner and reason. Pure: data."""

import re
from typing import NamedTuple

Parameters = tuple[str, ...]


class Hooks(NamedTuple):
    """Names that one part of the plugin uses for one reason."""

    owner: str  # the folder or file of the plugin that must follow when they change
    reason: str  # why the plugin needs them
    # With the parameters that are counted on, in this order; None: the name alone matters.
    names: dict[str, Parameters | None]


# Part of the plugin and reason, then a name a line, ``module:path``, with its parameters; a line that ends with a comma goes on.
# ``module:Class#name`` is an attribute of its instances; of names between ``|`` one must be there. A ``*`` before it: vLLM's own
# documentation has it, for users and makers of plugins: the configuration's reference (vllm.config exports them), out-of-tree
# quantization methods, model loaders, model code, custom ops, vLLM IR, attention backends, CUDA graphs, and the worker's interface
# under platform plugins. All others are private.
TEXT = """
wiring: gives every engine with nested weights this scheduler, worker, SLO and routes
    *vllm.engine.arg_utils:EngineArgs.create_engine_config(self, usage_context)
    *vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER
    *vllm.config:SchedulerConfig.get_scheduler_cls(self)
    vllm:plugins.load_endpoint_plugins(supported_tasks)
    *vllm.config:VllmConfig
    *vllm.config:CompilationMode.VLLM_COMPILE
    *vllm.version:__version__
    *vllm.platforms:current_platform
    *vllm.logger:init_logger(name)
kv_cache: chooses an attention that reads an FP8 KV cache, and one for FP16 on a CPU
    *vllm.v1.attention.backends.registry:AttentionBackendEnum.TRITON_ATTN
    *vllm.v1.attention.backends.registry:AttentionBackendEnum.CPU_MLA
frontend: checks pins and token ids before the engine, and takes pins from headers
    vllm.v1.engine.input_processor:InputProcessor.process_inputs(self, request_id, prompt, params)
    vllm.exceptions:VLLMValidationError
    vllm.v1.engine:EngineCoreRequest#mm_features
frontend: counts a request's tokens by precision
    vllm.v1.engine.output_processor:OutputProcessor.add_request(self, request, prompt, parent_req, request_index)
    vllm.v1.engine.output_processor:OutputProcessor.process_outputs(self, engine_core_outputs)
    vllm.v1.engine.output_processor:OutputProcessor#request_states
scheduling: follows a request from its arrival to its end
    vllm.v1.core.sched.scheduler:Scheduler.add_request(self, request)
    vllm.v1.core.sched.scheduler:Scheduler._preempt_request(self, request)
    vllm.v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead(self, request, num_computed_tokens,
        num_new_tokens)
    vllm.v1.core.sched.scheduler:Scheduler._free_request(self, request)
    vllm.v1.core.sched.scheduler:Scheduler#requests
    vllm.v1.core.sched.scheduler:Scheduler#running
    vllm.v1.request:Request#num_computed_tokens
    vllm.v1.request:Request#num_output_placeholders
    vllm.v1.request:RequestStatus.PREEMPTED
scheduling/waiting: plans steps by row from the requests that wait
    vllm.v1.core.sched.scheduler:Scheduler#waiting
    vllm.v1.core.sched.scheduler:Scheduler#skipped_waiting|kv_holding_waiting
    vllm.v1.core.sched.scheduler:Scheduler#current_step
    vllm.v1.request:Request#next_decode_eligible_step
scheduling: sets the precision of each step, and times it
    vllm.v1.core.sched.scheduler:Scheduler.__init__(self, vllm_config, kv_cache_config, structured_output_manager)
    vllm.v1.core.sched.scheduler:Scheduler.schedule(self)
    vllm.v1.core.sched.scheduler:Scheduler.update_from_output(self, scheduler_output, model_runner_output)
    vllm.v1.core.sched.scheduler:Scheduler#max_num_scheduled_tokens
scheduling: hands directives and measured step costs to the scheduler
    vllm.v1.engine.core:EngineCore.add_request(self, request)
    vllm.v1.engine.core:EngineCore#scheduler
    vllm.v1.engine.core:EngineCore#model_executor
scheduling/exact_blocks: keeps cache blocks of FP8 steps from exact requests
    vllm.v1.core.sched.scheduler:Scheduler._get_local_prefix_cache_hit(self, request)
    vllm.v1.core.sched.scheduler:Scheduler#kv_cache_manager
    vllm.v1.core.kv_cache_manager:KVCacheManager.get_blocks(self, request_id)
    vllm.v1.core.kv_cache_manager:KVCacheManager#block_pool
    vllm.v1.core.kv_cache_manager:KVCacheManager.usage
    vllm.v1.core.block_pool:BlockPool.cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks,
        block_size)
    vllm.v1.core.block_pool:BlockPool.cache_partial_block(self, request, block, num_tokens)
    vllm.v1.core.block_pool:BlockPool.get_cached_block(self, block_hash, kv_cache_group_ids)
    vllm.v1.core.block_pool:BlockPool.move_block_hashes(self, src_block, dst_block)
    vllm.v1.core.block_pool:BlockPool.evict_blocks(self, block_ids)
weights: makes nested layers a quantisation method
    *vllm.model_executor.layers.quantization:register_quantization_config(quantization)
    *vllm.model_executor.layers.quantization.base_config:QuantizationConfig.get_quant_method(self, layer, prefix)
    *vllm.model_executor.layers.quantization.base_config:QuantizeMethodBase
    *vllm.model_executor.layers.linear:LinearBase
    *vllm.model_executor.layers.linear:LinearMethodBase.create_weights(self, layer)
    *vllm.model_executor.layers.linear:UnquantizedLinearMethod
    vllm.lora.layers.utils:_get_lora_device(base_layer)
    vllm.model_executor.layers.fused_moe:RoutedExperts
    *vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod
    *vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding
    vllm.model_executor.model_loader.reload.layerwise:initialize_online_processing(layer)
    *vllm.config:get_current_vllm_config()
    vllm.distributed.parallel_state:get_tp_group()
weights/experts/experts: makes nested experts a quantisation method; their FP8 steps on a GPU use vLLM's kernels
    *vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase.apply(self, layer, x,
        topk_weights, topk_ids)
    vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase.apply_monolithic(self, layer, x,
        router_logits)
    vllm.model_executor.layers.quantization.online.moe_base:OnlineMoEMethodBase.create_weights(self, layer,
        num_experts)
    vllm.model_executor.layers.fused_moe.experts:cpu_moe
    vllm.model_executor.layers.fused_moe:fused_moe._prepare_expert_assignment(topk_ids, config, num_tokens,
        top_k_num, global_num_experts, expert_map)
    vllm.model_executor.layers.fused_moe:fused_moe.invoke_fused_moe_triton_kernel(A, B, C, A_scale, B_scale,
        topk_weights)
    vllm.model_executor.layers.fused_moe.activation:MoEActivation.SILU
    vllm.model_executor.layers.fused_moe.activation:apply_moe_activation(activation, output, input)
    vllm.model_executor.layers.fused_moe.moe_align_block_size:moe_align_block_size(topk_ids, block_size,
        num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts)
    vllm:_custom_ops.moe_sum(input, output)
    vllm:_custom_ops.scaled_fp8_quant(input)
weights: lets norms and activations write E4M3 codes
    vllm.compilation.passes.inductor_pass:InductorPass
    *vllm.ir.ops:rms_norm
    *vllm.ir.ops:fused_add_rms_norm
    *vllm.model_executor.layers.activation:SiluAndMul.forward_native(x)
weights/library_route: multiplies long steps by vLLM's library on GPUs other than Hopper
    vllm:_custom_ops.cutlass_scaled_mm(a, b, scale_a, scale_b, out_dtype)
evaluation: runs the engines of `nestedfp eval`
    *vllm:LLM
    *vllm:SamplingParams
loading: refuses a checkpoint that leaves parameters unset or not finite
    vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model(self, vllm_config, model_config)
    *vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_weights(self, model, model_config)
    *vllm.config:set_current_vllm_config(vllm_config)
    vllm.model_executor.layers.attention_layer_base:AttentionLayerBase.get_attn_backend(self)
    vllm.model_executor.layers.attention_layer_base:AttentionLayerBase.get_kv_cache_spec(self, vllm_config)
ranks: runs each step in its precision on every rank
    vllm.v1.worker.gpu_worker:Worker
    vllm.v1.worker.cpu_worker:CPUWorker
    *vllm.v1.worker.worker_base:WorkerBase.add_lora(self, lora_request)
    *vllm.v1.worker.worker_base:WorkerBase.execute_model(self, scheduler_output)
    *vllm.v1.worker.worker_base:WorkerBase.sample_tokens(self, grammar_output)
    *vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model(self)
    vllm.v1.outputs:AsyncModelRunnerOutput.get_output(self)
    vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.propose(self, input_batch)
    vllm.v1.worker.gpu.input_batch:InputBatch.make_dummy(num_reqs, num_tokens)
    vllm.v1.worker.gpu.input_batch:InputBatch#input_ids
    vllm.v1.worker.gpu.input_batch:InputBatch#is_padding
    vllm.v1.worker.gpu.model_runner:GPUModelRunner#vocab_size
    vllm.v1.worker.gpu.model_runner:GPUModelRunner#speculator
    vllm.v1.worker.gpu.model_runner:GPUModelRunner#decode_query_len
    vllm.v1.worker.gpu.model_runner:GPUModelRunner#step_timing
    vllm.v1.core.kv_cache_utils|vllm.v1.core.kv_cache_planning:check_enough_kv_cache_memory(vllm_config,
        kv_cache_spec, available_memory)
lora/cpu_slots: keeps the last adapter from rows without one
    vllm.lora:model_manager.from_layer(layer, max_loras)
    vllm.lora:model_manager.from_layer_logits_processor(layer, lm_head, max_loras)
ranks/cpu_rotary: rotates queries whose heads are an axis of their own
    *vllm.model_executor.layers.rotary_embedding:RotaryEmbedding.forward_native(self, positions, query, key)
    vllm.model_executor.layers.rotary_embedding:RotaryEmbedding.forward_cpu(self, positions, query, key)
ranks/row_classes: puts exact rows where the operators expect them
    vllm.v1.worker.gpu.model_runner:sort_batch_req_ids(num_tokens_per_req, draft_tokens, decode_query_len)
    vllm.v1.worker.cpu_model_runner:CPUModelRunner._model_forward(self)
    vllm.v1.attention.backend:AttentionMetadataBuilder.reorder_batch_threshold
ranks/graphs: captures CUDA graphs for both precisions and for steps with prompts
    *vllm.config:CUDAGraphMode
    *vllm.v1.attention.backend:AttentionCGSupport.ALWAYS
    vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor(cg_mode, num_tokens, num_reqs,
        uniform_token_count, max_query_len, num_active_loras)
    vllm.v1.worker.gpu.cudagraph_utils:ModelCudaGraphManager.dispatch(self, num_reqs, num_tokens,
        uniform_token_count, num_active_loras, max_query_len)
    vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates(self)
    vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager#_candidates
    vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager#_capture_descs
    vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager#_graphs_captured
"""


def _parsed(part: str) -> Hooks:
    head, *lines = part.splitlines()
    owner, _, reason = head.partition(": ")
    split = (line.strip().removeprefix("*").rstrip(")").partition("(") for line in lines)
    return Hooks(
        owner,
        reason,
        {name: tuple(listed.split(", ")) if listed else () if bracket else None for name, bracket, listed in split},
    )


HOOKS = tuple(map(_parsed, re.split(r"\n(?=\S)", re.sub(r",\s+", ", ", TEXT).strip())))
PUBLIC = frozenset(re.findall(r"^ +\*([^(\n]+)", TEXT, re.MULTILINE))
