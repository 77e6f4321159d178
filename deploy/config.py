"""Configuration of the whole service: one YAML file, one frozen pydantic model, unknown keys refused.

Must not import ray, vllm or torch: it is read before anything heavy starts.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from controller.config import ControllerConfig, explain
from nestedfp.eligible import ALL_LAYERS, fp8_patterns
from workload.frozen import FrozenModel
from workload.strict_yaml import YamlFileError, read_yaml_file

APP_NAME = "nestedfp"  # of the Serve application, unless another one is given
ADMIN_KEY_ENV = "NESTEDFP_ADMIN_KEY"  # of the start-up command; no other process gets it
REPOSITORY = Path(__file__).resolve().parents[1]


# Engine arguments that engine.extra may not carry, as patterns of their names, and why.
RESERVED = {
    r"load_format|max_model_len|tensor_parallel_size|quantization|max_num_seqs|max_num_batched_tokens|enforce_eager"
    r"|enable_prefix_caching|gpu_memory_utilization|kv_cache_memory_bytes": "has a key of its own in this file: set that one",
    "model": "comes from model.path",
    "served_model_name": "comes from model.id",
    "dtype": "is always float16: the weights are stored as FP16",
    "additional_config": "is filled in by this service from the keys of engine and from controller.slo",
    "scheduler_cls": "is filled in by nestedfp, which decides the precision of each step there",
    r"distributed_executor_backend|nnodes|node_rank|master_\w+": "has no choice here: the ranks of a replica are processes of its "
    "own on one machine",
    "trust_remote_code": "would run code from the checkpoint's folder; this service does not",
    r"kv_transfer_config|kv_offloading_size|ec_transfer_config": "brings entries of unknown precision from elsewhere, so that no "
    "pin could be kept",
    r"host|port|uds|root_path": "is not vLLM's to say here: set http.host and http.port",
    "api_key": "would guard nothing: vLLM's own server does not run here; set http.keys_file",
    r"(tool|reasoning)_parser_plugin|middleware|tool_server|allow_credentials|allowed_(origins|methods|headers)|enable_ssl_refresh"
    r"|ssl_\w+": "would have no effect: vLLM's own server does not run here; TLS and web pages are the ingress's",
    "enable_sleep_mode": "is not supported together with nested weights",
    r"data_parallel_\w+": "belongs to several engines behind one replica, which this service does not count: set replicas",
}


class ConfigError(ValueError):
    """The configuration file cannot be used; the message names the file, the key and what is expected."""


class ModelSection(FrozenModel):
    """Which model to serve."""

    id: Annotated[str, Field(min_length=1)]  # the name that requests give as "model"
    path: str  # checkpoint folder; a relative one counts from the repository's root
    load_format: Literal["auto", "dummy"] = "auto"  # dummy: random weights, needs only config.json and a tokenizer
    max_model_len: Annotated[int, Field(ge=16)] = 1024  # tokens, prompt and completion together

    @property
    def folder(self) -> Path:
        return Path(os.path.expanduser(self.path)) if os.path.isabs(self.path) else REPOSITORY / self.path


class EngineSection(FrozenModel):
    """How each replica's vLLM engine runs."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"  # auto: gpu if this machine has one that CUDA can use
    quantization: Literal["nestedfp", "none"] = "nestedfp"  # none: plain FP16 vLLM, the peer to compare with
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    max_num_seqs: Annotated[int, Field(ge=1)] = 32
    max_num_batched_tokens: Annotated[int, Field(ge=16)] = 2048  # token budget of one step
    # Sequences (prompts times n) in one replica at most; None: no limit, and 4 * max_num_seqs while load is shed.
    admission_limit: Annotated[int, Field(ge=1)] | None = None
    # Prompts and expected answers in one replica at most; None: four times what the KV cache holds.
    admission_tokens: Annotated[int, Field(ge=1)] | None = None
    # From the arrival: what the engine will probably begin later is refused with 503; of requests that say nothing.
    queue_deadline_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    enforce_eager: bool = False  # skip torch.compile (and CUDA graphs): starts faster, steps are slower
    enable_prefix_caching: bool = True
    quantize_activations: bool = False  # CPU only: FP8 steps round activations to E4M3 as a GPU does
    # Required on a CPU; on a GPU None takes what is left.
    kv_cache_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.9
    # Time steps in both precisions at the start, so that the directive auto takes FP8 where it pays; auto: on a GPU.
    step_costs: Literal["auto", "measure", "off"] = "auto"
    # On a GPU: kernel configs by what they take on this card, timed at the first start; or by the shipped model.
    gemm_choice: Literal["measure", "model"] = "measure"
    graph_tokens: Annotated[int, Field(ge=0)] = 2048  # on a GPU: CUDA graphs for steps of up to so many tokens
    # On a GPU: one CUDA graph, attention included, for steps with prompts of up to so many tokens.
    whole_graph_tokens: Annotated[int, Field(ge=0)] = 512
    # Norms and activations write what the linear layers read; auto: on Hopper.
    fused_quantiser: Literal["auto", "never"] = "auto"
    experts: Literal["auto", "nested", "plain"] = "auto"  # of a mixture; auto: nested on a CPU and a Hopper
    mixed_steps: bool = True  # steps may hold exact and fast requests, where the engine can run such steps
    # Which layers fast steps compute in FP8: all, mlp (all but attention), or patterns of their names.
    fp8_layers: str | list[str] = ALL_LAYERS
    # Processor time that compiling the grammar of one structured output may take; more is refused with 400.
    grammar_cpu_s: Annotated[float, Field(gt=0, le=600)] = 3.0
    # Further arguments of vLLM's engine by their names, as vLLM spells them.
    extra: dict[str, Any] = Field(default_factory=dict)
    cpu_threads: Annotated[int, Field(ge=1)] | None = None  # per tensor-parallel rank; None: cores / (replicas * ranks)

    @field_validator("fp8_layers")
    @classmethod
    def _chooses_layers(cls, choice: str | list[str]) -> str | list[str]:
        fp8_patterns(choice)
        return choice

    @property
    def ranks(self) -> int:
        """Processes of a replica that hold a part of the model."""
        return self.tensor_parallel_size * int(self.extra.get("pipeline_parallel_size", 1))

    @field_validator("extra")
    @classmethod
    def _breaks_no_promise(cls, extra: dict[str, Any]) -> dict[str, Any]:
        for name in extra:
            for pattern, why in RESERVED.items():
                if re.fullmatch(pattern, name):
                    raise ValueError(f"{name!r} {why}")
        adapters = extra.get("lora_modules")
        for adapter in adapters if isinstance(adapters, list) else ():
            if isinstance(adapter, dict) and isinstance(path := adapter.get("path"), str):
                adapter["path"] = str(REPOSITORY / Path(path).expanduser())  # as model.path
        drafts = extra.get("speculative_config")
        if isinstance(drafts, dict) and isinstance(path := drafts.get("model"), str):
            drafts["model"] = str(REPOSITORY / Path(path).expanduser())
        return extra


