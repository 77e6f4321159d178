"""Real parts of vLLM, made in the test's own process: an engine's scheduler and its front end, without a model between them.

What a worker would have sampled is given by the test; everything else is what runs in an engine.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    import torch
    from vllm import SamplingParams
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import VLLMValidationError
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.engine.parallel_sampling import ParentRequest
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    from nestedfp.vllm_plugin import frontend, register
    from nestedfp.vllm_plugin.ranks.timing.step_ends import SINCE_LAST_S
    from nestedfp.vllm_plugin.scheduling.scheduler import make_scheduler

    register()
    frontend.install()
    if not torch.accelerator.is_available():  # as vLLM's worker for CPUs has it, which these tests do without
        torch.accelerator.empty_cache = lambda: None

__all__ = [
    "BLOCK",
    "Engine",
    "FrontEnd",
    "InputProcessor",
    "ModelRunnerOutput",
    "ParentRequest",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "VLLMValidationError",
    "engine_config",
    "engine_request",
    "model_parallel",
]
MODEL = Path(__file__).resolve().parents[1] / "models" / "fairytales-8m"
BLOCK = 16  # tokens


def engine_config(**arguments: Any) -> Any:
    """Return the configuration of an engine with the shipped model."""
    defaults: dict[str, Any] = {
        "model": str(MODEL),
        "quantization": "nestedfp",
        "dtype": "float16",
        "block_size": BLOCK,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EngineArgs(**{**defaults, **arguments}).create_engine_config()


def model_parallel(folder: Path) -> None:
    """Make this process the one rank of a model, once; call under a current configuration."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


class Engine:
    """An engine's scheduler with ``blocks`` KV blocks; the test says what each step samples."""

    def __init__(self, blocks: int = 1000, *, async_scheduling: bool = False, **arguments: Any) -> None:
        self.config = engine_config(**arguments)
        self.config.scheduler_config.async_scheduling = async_scheduling  # which vLLM switches off without a GPU
        self.config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
        self.scheduler = make_scheduler(
            vllm_config=self.config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, request: Any) -> Any:
        """Give an ``EngineCoreRequest`` to the scheduler; return its ``Request``."""
        made = Request.from_engine_core_request(request, self._hasher)
        self.scheduler.add_request(made)
        return made

    def direct(self, mode: str, **rule: Any) -> None:
        """Put a directive in force."""
        self.scheduler.nestedfp_set_directive({"mode": mode, "epoch": 1, "rule": rule})

    def schedule(self) -> Any:
        """Schedule one step. Under async scheduling another one may follow before this one is finished."""
        scheduled = self.scheduler.schedule()
        requests = self.scheduler.requests
        scheduled.test_samples = {rid for rid in scheduled.num_scheduled_tokens if not requests[rid].is_prefill_chunk}
        return scheduled

    def finish(
        self,
        scheduled: Any,
        token: int = 7,
        since_last_s: float | None = None,
        tokens: Mapping[str, int] = MappingProxyType({}),
        accepted: Mapping[str, int] = MappingProxyType({}),
    ) -> list[Any]:
        """Complete a step in which every request whose prompt is through samples ``token``; return the outputs.

        ``tokens`` are those of single requests, after so many ``accepted`` drafts; ``since_last_s`` is what the device would say
        (step_ends.py).
        """
        ids = list(scheduled.num_scheduled_tokens)
        said = {rid: [7] * accepted.get(rid, 0) + [tokens.get(rid, token)] for rid in scheduled.test_samples}
        sampled = [said.get(rid, []) for rid in ids]
        result = ModelRunnerOutput(ids, {rid: i for i, rid in enumerate(ids)}, sampled)
        setattr(result, SINCE_LAST_S, since_last_s)
        outputs = self.scheduler.update_from_output(scheduled, result).values()
        if (drafts := self.scheduler.num_spec_tokens) and not self.config.scheduler_config.async_scheduling:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, [[7] * drafts for _ in ids]))
        return [item for out in outputs for item in out.outputs]

    def step(self, token: int = 7) -> list[Any]:
        """Schedule and complete one step."""
        return self.finish(self.schedule(), token)

    def run(self) -> list[Any]:
        """Step until nothing is left; return all outputs."""
        outputs = []
        while self.scheduler.has_unfinished_requests():
            outputs += self.step()
        return outputs


def engine_request(
    request_id: str, prompt: int | list[int], *, external_id: str | None = None, **params: Any
) -> EngineCoreRequest:
    """Return a request for a prompt of so many tokens, or of these."""
    ids = list(range(100, 100 + prompt)) if isinstance(prompt, int) else prompt
    salt, adapter = params.pop("cache_salt", None), params.pop("adapter", None)
    pooling = params.pop("pooling_params", None)
    sampling = (
        None if pooling else SamplingParams(**{"max_tokens": 4, "ignore_eos": True, "detokenize": False, **params})
    )
    return EngineCoreRequest(
        request_id=request_id,
        external_req_id=external_id or request_id,
        prompt_token_ids=ids,
        mm_features=None,
        sampling_params=sampling,
        pooling_params=pooling,
        arrival_time=0.0,
        lora_request=adapter and LoRARequest(f"adapter-{adapter}", adapter, "/nowhere"),
        cache_salt=salt,
        data_parallel_rank=None,
    )


class FrontEnd:
    """A front end: what ``AsyncLLM.generate`` would yield of each request, in order."""

    def __init__(self) -> None:
        self.processor = OutputProcessor(None, log_stats=False)
        self.queues: dict[str, RequestOutputCollector] = {}

    def add(self, request: Any, parent: Any = None, index: int = 0) -> None:
        """Announce a request; the sequences of one parent share its queue."""
        key = parent.request_id if parent else request.request_id
        queue = self.queues.setdefault(key, RequestOutputCollector(request.sampling_params.output_kind, key))
        self.processor.add_request(request, None, parent, index, queue)

    def receive(self, outputs: list[Any]) -> None:
        """Take outputs of the engine."""
        self.processor.process_outputs(outputs)

    def taken(self, key: str) -> Any:
        """Return what the caller of ``generate`` gets next: everything merged since it last asked, or None."""
        return self.queues[key].get_nowait()
