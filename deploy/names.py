"""Every name of vLLM, and every private one of Ray, that the service uses: what to look at for another version of either.

``nestedfp.hooks.compare.missing`` says which of them have moved; a test holds this list against the imports in this folder, and
against the methods that the service's classes override.
"""

# "module:name" -> parameters, in this order, where we override or call by position; None: the name alone matters.
NAMES: dict[str, tuple[str, ...] | None] = {
    # Ray
    "ray._private:services": None,
    "ray._raylet:GcsClient": None,
    "ray.serve._private.common:REPLICA_ID_FULL_ID_STR_PREFIX": None,
    "ray.serve._private.constants:SERVE_PROXY_NAME": None,
    "ray.serve._private.replica:Replica._drain_behind_haproxy": ("self", "min_draining_period_s"),
    "ray.serve._private.replica:Replica._perform_graceful_shutdown": ("self",),
    "ray.serve._private.client:ServeControllerClient.get_serve_details": ("self",),
    "ray.serve._private.logging_utils:get_serve_logs_dir": (),
    "ray.serve.context:_get_global_client": ("raise_if_no_controller_running",),
    # vLLM's front end
    "vllm:SamplingParams": None,
    "vllm:envs": None,
    "vllm.engine.arg_utils:AsyncEngineArgs": None,
    "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config": ("self", "usage_context"),
    "vllm.entrypoints.launchers.api_server.app_state:init_app_state": (
        "engine_client",
        "state",
        "args",
        "supported_tasks",
    ),
    "vllm.entrypoints.launchers.app:build_app": ("args", "supported_tasks", "model_config"),
    "vllm.entrypoints.launchers.cli_args|vllm.entrypoints.common.cli_args:FrontendArgs": None,
    "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest": None,
    "vllm.entrypoints.openai.completion.protocol:CompletionRequest": None,
    "vllm.entrypoints.openai.responses.protocol:ResponsesRequest": None,
    "vllm.entrypoints.serve.engine.protocol:ErrorResponse": None,
    "vllm.entrypoints.serve.exception_handling.error_response:create_error_response": None,
    "vllm.entrypoints.serve.exception_handling.utils:sanitize_message": None,
    "vllm.exceptions:GenerationError": None,
    "vllm.exceptions:VLLMClientError": None,
    "vllm.exceptions:VLLMValidationError": None,
    "vllm.reasoning:ReasoningParserManager": None,
    "vllm.sampling_params:SamplingParams": None,
    "vllm.sampling_params:StructuredOutputsParams": None,
    "vllm.tokenizers:cached_tokenizer_from_config": None,
    "vllm.tool_parsers:ToolParserManager": None,
    # the start of an engine (deploy/replica/vllm_engine.py)
    "vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER": None,
    "vllm.version:__version__": None,
    "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config": (
        "vllm_config",
        "start_engine_loop",
        "usage_context",
        "stat_loggers",
        "enable_log_requests",
        "aggregate_engine_logging",
        "disable_log_stats",
    ),
    "vllm.v1.engine.async_llm:AsyncLLM.reset_mm_cache": ("self",),
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ("self",),
    # what goes from the engine to the socket (deploy/front/streams.py) and into metrics
    "vllm.v1.engine.exceptions:EngineDeadError": None,
    "vllm.v1.engine.exceptions:EngineGenerateError": None,
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs": ("self", "engine_core_outputs"),
    "vllm.v1.engine.output_processor:RequestState": None,
    "vllm.v1.metrics.loggers:PrometheusStatLogger": None,
    "vllm.v1.metrics.stats:IterationStats": None,
    # whether the engine core lives (deploy/replica/vllm_engine.py)
    "vllm.v1.engine.core_client:BackgroundResources.engine_manager": None,
    "vllm.v1.engine.utils:CoreEngineProcManager": None,  # its `processes`, an attribute of instances
    # structured outputs
    "vllm.v1.structured_output:StructuredOutputManager": None,
    "vllm.v1.structured_output.request:StructuredOutputRequest": None,
}
