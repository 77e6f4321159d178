"""The worker: applies the precision that the scheduler attached to a step, on every tensor-parallel rank."""

from dataclasses import asdict
from typing import Any, NoReturn

from vllm.logger import init_logger
from vllm.platforms import current_platform

from nestedfp.eligible import ALL_LAYERS
from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.steps.step_costs import StepCosts
from nestedfp.vllm_plugin import drafts, failure
from nestedfp.vllm_plugin.lora import cpu_slots
from nestedfp.vllm_plugin.lora.adapters import Adapters
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks import cpu_rotary, row_classes, self_check
from nestedfp.vllm_plugin.ranks.plain_worker import PlainWorker
from nestedfp.vllm_plugin.ranks.timing import step_timing
from nestedfp.vllm_plugin.ranks.timing.step_ends import StepEnds
from nestedfp.vllm_plugin.weights import coverage, library_route

try:
    from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory
except ImportError:  # vLLM 0.33
    from vllm.v1.core.kv_cache_planning import check_enough_kv_cache_memory

logger = init_logger("vllm.nestedfp")


class NestedFPWorker(PlainWorker):
    """The worker of plain engines, plus the precision of each step.

    The mode is process-wide state of the compiled operator, read when the operator runs: a compiled model needs no
    recompilation when it changes, and all layers of a step see the same value.
    """

    _step_costs: StepCosts | None = None
    _fp8_share = 0.0
    nestedfp_nested_experts = False
    _self_check: self_check.SelfCheck | None = None
    _adapters: Adapters | None = None
    _step_ends: StepEnds | None = None  # on a CPU the host's clock is right

    def init_device(self) -> None:
        if current_platform.is_cpu():
            cpu_slots.install()
            cpu_rotary.install()
        if not current_platform.is_cpu():
            if not self.use_v2_model_runner:
                raise ValueError(
                    "nestedfp needs vLLM's V2 model runner on a GPU, which keeps a set of CUDA graphs for each precision; "
                    "set VLLM_USE_V2_MODEL_RUNNER=1 and remove the setting that vLLM names as unsupported by it"
                )
            from nestedfp.kernels import cuda_ops

            cuda_ops.load()
        super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with failure.reported():
            super().load_model(*args, **kwargs)
            if PluginOptions.of(self.vllm_config).fp8_layers != ALL_LAYERS:
                self.vllm_config.quant_config.require_layers(PluginOptions.of(self.vllm_config))
            found = coverage.report(self.get_model())
            self._fp8_share = found.fp8_share
            self.nestedfp_nested_experts = found.experts > 0
            if current_platform.is_cpu():
                row_classes.install_on_cpu(self.model_runner)
            else:
                from nestedfp.vllm_plugin.ranks import graphs

                graphs.install(found.linear_weights, self._runs_mixed)

    def _runs_mixed(self) -> bool:
        measures = PluginOptions.of(self.vllm_config).measures_steps(current_platform.is_cpu())
        return measures and self._fp8_share > 0 and row_classes.obstacle(self) is None

    def determine_available_memory(self) -> int:
        with failure.reported():  # the engine core finds too small a cache itself, and tells nobody
            available = self._determine_available_memory()
            check_enough_kv_cache_memory(self.vllm_config, self.get_kv_cache_spec(), available)
        return available

    def _determine_available_memory(self) -> int:
        if not current_platform.is_cpu():
            from nestedfp.vllm_plugin.weights import gemm_choice

            # Now: the weights are there, the KV cache is not, and everything that follows, the profile of memory and the
            # graphs, runs what was chosen.
            gemm_choice.choose(
                self.get_model(), PluginOptions.of(self.vllm_config), self.scheduler_config.max_num_batched_tokens
            )
        # The profile must see the more expensive mode; on a GPU that is FP8 with its quantised activations.
        ops.set_mode(Mode.FP8)
        try:
            available: int = super().determine_available_memory()
        finally:
            ops.set_mode(Mode.FP16)
        return available - library_route.scratch_bytes()

    def execute_model(self, scheduler_output: Any) -> Any:
        mode = getattr(scheduler_output, "nestedfp_mode", None)
        row_classes.begin_step(mode or Mode.FP16, scheduler_output)
        return super().execute_model(scheduler_output)

    def add_lora(self, lora_request: Any) -> bool:
        if self._adapters is None:
            self._adapters = Adapters(self.vllm_config)
        self._adapters.take(lora_request)
        added: bool = super().add_lora(lora_request)
        return added

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        return output if self._step_ends is None else self._step_ends.after(output)

    def compile_or_warm_up_model(self) -> Any:
        drafts.precede(self.model_runner, self._before_drafts)
        result = super().compile_or_warm_up_model()
        ops.set_mode(Mode.FP16)
        is_whole = self.parallel_config.pipeline_parallel_size == 1  # else no rank sees a whole step
        if current_platform.is_cpu() and not is_whole:
            self.model_runner._dummy_run(1)  # makes the buffer between stages, which vLLM forgets in eager mode
        if is_whole and PluginOptions.of(self.vllm_config).measures_steps(current_platform.is_cpu()):
            measure = step_timing.measure_cpu if current_platform.is_cpu() else step_timing.measure_gpu
            if (why := row_classes.obstacle(self)) is not None:
                logger.info("no step has exact and fast rows: %s", why)
            self._step_costs = measure(self.model_runner, why is None)
        with failure.reported():
            self._self_check = self_check.run(self.get_model(), is_fused=self._is_fused())
        logger.info("%s", self._self_check.line())
        if not current_platform.is_cpu():
            self._step_ends = StepEnds()
        return result

    def _before_drafts(self) -> None:
        if self._step_ends is not None:
            self._step_ends.mark_before_drafts()
        ops.set_mode(Mode.FP16)

    def reload_weights(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: CUDA graphs and compiled models hold the addresses of the planes and the outlier lists."""
        raise RuntimeError(
            "nestedfp does not replace the weights of a running engine, whose graphs hold their addresses; start another "
            "engine with the new checkpoint and stop this one"
        )

    init_weight_transfer_engine = start_weight_update = start_draft_weight_update = update_weights = reload_weights

    def _is_fused(self) -> bool:
        from nestedfp.vllm_plugin.weights import fused_quantiser

        return fused_quantiser.is_installed(self.vllm_config)

    def nestedfp_fp8_share(self) -> float:
        """Return the share of this rank's weights, in bytes, that has an FP8 mode."""
        return self._fp8_share

    def nestedfp_self_check(self) -> dict[str, Any] | None:
        """Return what the numerical self-check of the start found on this rank; None: it has not run."""
        return None if self._self_check is None else asdict(self._self_check)

    def nestedfp_layers(self) -> dict[str, int]:
        """Return how many of this rank's linear layers are of each kind of ``Coverage.layers``."""
        layers = coverage.cover(self.get_model()).layers
        return {kind: layers[kind] for kind in ("nested", "listed", "exact", "plain")}

    def nestedfp_step_costs(self) -> dict[str, Any] | None:
        """Return this rank's step costs as ``StepCosts.report`` has them; None: not measured."""
        return None if self._step_costs is None else self._step_costs.report()
