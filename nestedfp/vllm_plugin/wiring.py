"""Makes sure that an engine with our weights also has our scheduler and our worker.

``install`` wraps ``EngineArgs.create_engine_config``, the one place through which every front end (``LLM``, ``AsyncLLM``,
``vllm serve``, a replica) makes its configuration: what the user left open is filled in, what cannot work is refused
before any process starts. ``require_our_parts`` is the last line of defence inside the worker.
"""

import copy
import importlib
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestedfp.checkpoint import fingerprint, read_weights
from nestedfp.eligible import ALL_LAYERS, REMEDY, require_fp8_layers
from nestedfp.hooks import around, versions
from nestedfp.kernels import gpu_kernels
from nestedfp.vllm_plugin import drafts, kv_cache, short_logs
from nestedfp.vllm_plugin.options import OPTIONS_KEY, USUAL_SLO_MS, PluginOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SCHEDULER = "nestedfp.vllm_plugin.scheduling.scheduler.make_scheduler"
WORKER = "nestedfp.vllm_plugin.ranks.worker.NestedFPWorker"
PLATFORM_WORKERS = ("auto", "vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")


def install() -> None:
    """Wrap ``EngineArgs.create_engine_config``. Idempotent."""
    from vllm.engine.arg_utils import EngineArgs

    around.put(EngineArgs, "create_engine_config", create_engine_config)


