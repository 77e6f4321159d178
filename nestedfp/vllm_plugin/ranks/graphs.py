"""Two sets of CUDA graphs in vLLM's V2 model runner, one for each precision; the mode of a step chooses the set.

A captured graph replays the kernels of the mode in which it was captured. vLLM already captures a graph for every
(size, number of active LoRA adapters). The second number means the precision too: from ``FAST`` on, its graphs are FP8.
Capture, dispatch, piecewise keys and memory accounting then work as they are.

Steps with prompts in them also get graphs above vLLM's largest size, as far as the host launches a step's kernels no faster
than the GPU computes them: in FP8 mode that is further than in FP16 mode. For small models that holds for piecewise graphs as
well, a launch for each piece between two attentions: where attention can be captured, steps with prompts have whole ones.

Steps of exact and fast rows have graphs in pieces, for some numbers of exact rows and of all rows. Without one the host launches a
step more slowly than the GPU computes it, and sees the tokens of the step before too late.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu import cudagraph_utils, model_runner

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks import row_classes
from nestedfp.vllm_plugin.ranks.graph_sizes import host_bound_tokens, larger_sizes, mixed_sizes

FAST = 1 << 16  # more adapters than vLLM takes
EXACT_ROW = 2 * FAST  # of a mixed step, counted above the key of FP8's graphs
_sort_batch = model_runner.sort_batch_req_ids
MIN_WHOLE_TOKENS = 32  # steps with prompts have hardly ever fewer


class DualPrecisionGraphManager(cudagraph_utils.ModelCudaGraphManager):  # type: ignore[misc]
    """vLLM's graph manager with one graph per size and precision.

    Attributes:
        linear_weights: of this process's model, in all its linear layers; 0: not known, and graphs of all sizes are captured.
        runs_mixed: whether its steps may have exact and fast rows.
    """

    linear_weights: ClassVar[int] = 0
    runs_mixed: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)

    def __init__(self, *args: Any, lora_capture_cases: list[int] | None = None, **kwargs: Any) -> None:
        adapters = lora_capture_cases or [0]
        super().__init__(*args, lora_capture_cases=[key(n, mode) for mode in Mode for n in adapters], **kwargs)
        for mode, descs in self._capture_descs.items():
            self._capture_descs[mode] = in_capture_order(descs)

    def _init_candidates(self) -> None:
        """Set up vLLM's sizes and, for steps that are not all decodes, larger ones.

        The configuration keeps vLLM's own largest size: attention reserves memory by it, for splits of decodes that larger
        steps do not have.
        """
        config = self.compilation_config
        sizes = config.cudagraph_capture_sizes
        wanted = PluginOptions.of(self.vllm_config).graph_tokens
        self._mixed: list[cudagraph_utils.BatchExecutionDescriptor] = []
        if not sizes or self.cudagraph_mode.mixed_mode() != CUDAGraphMode.PIECEWISE:
            super()._init_candidates()
            return
        wanted = min(wanted, self.vllm_config.scheduler_config.max_num_batched_tokens)
        config.cudagraph_capture_sizes = [*sizes, *larger_sizes(max(sizes), wanted)]
        try:
            super()._init_candidates()
        finally:
            config.cudagraph_capture_sizes = sizes
        cases = self.lora_capture_cases
        self._drop_larger({case: max(max(sizes), self._host_bound_tokens(case, in_pieces=False)) for case in cases})
        most = {case: self._host_bound_tokens(case, in_pieces=True) for case in cases}
        up_to = min(PluginOptions.of(self.vllm_config).whole_graph_tokens, max(most.values()))
        whole = [size for size in sizes if MIN_WHOLE_TOKENS <= size <= up_to]
        if whole and self._whole_graphs_fit():
            self._add_whole_graphs({case: [size for size in whole if size <= most[case]] for case in most})
        if cases == [key(0, mode) for mode in Mode] and self.runs_mixed():
            up_to = min(wanted, self._host_bound_tokens(key(0, Mode.FP8), in_pieces=False))
            self._mixed = [mixed_desc(*size) for size in mixed_sizes(up_to)]
            self._capture_descs[CUDAGraphMode.PIECEWISE] += self._mixed

    def _host_bound_tokens(self, case: int, in_pieces: bool) -> int:
        parallel = self.vllm_config.parallel_config
        if not self.linear_weights or parallel.pipeline_parallel_size > 1 or parallel.data_parallel_size > 1:
            # Stages and replicas of a step have other layers, or another mode, and must pad it alike.
            return int(self.vllm_config.scheduler_config.max_num_batched_tokens)
        layers = max(1, len(self._attention_layers()))
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        return host_bound_tokens(self.linear_weights, layers, mode_of(case), processors, in_pieces)

    def _drop_larger(self, most: Mapping[int, int]) -> None:
        """Leave out sizes beyond ``most`` tokens of each precision."""
        for mode, descs in self._capture_descs.items():
            self._capture_descs[mode] = [desc for desc in descs if desc.num_tokens <= most[desc.num_active_loras]]
        for key, descs in list(self._candidates.items()):
            kept = [desc for desc in descs if desc.num_tokens <= most[desc.num_active_loras]]
            if kept:
                self._candidates[key] = kept
            else:
                del self._candidates[key]

    def _attention_layers(self) -> list[AttentionLayerBase]:
        layers = self.compilation_config.static_forward_context.values()
        return [layer for layer in layers if isinstance(layer, AttentionLayerBase)]

    def _whole_graphs_fit(self) -> bool:
        """Whether attention can be captured for any mix of queries.

        Decodes of several tokens (speculation) and ranks that share out requests or contexts keep vLLM's graphs.
        """
        config = self.vllm_config
        plain = (
            self.cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
            and self.decode_query_len == 1
            and not self.varlen_decode
            and config.parallel_config.data_parallel_size == 1
            and config.parallel_config.decode_context_parallel_size == 1
            and config.parallel_config.prefill_context_parallel_size == 1
            and not config.model_config.is_encoder_decoder
        )
        return plain and all(_takes_any_queries(layer, config) for layer in self._attention_layers())

    def _add_whole_graphs(self, sizes: Mapping[int, Sequence[int]]) -> None:
        """Replace the piecewise graphs of steps with prompts by whole ones, of the ``sizes`` of each precision.

        A graph promises queries of its whole size, so that attention captures the kernel of long queries, which takes short
        ones too. The pieces of the largest size are captured all the same: vLLM's profile of memory learns from them what both
        precisions need beside the weights.
        """
        full = self._capture_descs.setdefault(CUDAGraphMode.FULL, [])
        for case in self.lora_capture_cases:
            smallest = 0
            for size in sorted(sizes[case]):
                desc = cudagraph_utils.BatchExecutionDescriptor(
                    cg_mode=CUDAGraphMode.FULL,
                    num_tokens=size,
                    num_reqs=min(size, self.max_num_reqs),
                    max_query_len=size,
                    num_active_loras=case,
                )
                full.append(desc)
                for tokens in range(smallest, size + 1):
                    decodes = [d for d in self._candidates[tokens, case] if d.cg_mode == CUDAGraphMode.FULL]
                    self._candidates[tokens, case] = [*decodes, desc]
                smallest = size + 1
        pieces = self._capture_descs[CUDAGraphMode.PIECEWISE]
        largest = {
            case: max(desc.num_tokens for desc in pieces if desc.num_active_loras == case)
            for case in self.lora_capture_cases
        }
        self._capture_descs[CUDAGraphMode.PIECEWISE] = [
            desc
            for desc in pieces
            if desc.num_tokens > max(sizes[desc.num_active_loras], default=0)
            or desc.num_tokens == largest[desc.num_active_loras]
        ]

    def capture(self, *args: Any, lora_capture_hook: Any = None, **kwargs: Any) -> None:
        before = ops.get_mode()

        def prepare(case: int, requests: int, tokens: int) -> None:
            if exact_rows := case // EXACT_ROW:
                ops.set_mixed(torch.arange(tokens, device="cpu") < exact_rows)
            else:
                ops.set_mode(mode_of(case))
            if lora_capture_hook is not None:
                lora_capture_hook(case % FAST, requests, tokens)

        try:
            super().capture(*args, lora_capture_hook=prepare, **kwargs)
        finally:
            ops.set_mode(before)

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        **kwargs: Any,
    ) -> Any:
        if exact_rows := ops.exact_rows():
            fits = (
                d for d in self._mixed if d.num_active_loras // EXACT_ROW >= exact_rows and d.num_tokens >= num_tokens
            )
            found = next(fits, None) if self._graphs_captured else None
            return found or cudagraph_utils.BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
        case = key(num_active_loras, ops.get_mode())
        return super().dispatch(num_reqs, num_tokens, uniform_token_count, case, max_query_len, **kwargs)


def key(adapters: int, mode: Mode) -> int:
    """Return the second key of the graphs of a precision with so many active adapters."""
    return adapters + FAST * (mode is Mode.FP8)


def mixed_desc(exact_rows: int, tokens: int) -> cudagraph_utils.BatchExecutionDescriptor:
    """Return what vLLM knows the graph of a step by that has so many exact rows, and fast ones."""
    case = key(0, Mode.FP8) + exact_rows * EXACT_ROW
    return cudagraph_utils.BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, tokens, None, num_active_loras=case)


def mode_of(case: int) -> Mode:
    """Return the precision of the graphs with a second key."""
    return Mode.FP8 if case >= FAST else Mode.FP16


def in_capture_order(
    descs: Sequence[cudagraph_utils.BatchExecutionDescriptor],
) -> list[cudagraph_utils.BatchExecutionDescriptor]:
    """Return one mode's graphs in the order in which they are to be captured: by precision, larger sizes first.

    vLLM estimates the memory of all graphs from the first two that it captures: the baseline of the pool, then the cost of one
    more. By precision, both samples are of one kind, so that the FP8 scratch memory of the largest size is not taken for the
    cost of every graph. The precision with the largest graph comes first: vLLM allocates the results of all with the first.
    """
    largest: dict[int, int] = {}
    for desc in descs:
        largest[desc.num_active_loras] = max(desc.num_tokens, largest.get(desc.num_active_loras, 0))
    return sorted(descs, key=lambda d: (-largest[d.num_active_loras], d.num_active_loras, -d.num_tokens))


def _takes_any_queries(layer: AttentionLayerBase, config: Any) -> bool:
    spec = layer.get_kv_cache_spec(config)
    builder = layer.get_attn_backend().get_builder_cls()
    return spec is not None and builder.get_cudagraph_support(config, spec) == AttentionCGSupport.ALWAYS


def _sort_exact_first(*args: Any) -> list[str]:
    """vLLM's order of a batch, exact requests first in a mixed step; FlashAttention takes any order."""
    return row_classes.exact_first(_sort_batch(*args))


def install(linear_weights: int, runs_mixed: Callable[[], bool]) -> None:
    """Make the V2 model runner of this process use two sets of graphs, and order mixed steps. Idempotent.

    Args:
        linear_weights: of its model, in all linear layers of this rank.
        runs_mixed: whether its steps may have exact and fast rows; asked once the model is ready for its graphs.
    """
    DualPrecisionGraphManager.linear_weights = linear_weights
    DualPrecisionGraphManager.runs_mixed = staticmethod(runs_mixed)
    model_runner.ModelCudaGraphManager = DualPrecisionGraphManager
    model_runner.sort_batch_req_ids = _sort_exact_first
