"""Checks before anything starts whether vLLM knows the model and its tokenizer, and takes the engine's arguments.

What is wrong here would otherwise fail in every replica, a minute later. Imports vLLM, which takes seconds.
"""

import difflib
import os
import re
from pathlib import Path
from typing import Any

from deploy.config import ConfigError, DeployConfig
from nestedfp.checkpoint import read_config

LONGEST = 400  # characters of somebody else's message
ONE_RANK = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enforce_eager": True,
    "worker_cls": "auto",
}


def check_model(config: DeployConfig) -> None:
    """Make vLLM's configuration of the model, and load its tokenizer.

    Raises:
        ConfigError: one sentence with the cause and what to change.
        CheckpointError: config.json cannot be read.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # as in the replicas
    from vllm.tokenizers import cached_tokenizer_from_config

    from deploy.app import engine_kwargs
    from deploy.replica.arguments import ENGINE, SERVER, parsed

    names = SERVER | ENGINE.keys()
    for name in config.engine.extra:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ConfigError(f"engine.extra: vLLM has no argument {name!r}{f', but {near[0]!r}' if near else ''}")
    check_parsers(config.engine.extra)
    drafts = config.engine.extra.get("speculative_config")
    drafter = drafts.get("model") if isinstance(drafts, dict) else None
    if isinstance(drafter, str) and not Path(drafter).is_dir():
        raise ConfigError(f"engine.extra.speculative_config.model: expected a checkpoint's folder, got {drafter!r}")
    read_config(config.model.folder)
    try:
        engine, front = parsed(engine_kwargs(config))
        check_adapters(config, engine, front)
    except ValueError as error:
        raise ConfigError(f"engine.extra: {cause(error)}") from None
    try:
        model = engine.create_model_config()
    except ValueError as error:
        raise ConfigError(f"model {config.model.path!r}: {cause(error)}{_remedy(config, str(error))}") from None
    if model.runner_type != "generate":
        raise ConfigError(
            f"model {config.model.path!r} makes no text (vLLM runs it as {model.runner_type!r}), and only for text are there "
            "routes here; plain vllm serve with --quantization nestedfp has vLLM's for vectors"
        )
    if model.skip_tokenizer_init:
        return
    try:
        cached_tokenizer_from_config(model)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model {config.model.path!r}: its tokenizer cannot be loaded ({cause(error)}); the folder needs the tokenizer's "
            "files as well, tokenizer.json and tokenizer_config.json as a rule"
        ) from None


def check_engine(config: DeployConfig) -> None:
    """Make vLLM's whole configuration of an engine, as if it had one rank. Sets variables of vLLM's: not where engines start.

    Raises:
        ConfigError: one sentence with the cause.
    """
    from deploy.app import engine_kwargs
    from deploy.replica.arguments import parsed

    try:
        parsed({**engine_kwargs(config), **ONE_RANK})[0].create_engine_config()
    except ValueError as error:
        raise ConfigError(f"model {config.model.path!r}: {cause(error)}") from None


def check_parsers(extra: dict[str, Any]) -> None:
    """Refuse the name of a parser that vLLM does not have, and one that it is told not to use."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if "tool_call_parser" in extra and extra.get("enable_auto_tool_choice") is False:
        raise ConfigError(
            "engine.extra.enable_auto_tool_choice: expected true beside tool_call_parser, got false; remove one of the two"
        )
    for key, known in (
        ("tool_call_parser", ToolParserManager.list_registered()),
        ("reasoning_parser", ReasoningParserManager.list_registered()),
    ):
        wanted = key == "tool_call_parser" and extra.get("enable_auto_tool_choice")
        if (extra.get(key) is not None or wanted) and extra.get(key) not in known:
            raise ConfigError(f"engine.extra.{key}: expected one of {', '.join(sorted(known))}; got {extra.get(key)!r}")


def check_adapters(config: DeployConfig, engine: Any, front: Any) -> None:
    """Refuse LoRA adapters that the replicas could not serve, given both halves of vLLM's arguments.

    Raises:
        ValueError: with the adapter and what to change.
    """
    from nestedfp.vllm_plugin.lora.adapters import check, layer_shapes

    given = front.lora_modules or []
    if given and not engine.enable_lora:
        raise ValueError("lora_modules: adapters need enable_lora: true beside them")
    names = [config.model.id, *(each.name for each in given)]
    for each in given:
        if names.count(each.name) > 1:
            raise ValueError(
                f"lora_modules: {each.name!r} names the model or two adapters; give each a name of its own"
            )
        shapes = layer_shapes(config.model.folder) if config.model.load_format != "dummy" else {}
        check(Path(each.path).expanduser(), shapes, engine.max_lora_rank)


def cause(error: Exception) -> str:
    """Return the heart of an exception of vLLM's, pydantic's or Transformers', in one line."""
    text = str(error)
    if (wrapped := re.search(r"Value error, (.*?)(?: \[type=|$)", text, re.DOTALL)) is not None:
        text = wrapped[1]
    line = next((each.strip() for each in text.splitlines() if each.strip()), type(error).__name__)
    return line.partition(". ")[0].rstrip(".:")[:LONGEST]


def _remedy(config: DeployConfig, text: str) -> str:
    if "max_model_len" in text and "derived" in text:
        return f"; lower model.max_model_len ({config.model.max_model_len})"
    if "architectures" in text or "model type" in text:
        return "; serve a model that vLLM supports"
    return ""
