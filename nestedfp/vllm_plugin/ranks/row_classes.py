"""Steps of exact and fast requests: which rows of a batch are whose, told to the operators before the model runs.

The scheduler names the exact requests (``nestedfp_exact`` of its output). On a GPU their rows come first, so that one number
parts the batch: vLLM's V2 runner orders it by ``exact_first``. On a CPU rows stay where V1's runner puts them, and a mask tells
them apart.
"""

from typing import Any

import torch
from vllm.platforms import current_platform

from nestedfp.kernels import ops
from nestedfp.kernels.gpu_kernels import is_portable
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.options import PluginOptions

_exact: frozenset[str] = frozenset()  # of the step that runs
_tokens: dict[str, int] = {}  # of each of its requests


def begin_step(mode: Mode, scheduler_output: Any) -> None:
    """Put a step's precision in force, that of each row where it has exact and fast ones.

    Raises:
        RuntimeError: for a mixed step of another mode, or without exact rows or fast ones.
    """
    global _exact, _tokens
    _exact = getattr(scheduler_output, "nestedfp_exact", frozenset())
    ops.set_mode(mode)
    if not _exact:
        return
    _tokens = scheduler_output.num_scheduled_tokens
    if mode is not Mode.FP8 or not _exact < _tokens.keys():
        raise RuntimeError(
            f"a mixed step needs mode fp8 and exact requests that are some of its {len(_tokens)}, got {mode.value} and {_exact}"
        )
    if current_platform.is_cpu():
        ops.set_mode(Mode.FP16)  # until the model runs, the order of the rows is not known
    else:
        ops.set_mixed(torch.arange(sum(_tokens.values())) < sum(_tokens[request] for request in _exact))


def exact_first(requests: list[str]) -> list[str]:
    """Return a step's requests in the order given, but the exact ones of a mixed step before the fast ones."""
    return sorted(requests, key=lambda request: request not in _exact) if _exact else requests


def install_on_cpu(runner: Any) -> None:
    """Have V1's runner put the mask of a mixed step's rows in force when it runs the model; another one is left alone."""
    if (forward := getattr(runner, "_model_forward", None)) is None:
        return

    def by_row(*args: Any, **kwargs: Any) -> Any:
        if _exact:
            batch = runner.input_batch.req_ids
            counts = torch.tensor([_tokens[request] for request in batch])
            ops.set_mixed(torch.tensor([request in _exact for request in batch]).repeat_interleave(counts))
        return forward(*args, **kwargs)

    runner._model_forward = by_row


def obstacle(worker: Any) -> str | None:
    """Return why an engine cannot run mixed steps; None: it can.

    Rows of the model's linear layers must be the batch's, and attention must take any order. Where FP8 saves little, or the exact
    rows would be another library's, nothing is gained.
    """
    config = worker.vllm_config
    model, parallel, options = config.model_config, config.parallel_config, PluginOptions.of(config)
    if not options.mixed_steps:
        return "its option mixed_steps is off"
    if parallel.pipeline_parallel_size > 1 or parallel.data_parallel_size > 1:
        return "stages and replicas of a step would pad it"
    if model.is_multimodal_model or model.is_encoder_decoder or model.use_mla:
        return "the model has linear layers whose rows are not those of the batch"
    if config.speculative_config is not None:
        return "drafts share the rows of the request that verifies them"
    if worker.nestedfp_nested_experts:
        return "the rows of an expert are not those of the batch"
    if current_platform.is_cpu():
        return (
            None
            if hasattr(worker.model_runner, "_model_forward")
            else "vLLM's V2 runner on a CPU takes no mask of rows"
        )
    if is_portable(torch.cuda.get_device_capability()):
        return "this GPU runs the portable kernels"
    groups = [group for groups in worker.model_runner.attn_groups for group in groups]
    if any(group.get_metadata_builder().reorder_batch_threshold is not None for group in groups):
        return "its attention needs decodes before prompts"
    return None
