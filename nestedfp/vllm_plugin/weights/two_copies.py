"""Two copies of each weight instead of one nested store: plain FP16 for vLLM's own linear, and the upper plane for FP8 steps.

Three bytes a weight instead of two. FP16 steps multiply as plain vLLM does, and give its bits in steps of the same size, padding
for CUDA graphs included; FP8 steps run the kernel that nested weights run, on the same bytes. The one operator,
``nestedfp::two_copies``, is opaque to torch.compile and reads the mode when it runs, as ``nestedfp::linear`` does.
"""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.library
from torch.nn import Parameter
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform

from nestedfp.kernels import ops
from nestedfp.modes import Mode

# On a CPU vLLM packs a plain weight into an object of its own, which no operator can take. A layer's number can: as a tensor,
# so that compiled graphs of equal layers stay equal.
_layers: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()
_numbers = count()


def keep_plain(layer: torch.nn.Module, weight: torch.Tensor, method: UnquantizedLinearMethod) -> None:
    """Keep a layer's FP16 weight for vLLM's own linear, beside the upper plane.

    Args:
        weight: [n, k] float16.
        method: prepares and multiplies the weight as plain vLLM does.
    """
    layer.weight = Parameter(weight, requires_grad=False)
    method.process_weights_after_loading(layer)
    if current_platform.is_cpu():
        layer.nestedfp_plain = method
        layer.plain_number = Parameter(torch.tensor([next(_numbers)]), requires_grad=False)
        _layers[int(layer.plain_number)] = layer


def linear(layer: Any, x: torch.Tensor, bias: torch.Tensor | None, quantize_activations: bool) -> torch.Tensor:
    """Compute a layer's ``x @ W.T + bias`` in the mode in force when the operator runs.

    Args:
        layer: with a weight from ``keep_plain``, ``weight_upper`` from ``ops.pack``, and lists of outliers or None.
        x: [..., k] float16.
        bias: [n], or None.
        quantize_activations: in FP8 mode, as ``ops.linear`` has it.

    Returns:
        [..., n] float16.
    """
    out: torch.Tensor = torch.ops.nestedfp.two_copies(
        x,
        getattr(layer, "plain_number", layer.weight),
        layer.weight_upper,
        bias,
        layer.outlier_rows,
        layer.outlier_cols,
        layer.outlier_deltas,
        *layer.nestedfp_shape,
        quantize_activations,
    )
    return out


def _on_gpu(
    x: torch.Tensor, plain: torch.Tensor, upper: torch.Tensor, bias: torch.Tensor | None, *fp8_only: Any
) -> torch.Tensor:
    if ops.get_mode() is Mode.FP16:
        return torch.nn.functional.linear(
            x, plain, bias
        )  # as UnquantizedLinearMethod does, whatever vLLM's linear_backend
    return ops.linear(x, upper, None, bias, *fp8_only)


def _on_cpu(
    x: torch.Tensor, plain: torch.Tensor, upper: torch.Tensor, bias: torch.Tensor | None, *fp8_only: Any
) -> torch.Tensor:
    if ops.get_mode() is Mode.FP16:
        layer: Any = _layers[int(plain)]
        out: torch.Tensor = layer.nestedfp_plain.apply(layer, x, bias)
        return out
    return ops.linear(x, upper, None, bias, *fp8_only)


def _fake(
    x: torch.Tensor, plain: torch.Tensor, upper: torch.Tensor, bias: torch.Tensor | None, *rest: Any
) -> torch.Tensor:
    n = rest[3]
    return x.new_empty(*x.shape[:-1], n)


# Not torch.library.custom_op, whose wrappers cost as much again as the call: that is host time of every step without a graph.
_library = torch.library.Library("nestedfp", "FRAGMENT")
_library.define(
    "two_copies(Tensor x, Tensor plain, Tensor upper, Tensor? bias, Tensor? outlier_rows, Tensor? outlier_cols, "
    "Tensor? outlier_deltas, SymInt n, SymInt k, bool quantize_activations) -> Tensor"
)
_library.impl("two_copies", _on_cpu, "CPU")
_library.impl("two_copies", _on_gpu, "CUDA")
torch.library.register_fake("nestedfp::two_copies", _fake, lib=_library)
