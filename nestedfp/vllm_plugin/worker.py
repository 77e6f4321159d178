"""The worker: applies the precision that the scheduler attached to a step, on every tensor-parallel rank."""

from typing import Any

from vllm.platforms import current_platform

from nestedfp import ops
from nestedfp.modes import Mode
from nestedfp.vllm_plugin import failure

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker  # type: ignore[assignment]


class NestedFPWorker(BaseWorker):  # type: ignore[misc,valid-type]
    """vLLM's worker for this platform, plus the precision of each step.

    The mode is process-wide state of the compiled operator, read when the operator runs: a compiled model needs no
    recompilation when it changes, and all layers of a step see the same value.
    """

    _warm = False

    def init_device(self) -> None:
        if not current_platform.is_cpu():
            if not self.use_v2_model_runner:
                raise ValueError(
                    "nestedfp needs vLLM's V2 model runner on a GPU, which keeps a set of CUDA graphs for each precision; "
                    "set VLLM_USE_V2_MODEL_RUNNER=1 and remove the setting that vLLM names as unsupported by it"
                )
            from nestedfp import cuda_ops
            from nestedfp.vllm_plugin import graphs

            cuda_ops.load()
            graphs.install()
        super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with failure.reported():
            super().load_model(*args, **kwargs)

    def determine_available_memory(self) -> int:
        # The profile must see the more expensive mode; on a GPU that is FP8 with its quantised activations.
        ops.set_mode(Mode.FP8)
        try:
            return super().determine_available_memory()
        finally:
            ops.set_mode(Mode.FP16)

    def execute_model(self, scheduler_output: Any) -> Any:
        mode = getattr(scheduler_output, "nestedfp_mode", None)
        if mode is None and self._warm and scheduler_output.total_num_scheduled_tokens:
            raise RuntimeError(
                "a step arrived without a precision: the engine's scheduler is not nestedfp's; leave scheduler_cls "
                "unset so that the nestedfp plugin fills it in"
            )
        ops.set_mode(Mode.FP16 if mode is None else mode)
        return super().execute_model(scheduler_output)

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        ops.set_mode(Mode.FP16)
        self._warm = True
        return result
