"""Two sets of CUDA graphs in vLLM's V2 model runner, one for each precision; the mode of a step chooses the set.

A captured graph replays the kernels of the mode in which it was captured. vLLM already captures a graph for every
(size, number of active LoRA adapters); nestedfp serves no LoRA, so the second number is free to mean the precision:
0 is FP16, 1 is FP8. Capture, dispatch, piecewise keys and memory accounting then work as they are.
"""

from typing import Any

from vllm.v1.worker.gpu import cudagraph_utils, model_runner

from nestedfp import ops
from nestedfp.modes import Mode

CASES = {Mode.FP16: 0, Mode.FP8: 1}
MODES = {case: mode for mode, case in CASES.items()}


class DualPrecisionGraphManager(cudagraph_utils.ModelCudaGraphManager):  # type: ignore[misc]
    """vLLM's graph manager with one graph per size and precision."""

    def __init__(self, *args: Any, lora_capture_cases: list[int] | None = None, **kwargs: Any) -> None:
        if lora_capture_cases not in (None, [], [0]):
            raise ValueError("nestedfp does not serve LoRA adapters; set enable_lora=False")
        super().__init__(*args, lora_capture_cases=sorted(MODES), **kwargs)
        # vLLM estimates the memory of all graphs from the first two that it captures: the baseline of the pool, then the
        # cost of one more. Captured by precision first, both samples are of one kind, so that the FP8 scratch memory of
        # the largest size is not taken for the cost of every graph.
        for descs in self._capture_descs.values():
            descs.sort(key=lambda desc: (desc.num_active_loras, -desc.num_tokens))

    def capture(self, *args: Any, lora_capture_hook: Any = None, **kwargs: Any) -> None:
        before = ops.get_mode()
        try:
            super().capture(*args, lora_capture_hook=lambda case, *_: ops.set_mode(MODES[case]), **kwargs)
        finally:
            ops.set_mode(before)

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
    ) -> Any:
        return super().dispatch(num_reqs, num_tokens, uniform_token_count, CASES[ops.get_mode()], max_query_len)


def install() -> None:
    """Make the V2 model runner of this process use two sets of graphs. Idempotent."""
    model_runner.ModelCudaGraphManager = DualPrecisionGraphManager
