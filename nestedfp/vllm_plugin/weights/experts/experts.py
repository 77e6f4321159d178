"""Layers of experts (MoE) whose weights are nested: loaded from a plain checkpoint or from stored planes, run by class.

All experts of a layer are judged together: their planes and lists of weights beyond 1.75 are stacked, or the layer stays plain
FP16 and is vLLM's own. The router is no part of it and is always FP16.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import Parameter
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.online.moe_base import OnlineMoEMethodBase
from vllm.platforms import current_platform

from nestedfp.format import join
from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest_together
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks import self_check
from nestedfp.vllm_plugin.weights.expert_planes import PLANES, STACKS
from nestedfp.vllm_plugin.weights.experts import experts_cpu
from nestedfp.vllm_plugin.weights.layers import UNLOADED, require_loaded

logger = init_logger("vllm.nestedfp")


GPU_MULTIPLE = 64  # of the columns and rows of an expert's matrices


def why_plain(layer: RoutedExperts) -> str | None:
    """Return why a layer's experts stay plain FP16; None: they are nested."""
    config, engine = layer.moe_config, get_current_vllm_config()
    options = PluginOptions.of(engine)
    if getattr(layer, "nestedfp_exact", False):
        return "fp8_layers leaves them out"
    if not options.nests_experts(engine, is_cpu=current_platform.is_cpu()):
        return f"experts={options.experts!r}"
    if config.has_bias or not config.is_act_and_mul or layer.activation.value not in experts_cpu.ACTIVATIONS:
        return f"no kernel for biases or the activation {layer.activation.value}"
    if not current_platform.is_cpu():
        if not current_platform.is_device_capability(90):
            return "their kernels were made for compute capability 9.0"
        sizes = (config.hidden_dim, config.intermediate_size_per_partition)
        if any(size % GPU_MULTIPLE for size in sizes):
            return f"sizes of a rank's experts must be multiples of {GPU_MULTIPLE}, got {sizes[0]} and {sizes[1]}"
        if layer.swiglu_limit is not None:
            return "no kernel for a limited activation"
    return None