def create_engine_config(original: Any, given: Any, usage_context: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return the finished configuration of an engine's arguments."""
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    if given.quantization == "nestedfp" and given.dtype == "auto":
        given.dtype = "float16"
    untouched = copy.deepcopy(given) if current_platform.is_cpu() else given  # the call fills in what it derives
    try:
        config = original(given, usage_context, *args, **kwargs)
        chosen, model = config.attention_config.backend or config.attention_config.backend_per_kind, config.model_config
        if model.quantization == "nestedfp" and model.use_mla and current_platform.is_cpu() and not chosen:
            config = original(replace(untouched, attention_backend="CPU_MLA"), usage_context, *args, **kwargs)
            drafter = config.speculative_config
            if drafter and drafter.draft_model_config.use_mla and drafter.attention_backend is None:
                drafter.attention_backend = config.attention_config.backend
    except ValueError as error:
        if given.quantization == "nestedfp" and "does not support float16" in str(error):
            raise ValueError(f"{given.model}: its activations leave FP16's range (65504): {REMEDY}") from error
        raise
    serves = usage_context is UsageContext.OPENAI_API_SERVER
    try:
        finish(config, serves=serves)
    except ValueError as error:
        if serves:
            short_logs.end_in_one_line(error)
        raise
    return config


def finish(config: "VllmConfig", *, serves: bool) -> None:
    """Complete a configuration with nested weights; refuse options for such where there are none.

    Raises:
        ValueError: see ``complete``.
    """
    if config.model_config.quantization == "nestedfp":
        complete(config, serves=serves)
    elif isinstance(config.additional_config, dict) and OPTIONS_KEY in config.additional_config:
        raise ValueError(
            f"additional_config[{OPTIONS_KEY!r}] without quantization={OPTIONS_KEY!r}: nobody keeps it; set --quantization "
            f"{OPTIONS_KEY}, or remove the options"
        )


def complete(config: "VllmConfig", *, serves: bool = False) -> None:
    """Fill in our scheduler and worker where the user left them open, and check the rest.

    Args:
        serves: it is the engine of an API server, which keeps an SLO from the start.

    Raises:
        ValueError: naming the setting that cannot work with nestedfp and what to set instead.
    """
    check_versions()
    if config.scheduler_config.scheduler_cls is None:
        config.scheduler_config.scheduler_cls = SCHEDULER
    if config.parallel_config.worker_cls in PLATFORM_WORKERS:
        config.parallel_config.worker_cls = WORKER
    if serves:
        keep_slo(config)
    check(config)
    check_fp8_layers(config)
    choose_path(config)
    # vLLM's cache of compiled graphs is keyed by the configuration. Which layers carry outlier lists or stay plain depends on
    # the weights, so what tells them apart goes into the key.
    options = dict(config.additional_config.get(OPTIONS_KEY, {}))
    config.additional_config[OPTIONS_KEY] = {**options, "checkpoint": checkpoint_key(config)}

    from nestedfp.vllm_plugin import frontend

    frontend.install()
    if serves:
        add_endpoints()


def keep_slo(config: "VllmConfig") -> None:
    """Have the engine keep the usual SLO from the start where the user names none."""
    given = (config.additional_config or {}).get(OPTIONS_KEY, {})
    if isinstance(given, dict) and "slo" not in given:
        config.additional_config = {**(config.additional_config or {}), OPTIONS_KEY: {**given, "slo": USUAL_SLO_MS}}


def add_endpoints() -> None:
    """Add our routes and the disclosure to the API server of this process. Idempotent.

    vLLM leaves out endpoint plugins that ``VLLM_PLUGINS`` does not name, and with it set, all plugins that it does not name. Who
    asks for nestedfp's weights asks for their disclosure too.
    """
    from vllm import plugins

    def load(original: Any, supported_tasks: Any = None) -> list[Any]:
        from nestedfp.vllm_plugin.serving.endpoints import Endpoints

        serves = set(Endpoints.required_tasks) & set(supported_tasks or ())
        return [*original(supported_tasks), *([Endpoints()] if serves else [])]

    around.put(plugins, "load_endpoint_plugins", load)


def check_versions() -> None:
    """Refuse versions of vLLM and torch that were not tested, unless ``NESTEDFP_ALLOW_UNTESTED=1`` and nothing differs.

    Raises:
        ValueError: with the version, the tested ones, and what of vLLM differs from what the plugin needs.
    """
    from vllm.logger import init_logger

    from nestedfp.hooks import compare

    if warning := versions.check(versions.TESTED, compare.differences):
        init_logger("vllm.nestedfp").warning("%s", warning)


def checkpoint_key(config: "VllmConfig") -> str:
    """Return a text that differs between checkpoints of the same shape.

    Raises:
        CheckpointError: for a local checkpoint that is not whole.
    """
    if config.load_config.load_format == "dummy":
        return "dummy"
    model_dir = Path(config.model_config.model)
    if model_dir.is_dir():
        read_weights(model_dir)
        return fingerprint(model_dir)
    # A model hub's name: its configuration has been read by now, so the commit that it resolved to is known.
    commit = getattr(config.model_config.hf_config, "_commit_hash", None)
    # Where nothing tells the weights apart, no compiled graph may be reused.
    return f"{config.model_config.model}@{commit or secrets.token_hex(8)}"


def check(config: "VllmConfig") -> None:
    """Refuse what nestedfp cannot serve; choose the attention that can read its cache.

    Raises:
        ValueError: with the setting, its value and what to set.
    """
    import torch
    from vllm.platforms import current_platform

    if config.model_config.dtype != torch.float16:
        raise ValueError(
            f"nestedfp stores FP16 weights, but the engine's dtype is {config.model_config.dtype}; set dtype='float16' "
            "(a BF16 checkpoint is then cast to FP16 while it loads)"
        )
    for obstacle in model_obstacles(config):
        raise ValueError(obstacle)
    if config.kv_transfer_config is not None or config.ec_transfer_config is not None:
        name = "kv_transfer_config" if config.kv_transfer_config is not None else "ec_transfer_config"
        raise ValueError(
            f"nestedfp cannot know in which precision a connector's KV or encoder entries were computed, and so cannot keep a "
            f"request in exact FP16; remove {name} (kv_offloading_size makes one too)"
        )
    kv_cache.complete(config, is_cpu=current_platform.is_cpu())
    if config.model_config.enable_sleep_mode:
        raise ValueError("nestedfp does not support sleep mode; set enable_sleep_mode=False")
    require_our_parts(config)


def check_fp8_layers(config: "VllmConfig") -> None:
    """Refuse an option ``fp8_layers`` that does not fit the names in the checkpoint; where there is none, the worker does.

    Raises:
        ValueError: see ``require_fp8_layers``.
        CheckpointError: for a local checkpoint that is not whole.
    """
    choice, model_dir = PluginOptions.of(config).fp8_layers, Path(config.model_config.model)
    if choice == ALL_LAYERS or not model_dir.is_dir() or config.load_config.load_format == "dummy":
        return
    from nestedfp.offline.reading import weights_of
    from nestedfp.offline.verdicts import candidates

    shapes = {name: weight.shape for name, weight in weights_of(read_weights(model_dir)).items()}
    require_fp8_layers(choice, candidates(shapes))


def wants_fusion(config: "VllmConfig") -> bool:
    """Whether norms and activations of an engine on Hopper are to be this project's, with the quantiser in them.

    Nothing else may read what they write, as LoRA adapters do, nor a pass of the user's be in the place of ours.
    """
    from vllm.config import CompilationMode
    from vllm.platforms import current_platform

    compilation = config.compilation_config
    return (
        PluginOptions.of(config).fused_quantiser == "auto"
        and config.lora_config is None
        and (compilation.mode, compilation.backend) == (CompilationMode.VLLM_COMPILE, "inductor")
        and current_platform.pass_key not in compilation.inductor_compile_config
    )


def choose_path(config: "VllmConfig") -> None:
    """Write into the engine's configuration how its kernels are launched.

    Raises:
        ValueError: for a GPU that this project has no kernels for, or an installation without them.
    """
    from vllm.logger import init_logger
    from vllm.platforms import current_platform

    if (found := current_platform.get_device_capability()) is None:
        return
    capability = (found.major, found.minor)
    gpu_kernels.require(capability)
    if gpu_kernels.is_portable(capability):
        init_logger("vllm.nestedfp").warning("portable kernels: this GPU is not of the kind that they were measured on")
        return
    # Programmatic dependent launch: the compiled kernels between the GEMMs say early that the next one may start, and
    # the GEMMs load weights while they finish: 3 % of a decode step of one request in FP16 mode, 5 % in FP8 mode.
    config.compilation_config.inductor_compile_config.setdefault("triton.enable_pdl", True)
    if wants_fusion(config):
        from nestedfp.vllm_plugin.weights import fused_quantiser

        fused_quantiser.install(config)


def model_obstacles(config: "VllmConfig") -> list[str]:
    """Return why models, adapters and drafts of this kind cannot be served, and what to set instead."""
    from vllm.platforms import current_platform

    model, parallel, is_cpu = config.model_config, config.parallel_config, current_platform.is_cpu()
    nests_experts, found = PluginOptions.of(config).nests_experts(config, is_cpu=is_cpu), []
    if config.lora_config is not None:
        if model.use_mla or (model.is_moe and (is_cpu or nests_experts)):
            kind = "latent attention" if model.use_mla else "nested experts" if nests_experts else "experts on a CPU"
            remedies = (
                "enable_lora=False" if is_cpu or model.use_mla else "enable_lora=False, the option experts to 'plain'"
            )
            found.append(
                f"nestedfp serves no LoRA adapters on a model with {kind}; set {remedies}, or merge the adapter's weights"
            )
        if not is_cpu and os.environ.get("VLLM_LORA_ENABLE_DUAL_STREAM", "0") not in ("", "0"):
            found.append(
                "VLLM_LORA_ENABLE_DUAL_STREAM: its kernels end before those that nestedfp's launched early; unset it, or set "
                "enable_lora=False"
            )
    if (obstacle := drafts.obstacle(config, is_cpu=is_cpu)) is not None:
        found.append(obstacle)
    if model.use_mla and getattr(model.hf_text_config, "index_topk", None) is not None:
        found.append(
            "nestedfp serves no sparse latent attention (index_topk in config.json): vLLM's kernels for it compute in BF16; serve "
            "the model without quantization='nestedfp'"
        )
    if model.is_moe and parallel.data_parallel_size > 1 and nests_experts:
        found.append(
            "nested experts need one precision on all ranks that share them, and data-parallel ranks choose each for itself; set "
            "data_parallel_size=1 or the option experts to 'plain'"
        )
    return found


def require_our_parts(config: "VllmConfig") -> None:
    """Refuse an engine that has our weights but somebody else's scheduler or worker.

    Raises:
        ValueError: naming the part and its required value.
    """
    for setting, found, wanted in (
        ("scheduler_cls", config.scheduler_config.scheduler_cls, SCHEDULER),
        ("worker_cls", config.parallel_config.worker_cls, WORKER),
    ):
        name = found if isinstance(found, str) or found is None else f"{found.__module__}.{found.__qualname__}"
        if name != wanted and not (wanted == WORKER and extends_our_worker(found)):
            raise ValueError(
                f"nestedfp weights need {setting}={wanted!r} so that every step runs in the precision that was decided "
                f"for it, but {setting} is {name!r}; leave {setting} unset and nestedfp fills it in"
            )
    if os.environ.get("VLLM_PLUGINS") is not None and "nestedfp" not in os.environ["VLLM_PLUGINS"].split(","):
        raise ValueError(
            f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']!r} keeps the nestedfp plugin out of the engine's processes; "
            "add 'nestedfp' to it or unset it"
        )


def extends_our_worker(found: object) -> bool:
    """Whether a ``worker_cls`` names a class of somebody else's that extends our worker."""
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except (ImportError, ValueError):
            return False
    from nestedfp.vllm_plugin.ranks.worker import NestedFPWorker

    return isinstance(found, type) and issubclass(found, NestedFPWorker)
