"""Checks before anything starts whether a checkpoint has all weights of its model, and each of them as a finite FP16 number.

Reads every weight once, at the disk's speed. Imports vLLM and loads its model without memory, in this process and on one rank.
"""

from typing import Any

from deploy.config import ConfigError, DeployConfig
from deploy.startup.model_check import cause, engine_arguments
from nestedfp.checkpoint import CheckpointError, Stored, listed, read_weights

ONE_RANK = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enforce_eager": True,
    "worker_cls": "auto",
}


def check_weights(config: DeployConfig) -> str | None:
    """Compare a checkpoint with the model that vLLM makes for it, and look at its values.

    Returns:
        What could not be compared and is left to the engines' start, in one line; None: nothing.

    Raises:
        CheckpointError: naming the weights that are missing, NaN, infinite, beyond FP16's range, or that vLLM cannot load.
        ConfigError: vLLM takes the engine's arguments or the checkpoint's config.json for none.
    """
    from nestedfp.values import faults

    if config.model.load_format == "dummy":
        return None
    tensors = read_weights(config.model.folder)
    bad = faults(tensors)
    try:
        missing = _missing(config, tensors)
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks weights of {len(missing)} parameters of the model: "
                f"{listed(missing)}; copy the checkpoint again, or convert the original one again"
            )
        # A tensor that the model class passes over may hold anything.
        sound = {name: stored for name, stored in tensors.items() if name not in bad}
        harmless = bool(bad) and not _missing(config, sound)
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        warning = f"the names of the weights were not compared with the model, the engines do ({cause(error)})"
        harmless = False
    else:
        warning = None
    if bad and not harmless:
        name, found = next(iter(bad.items()))
        more = f" (and {len(bad) - 1} more tensors are such)" if len(bad) > 1 else ""
        raise CheckpointError(
            f"{tensors[name].shard}: {name}: {found}{more}; the service computes in FP16: serve a checkpoint that it can hold"
        )
    return warning


def _missing(config: DeployConfig, tensors: dict[str, Stored]) -> list[str]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from nestedfp.vllm_plugin.loading import dry_load

    arguments: dict[str, Any] = {**engine_arguments(config), **ONE_RANK}
    try:
        engine = AsyncEngineArgs(**arguments).create_engine_config()
    except ValueError as error:
        raise ConfigError(f"model {config.model.path!r}: {cause(error)}") from None
    return dry_load.missing(engine, tensors)
