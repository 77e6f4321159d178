"""A load without memory: vLLM makes the model and loads a checkpoint's names and shapes into it, on the meta device."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.utils import initialize_model

from nestedfp.checkpoint import CheckpointError, Stored
from nestedfp.vllm_plugin.loading.load_check import LoadCheck, Writes
from nestedfp.vllm_plugin.options import OPTIONS_KEY

LONGEST = 200  # characters of vLLM's message
DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


def missing(config: VllmConfig, tensors: Mapping[str, Stored]) -> list[str]:
    """Return the parameters of a model that a checkpoint leaves unset, with the elements that it has (``LoadCheck.missing``).

    Args:
        config: of an engine with one rank; it gets the option ``fp16_only``, for there are no values to nest.
        tensors: of the checkpoint, by name.

    Raises:
        CheckpointError: vLLM's loading refuses a tensor, of a wrong shape or without a place in the model.
        Exception: the model class cannot be made, or computes with the weights while it loads them.
    """
    config.additional_config = {OPTIONS_KEY: {"fp16_only": True}}
    with (
        set_current_vllm_config(config),
        _one_rank(),
        _default_dtype(config.model_config.dtype),
        torch.device("meta"),
        Writes() as writes,
    ):
        model = initialize_model(vllm_config=config)
        check = LoadCheck(model, writes)
        try:
            loaded = model.load_weights(_without_values(tensors))
        except (ValueError, KeyError, AssertionError, RuntimeError) as error:
            if isinstance(error, NotImplementedError) or "meta tensor" in str(error):
                raise  # a value was asked for
            said = f"no place for {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0][:LONGEST]
            raise CheckpointError(
                f"vLLM cannot load the checkpoint's tensors ({said or type(error).__name__}); config.json and the shards must be "
                "of one model"
            ) from None
        return check.missing(loaded)


def _without_values(tensors: Mapping[str, Stored]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, stored in tensors.items():
        yield name, torch.empty(stored.shape, dtype=DTYPES.get(stored.dtype, torch.uint8), device="meta")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()  # which vLLM's own context manager does not put back after an exception
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _one_rank() -> Iterator[Any]:
    """Make this process the one rank of a model, as model classes expect it to be."""
    if parallel_state.model_parallel_is_initialized():
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        parallel_state.init_distributed_environment(1, 0, f"file://{Path(folder) / 'rendezvous'}", 0, "gloo")
        try:
            parallel_state.ensure_model_parallel_initialized(1, 1)
            yield
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