class NestedExpertsBase(FusedMoEMethodBase):
    """What both methods share: from whole FP16 weights or their planes to the operator's operands.

    Args:
        layer: the layer that asks for a method.
        prefix: its name in the model, for messages.
    """

    def __init__(self, layer: RoutedExperts, prefix: str) -> None:
        super().__init__(layer.moe_config)
        options = PluginOptions.of(get_current_vllm_config())
        self.prefix = prefix
        self.why_plain = why_plain(layer)
        if self.why_plain and options.experts == "nested":
            raise ValueError(f"{prefix}: experts='nested' cannot be: {self.why_plain}; leave the option out")
        self.quantize_activations = options.quantize_activations
        self.plain = UnquantizedFusedMoEMethod(layer.moe_config)
        self.is_nested = False

    @property
    def is_monolithic(self) -> bool:
        # As vLLM's own method, whose routing is then called for; of a GPU's methods only those for other cards do their own.
        return bool(self.plain.is_monolithic) and (current_platform.is_cpu() or not self.is_nested)

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> Any:
        return self.plain.get_fused_moe_quant_config(layer)

    def finish(self, layer: RoutedExperts) -> None:
        """Nest ``layer.w13_weight`` and ``layer.w2_weight``, whole FP16 weights, or keep both plain.

        Raises:
            ValueError: for a NaN or an infinity.
        """
        layer.nestedfp_experts = False
        if self.why_plain is None:
            stacks = [getattr(layer, f"{stack}_weight").data for stack in STACKS]
            nested = nest_together(*(stack.flatten(0, 1) for stack in stacks))
            if isinstance(nested, list):
                _drop_weights(layer)
                self.keep_nested(layer, nested, [stack.shape for stack in stacks])
                return
            if nested.nonfinite:
                raise ValueError(
                    f"{self.prefix}: {nested.nonfinite} of {sum(stack.numel() for stack in stacks)} weights are NaN or infinite "
                    "as FP16; the checkpoint is damaged, or is BF16 with values beyond FP16's 65504; nothing was loaded"
                )
            logger.warning("%s stays plain FP16: %s", self.prefix, nested.reason)
        self.plain.process_weights_after_loading(layer)
        self.moe_kernel = self.plain.moe_kernel

    def keep_nested(self, layer: RoutedExperts, nested: list[NestedWeight], shapes: list[torch.Size]) -> None:
        """Store the operands of ``run``: of [experts, n, k] each, whose planes are [experts * n, k]."""
        self.is_nested = layer.nestedfp_experts = True
        layer.nestedfp_shapes = dict(zip(STACKS, map(tuple, shapes), strict=True))
        for stack, weight, (count, n, k) in zip(STACKS, nested, shapes, strict=True):
            for name, plane in zip(PLANES, _packed(weight, count, n, k), strict=True):
                layer.register_parameter(f"{stack}_{name}", Parameter(plane, requires_grad=False))
        if current_platform.is_cpu():
            layer.nestedfp_lists = {
                stack: _by_expert(weight, *layer.nestedfp_shapes[stack][:2])
                for stack, weight in zip(STACKS, nested, strict=True)
            }
        else:
            from nestedfp.vllm_plugin.weights.experts.experts_gpu import Stack, fetch_whole_lines

            layer.nestedfp_stacks = [
                Stack.of(*(getattr(layer, f"{stack}_{name}").data for name in PLANES), weight)
                for stack, weight in zip(STACKS, nested, strict=True)
            ]
            fetch_whole_lines()
        self_check.remember(layer)
        if listed := sum(weight.outliers for weight in nested):
            logger.info("%s keeps %d weights beyond 1.75 in its outlier lists", self.prefix, listed)

    def apply(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        if not self.is_nested:
            return self.plain.apply(layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input)
        return self._run_chosen(layer, x, topk_weights, topk_ids)

    def apply_monolithic(
        self, layer: RoutedExperts, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None = None
    ) -> Any:
        if not self.is_nested:
            return self.plain.apply_monolithic(layer, x, router_logits, input_ids)
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe

        weights, ids = cpu_moe.select_experts(
            hidden_states=x,
            router_logits=router_logits,
            top_k=layer.top_k,
            use_grouped_topk=layer.use_grouped_topk,
            renormalize=layer.renormalize,
            topk_group=layer.topk_group,
            num_expert_group=layer.num_expert_group,
            custom_routing_function=layer.custom_routing_function,
            scoring_func=layer.scoring_func,
            routed_scaling_factor=1.0 if layer.routed_scaling_factor is None else layer.routed_scaling_factor,
            e_score_correction_bias=layer.e_score_correction_bias,
        )
        return self._run_chosen(layer, x, weights, ids)

    def _run_chosen(
        self, layer: RoutedExperts, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        if layer.apply_router_weight_on_input:
            x, weights = x * weights.to(x.dtype), torch.ones_like(weights)
        return self.run(layer, x, weights, ids, layer.expert_map)

    def run(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        expert_map: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the chosen experts' weighted sum in the mode in force.

        Args:
            x: [tokens, hidden] float16.
            weights, ids: [tokens, chosen] float32 and int32.
            expert_map: [experts of all ranks] int32, their numbers on this rank, -1 for others'; None: all are here.

        Returns:
            [tokens, hidden] float16.
        """
        if not current_platform.is_cpu():
            from nestedfp.vllm_plugin.weights.experts import experts_gpu

            choice = experts_gpu.Choice(weights, ids, expert_map, layer.activation)
            product = experts_gpu.exact if ops.get_mode() is Mode.FP16 else experts_gpu.fast
            return product(x, *layer.nestedfp_stacks, choice)
        if expert_map is not None:
            ids = expert_map[ids.long()]
        w13, w2 = (
            [*(getattr(layer, f"{stack}_{name}") for name in PLANES), *layer.nestedfp_lists[stack]] for stack in STACKS
        )
        intermediate = layer.nestedfp_shapes["w2"][2]
        activation = layer.activation.value
        return experts_cpu.experts(x, weights, ids, w13, w2, intermediate, activation, self.quantize_activations)


def _packed(weight: NestedWeight, count: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a stack's planes as the kernels of this platform read them."""
    if not current_platform.is_cpu():
        from nestedfp.vllm_plugin.weights.experts import experts_gpu

        return experts_gpu.packed(weight, torch.Size((count, n, k)))
    planes = [plane.view(count, n, k) for plane in (weight.upper, weight.lower)]
    upper, lower = zip(*(ops.pack(*each) for each in zip(*planes, strict=True)), strict=True)
    return torch.stack(upper), torch.stack(lower)


def _by_expert(weight: NestedWeight, count: int, n: int) -> list[torch.Tensor]:
    """Return the list of a stack's weights beyond 1.75 as ``experts_cpu.experts`` takes it, or none."""
    if weight.outlier_rows is None or weight.outlier_cols is None or weight.outlier_deltas is None:
        return []
    begins = torch.searchsorted(weight.outlier_rows, torch.arange(count + 1, dtype=torch.int32) * n)
    return [weight.outlier_rows % n, weight.outlier_cols, weight.outlier_deltas, begins]


class OnlineNestedExperts(NestedExpertsBase, OnlineMoEMethodBase):
    """Loads plain FP16 or BF16 weights, and nests a layer's experts as soon as the last one has arrived."""

    supports_eplb = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if getattr(layer, "_already_called_process_weights_after_loading", False):  # the second call: all are loaded
            if layer.nestedfp_experts:
                _drop_weights(layer)
            return
        self._zero_padding(layer)
        self.finish(layer)
        layer._already_called_process_weights_after_loading = True

    def keep_nested(self, layer: RoutedExperts, nested: list[NestedWeight], shapes: list[torch.Size]) -> None:
        super().keep_nested(layer, nested, shapes)
        if layer.expert_map is not None:  # experts of other ranks may come yet
            for stack in STACKS:
                elsewhere = Parameter(torch.empty(0, dtype=torch.float16), requires_grad=False)
                vars(elsewhere).update(weight_loader=partial(_of_another_rank, layer))
                layer.register_parameter(f"{stack}_weight", elsewhere)


def _of_another_rank(layer: RoutedExperts, *, weight_name: str, expert_id: int, **_: Any) -> bool:
    """Load nothing of an expert that this rank does not have; the arguments are those of vLLM's loader."""
    if layer.expert_map[expert_id] >= 0:
        raise ValueError(f"{weight_name}: the checkpoint has it twice; convert or export it anew")
    return False


def _drop_weights(layer: RoutedExperts) -> None:
    for stack in STACKS:
        layer.register_parameter(f"{stack}_weight", None)


class StoredNestedExperts(NestedExpertsBase):
    """Loads the planes of a converted checkpoint, and the plain weights of experts that have no planes there."""

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        layer.nestedfp_scratch = {}
        shapes = {
            "w13": (num_experts, self.moe.w13_num_shards * intermediate_size_per_partition, hidden_size),
            "w2": (num_experts, hidden_size, intermediate_size_per_partition),
        }
        loader = extra_weight_attrs["weight_loader"]

        def scratch_loader(stack: str) -> Any:
            def load_plain(param: Parameter, loaded_weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if stack not in layer.nestedfp_scratch:
                    device = getattr(layer, f"{stack}_weight_upper").device
                    nan = torch.full(shapes[stack], torch.nan, dtype=params_dtype, device=device)
                    layer.nestedfp_scratch[stack] = Parameter(nan, requires_grad=False)
                return loader(layer.nestedfp_scratch[stack], loaded_weight, *args, **kwargs)

            return load_plain

        for stack, shape in shapes.items():
            for name in PLANES:
                plane = Parameter(torch.full(shape, UNLOADED, dtype=torch.uint8), requires_grad=False)
                layer.register_parameter(f"{stack}_{name}", plane)
                vars(plane).update(extra_weight_attrs)
            weight = Parameter(torch.empty(shape, device="meta", dtype=params_dtype), requires_grad=False)
            layer.register_parameter(f"{stack}_weight", weight)
            vars(weight).update({**extra_weight_attrs, "weight_loader": scratch_loader(stack)})

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        scratch = layer.nestedfp_scratch
        del layer.nestedfp_scratch
        stacks = []
        for stack in STACKS:
            upper, lower = (getattr(layer, f"{stack}_{name}").data for name in PLANES)
            require_loaded(self.prefix, upper[torch.isnan(scratch[stack])] if stack in scratch else upper)
            stacks.append((upper, lower))
        if not scratch and self.why_plain is None:
            nested = [NestedWeight(*(plane.flatten(0, 1) for plane in planes), None, None, None) for planes in stacks]
            _drop_weights(layer)
            self.keep_nested(layer, nested, [upper.shape for upper, _ in stacks])
        else:
            for stack, planes in zip(STACKS, stacks, strict=True):
                weight = torch.stack([join(*each) for each in zip(*planes, strict=True)])  # one by one, for memory
                if (part := scratch.get(stack)) is not None:
                    weight = torch.where(torch.isnan(part), weight, part.data)
                for name in PLANES:
                    layer.register_parameter(f"{stack}_{name}", None)
                layer.register_parameter(f"{stack}_weight", Parameter(weight, requires_grad=False))
            self.finish(layer)
        layer._already_called_process_weights_after_loading = True