class HttpSection(FrozenModel):
    """Where the service listens."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 << 20  # a larger body gets 413
    drain_s: Annotated[float, Field(ge=1, le=3600)] = 20.0  # for running streams, when the service or a replica stops
    keys_file: str | None = None  # who may ask (access/keys.py); None: everybody, unless NESTEDFP_KEYS_FILE is set
    access_log: bool = True  # a line for each request that asked to generate
    access_log_folder: str | None = None  # a file for each replica; None: beside Ray Serve's logs


class DeployConfig(FrozenModel):
    """The whole service."""

    model: ModelSection
    engine: EngineSection = EngineSection()
    http: HttpSection = HttpSection()
    replicas: Annotated[int, Field(ge=1)] = 1
    controller: ControllerConfig = ControllerConfig()
    decision_log: str | None = None  # JSON lines of the controller's decisions; None: kept in memory only

    @property
    def most_replicas(self) -> int:
        """Replicas at most: those that the controller may ask for included."""
        ladder = self.controller.ladder
        return max(self.replicas, ladder.max_replicas or 0) if ladder.scale else self.replicas

    @field_validator("model")
    @classmethod
    def _folder_exists(cls, model: ModelSection) -> ModelSection:
        if not (model.folder / "config.json").is_file():
            raise ValueError(
                f"path {model.path!r}: no config.json in {model.folder}; the model must lie in a local folder (one of a model "
                f"hub: hf download {model.path} --local-dir FOLDER)"
            )
        return model

    @model_validator(mode="after")
    def _budget_covers_sequences(self) -> Self:
        if self.engine.max_num_batched_tokens < self.engine.max_num_seqs:
            raise ValueError(
                f"engine.max_num_batched_tokens ({self.engine.max_num_batched_tokens}) must be at least "
                f"engine.max_num_seqs ({self.engine.max_num_seqs})"
            )
        return self

    @model_validator(mode="after")
    def _scales_from_replicas(self) -> Self:
        ladder = self.controller.ladder
        if ladder.scale and ladder.min_replicas != self.replicas:
            raise ValueError(
                f"controller.ladder.min_replicas ({ladder.min_replicas}) must be replicas ({self.replicas}) with "
                "controller.ladder.scale: true; it is the number without an overload"
            )
        return self


def load(path: Path) -> DeployConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: one message that lists every fault with its key.
    """
    try:
        data: Any = read_yaml_file(path)
    except YamlFileError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping with the keys {sorted(DeployConfig.model_fields)}, got {data!r}")
    try:
        return DeployConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}:\n{explain(error)}") from None
