"""The two linear methods: one converts a plain checkpoint while it loads, the other loads stored planes.

Both end with the same layer state, read by the one operator ``nestedfp::linear``. The operator is opaque to torch.compile
and reads the precision when it runs, so one compiled model serves both modes.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch.nn import Parameter
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.model_loader.reload.layerwise import initialize_online_processing
from vllm.platforms import current_platform

from nestedfp.format import join
from nestedfp.kernels import ops
from nestedfp.kernels.gpu_kernels import is_portable, multiplies_fp8
from nestedfp.nested_weight import NestedWeight, nest
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks import self_check
from nestedfp.vllm_plugin.weights import library_route

logger = init_logger("vllm.nestedfp")

UNLOADED = 0xFF  # an upper byte that no weight has: E4M3's NaN


class NestedLinearBase(LinearMethodBase):
    """What both methods share: from a whole FP16 weight or its planes to the operator's operands.

    Args:
        prefix: the layer's name in the model, for messages.
        is_exact: it computes in FP16 in a fast step, too. A CPU's stays nested, whose kernels are the fastest there; a GPU's is
            plain FP16, of the same size.
    """

    def __init__(self, prefix: str, is_exact: bool = False) -> None:
        self.prefix = prefix
        # A GPU that can multiplies E4M3 by E4M3; a CPU keeps the activations unless asked to do as such a GPU does.
        options = PluginOptions.of(get_current_vllm_config())
        if current_platform.is_cpu():
            self.quantize_activations = options.quantize_activations
            self.by_library = False
        else:
            found = current_platform.get_device_capability()
            capability = (found.major, found.minor)
            self.quantize_activations = multiplies_fp8(capability)
            self.by_library = is_portable(capability)
        self.stays_plain = is_exact and not current_platform.is_cpu()
        self.is_exact = is_exact
        self.plain = UnquantizedLinearMethod()

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        shape = (sum(output_partition_sizes), input_size_per_partition)
        self.create_parameters(layer, shape, params_dtype, extra_weight_attrs.get("weight_loader"))

    @abstractmethod
    def create_parameters(
        self, layer: torch.nn.Module, shape: tuple[int, int], dtype: torch.dtype, loader: Any
    ) -> None:
        """Register the parameters that the checkpoint's weights are loaded into."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if not getattr(layer, "_already_called_process_weights_after_loading", False):
            self.finish_loading(layer)
            layer._already_called_process_weights_after_loading = True

    def finish_loading(self, layer: torch.nn.Module) -> None:
        """Make what was loaded the operator's operands."""
        self.finish(layer)

    def finish(self, layer: torch.nn.Module) -> None:
        """Nest ``layer.weight``, a whole FP16 weight, or keep it plain where the format cannot hold it.

        The weight is released before its planes are packed: at most two copies of one layer exist at a time.

        Raises:
            ValueError: for a NaN or an infinity.
        """
        if self.stays_plain:
            self.keep_plain(layer, layer.weight.data)
            return
        nested = nest(layer.weight.data)
        if isinstance(nested, NestedWeight):
            del layer.weight
            self.keep_nested(layer, nested)
        elif nested.nonfinite:
            raise ValueError(
                f"{self.prefix}: {nested.nonfinite} of {layer.weight.numel()} weights are NaN or infinite as FP16; the checkpoint "
                "is damaged, or is BF16 with values beyond FP16's 65504; nothing was loaded"
            )
        else:
            logger.warning("%s stays plain FP16: %s", self.prefix, nested.reason)
            self.keep_plain(layer, layer.weight.data)

    def keep_plain(self, layer: torch.nn.Module, weight: torch.Tensor) -> None:
        """Keep an FP16 weight for vLLM's own linear."""
        layer.nestedfp = False
        layer.weight = Parameter(weight, requires_grad=False)
        self.plain.process_weights_after_loading(layer)

    def keep_nested(self, layer: torch.nn.Module, nested: NestedWeight) -> None:
        """Store the operands that ``apply`` reads."""
        if nested.outliers:
            logger.info("%s keeps %d weights beyond 1.75 in its outlier list", self.prefix, nested.outliers)
        upper, lower = ops.pack(nested.upper, nested.lower)
        layer.nestedfp = True
        layer.nestedfp_shape = tuple(nested.upper.shape)
        layer.weight_upper = Parameter(upper, requires_grad=False)
        layer.weight_lower = Parameter(lower, requires_grad=False)
        layer.weight_packed = (
            layer.weight_upper
        )  # where vLLM's LoRA layers look for the device of what has no ``weight``
        layer.outlier_rows = nested.outlier_rows
        layer.outlier_cols = nested.outlier_cols
        layer.outlier_deltas = nested.outlier_deltas
        layer.nestedfp_by_library = self.by_library and library_route.fits(layer)
        self_check.remember(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if not layer.nestedfp:
            return self.plain.apply(layer, x, bias)
        if layer.nestedfp_by_library:
            return library_route.linear(layer, x, bias, self.quantize_activations)
        weight = layer.weight_upper, layer.weight_lower
        outliers = layer.outlier_rows, layer.outlier_cols, layer.outlier_deltas
        how = self.quantize_activations, self.is_exact
        return ops.linear(x, *weight, bias, *outliers, *layer.nestedfp_shape, *how)


def _loaded_by(loader: Any, data: torch.Tensor) -> Parameter:
    """Return a parameter [n, k] as vLLM's loaders of linear layers read it."""
    parameter = Parameter(data, requires_grad=False)
    vars(parameter).update(output_dim=0, input_dim=1, weight_loader=loader)
    return parameter


class OnlineNestedLinear(NestedLinearBase):
    """Loads plain FP16 or BF16 weights and nests each layer as soon as its last shard has arrived.

    The weight exists on the meta device until then (vLLM's online quantisation), so the peak is the model and one layer.
    """

    uses_meta_device = True

    def create_parameters(
        self, layer: torch.nn.Module, shape: tuple[int, int], dtype: torch.dtype, loader: Any
    ) -> None:
        layer.register_parameter("weight", _loaded_by(loader, torch.empty(shape, device="meta", dtype=dtype)))
        initialize_online_processing(layer)


class StoredNestedLinear(NestedLinearBase):
    """Loads the planes of a converted checkpoint.

    A module with weights beyond 1.75 keeps its plain ``.weight`` on disk, so a fused layer (QKV, gate and up) may receive
    planes for one part and plain weights for another. The plain parts are collected in a scratch weight that exists only
    for such layers.
    """

    def create_parameters(
        self, layer: torch.nn.Module, shape: tuple[int, int], dtype: torch.dtype, loader: Any
    ) -> None:
        for name in ("weight_upper", "weight_lower"):
            layer.register_parameter(name, _loaded_by(loader, torch.full(shape, UNLOADED, dtype=torch.uint8)))

        def load_plain(param: Parameter, loaded_weight: torch.Tensor, *args: Any) -> None:
            if layer.nestedfp_scratch is None:
                nan = torch.full(shape, torch.nan, dtype=dtype, device=layer.weight_upper.device)
                layer.nestedfp_scratch = _loaded_by(loader, nan)
            loader(layer.nestedfp_scratch, loaded_weight, *args)

        layer.nestedfp_scratch = None
        layer.register_parameter("weight", _loaded_by(load_plain, torch.empty(shape, device="meta", dtype=dtype)))

    def finish_loading(self, layer: torch.nn.Module) -> None:
        upper, lower, scratch = layer.weight_upper.data, layer.weight_lower.data, layer.nestedfp_scratch
        del layer.nestedfp_scratch
        if scratch is None:
            del layer.weight
            require_loaded(self.prefix, upper)
            if self.stays_plain:
                for name in ("weight_upper", "weight_lower"):
                    layer.register_parameter(name, None)
                self.keep_plain(layer, join(upper, lower))
            else:
                self.keep_nested(layer, NestedWeight(upper, lower, None, None, None))
        else:
            plain = ~torch.isnan(scratch.data)
            require_loaded(self.prefix, upper[~plain])
            for name in ("weight_upper", "weight_lower"):
                layer.register_parameter(name, None)
            layer.weight = Parameter(torch.where(plain, scratch.data, join(upper, lower)), requires_grad=False)
            self.finish(layer)


def require_loaded(prefix: str, upper: torch.Tensor) -> None:
    """Refuse an upper plane of a layer with bytes that no weight has.

    Raises:
        ValueError: with their number.
    """
    missing = int(((upper & 0x7F) == 0x7F).sum())
    if missing:
        raise ValueError(
            f"{prefix}: {missing} of {upper.numel()} weights were not in the checkpoint or are damaged (no weight has the byte "
            "0x7f or 0xff in its upper plane); convert the original checkpoint again with nestedfp convert"
        )
