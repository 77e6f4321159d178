"""The numerical self-check of an engine's start: what lies in memory is what was loaded, and both precisions compute with it.

Three questions, asked once the rest of the start is done; two small products and one pass over the planes of every nested layer:

    Are the planes still those that were packed? A checksum of each, taken when they were packed and now.
    Does FP8 mode compute about what FP16 mode does? The cosine between the two for a probe.
    Does FP16 mode compute with the stored weights? Its product against PyTorch's with the planes joined; for the first rows of one
    linear layer of each shape. Experts are not asked.

Where norms and activations have the quantiser in them, they are asked as well, before one layer of each shape: do they compute what
PyTorch does, and does the layer make of their carrier what it makes of the same activations?
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nestedfp.kernels import ops
from nestedfp.kernels.activations import CARRIER_COLUMNS, MAX_NORM_COLUMNS
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.weights.expert_planes import PLANES as EXPERT_PLANES
from nestedfp.vllm_plugin.weights.expert_planes import STACKS, nested_experts

TOKENS = 4
SEED = 20
ROWS_COMPARED = 256
EPSILON = 1e-6  # of a norm
LEAST_COSINE = (
    0.9  # layers of real models have 0.998 and more; one whose weights FP8 cannot hold, or a broken kernel, far less
)
FUSED = "{}: {} before it computes something else in {} mode than on its own"
MOST_RELATIVE_ERROR = 0.02  # of a probe's outputs, against their root mean square; FP16's own rounding makes 0.001


class SelfCheckError(RuntimeError):
    """The engine must not serve; the message names the layer, what was expected and what came."""


@dataclass(frozen=True)
class SelfCheck:
    """What the check found on one rank."""

    layers: int
    plane_bytes: int  # that have a checksum
    worst_cosine: float | None  # None: no nested layer
    worst_layer: str

    def line(self) -> str:
        """Return one line for a person."""
        if self.worst_cosine is None:
            return "self-check: no nested layer"
        return (
            f"self-check: {self.layers} nested layers, {self.plane_bytes / 1e9:.3g} GB of weights as they were loaded; lowest "
            f"cosine of FP8 against FP16 {self.worst_cosine:.4f} ({self.worst_layer})"
        )


def checksum(plane: torch.Tensor) -> int:
    """Return the sum of a tensor's 64-bit words (of its bytes, where they make no whole words), modulo 2^64.

    Every change of a single byte changes it.
    """
    flat = plane.reshape(-1).view(torch.uint8)
    words = flat.view(torch.int64) if flat.numel() % 8 == 0 else flat.to(torch.int64)
    return int(words.sum())


def stored(layer: Any) -> dict[str, torch.Tensor]:
    """Return what lies in memory of a layer's weight, by name."""
    if getattr(layer, "nestedfp_experts", False):
        return {
            f"{stack}_{plane}": getattr(layer, f"{stack}_{plane}").data for stack in STACKS for plane in EXPERT_PLANES
        }
    return {"upper plane": layer.weight_upper.data, "lower plane": layer.weight_lower.data}


def remember(layer: Any) -> None:
    """Keep the checksums of a layer's planes, as they were packed."""
    layer.nestedfp_checksums = {part: checksum(tensor) for part, tensor in stored(layer).items()}


def nested_layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers that have planes."""
    for name, module in model.named_modules():
        if getattr(module, "nestedfp", False):
            yield name, module


def run(model: torch.nn.Module, *, is_fused: bool = False) -> SelfCheck:
    """Check a loaded model on this rank; leaves FP16 mode in force.

    Args:
        model: with its weights.
        is_fused: its compiled graphs have norms and activations with the quantiser in them (weights/fused_quantiser.py).

    Raises:
        SelfCheckError: for the first layer that is not as it should be.
    """
    found: dict[str, tuple[Any, float]] = {}  # layers by name, and their cosines
    shapes: set[tuple[int, int]] = set()
    try:
        for name, layer in nested_layers(model):
            _require_loaded_planes(name, layer)
            x = _probe(layer.nestedfp_shape[1], layer.weight_upper.device)
            exact = _outputs(layer, x, Mode.FP16)
            found[name] = layer, _required_cosine(name, exact, _outputs(layer, x, Mode.FP8))
            if layer.nestedfp_shape not in shapes:
                shapes.add(layer.nestedfp_shape)
                _require_exact(name, layer, x, exact)
                if is_fused:
                    _require_fused(name, layer)
        for name, layer in nested_experts(model):
            _require_loaded_planes(name, layer)
            found[name] = layer, _required_cosine(name, *_outputs_of_experts(layer))
    finally:
        ops.set_mode(Mode.FP16)
    plane_bytes = sum(tensor.nbytes for layer, _ in found.values() for tensor in stored(layer).values())
    worst = min(((cosine, name) for name, (_, cosine) in found.items()), default=(None, ""))
    return SelfCheck(len(found), plane_bytes, *worst)


def _outputs_of_experts(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the first experts and the last one make of a probe in FP16 mode and in FP8 mode."""
    planes = layer.w13_weight_upper
    x = _probe(layer.hidden_size, planes.device)
    ids = torch.arange(TOKENS, dtype=torch.int32, device=planes.device) % len(planes)
    ids[-1] = len(planes) - 1
    ones = torch.ones(TOKENS, 1, device=planes.device)
    found = []
    for mode in (Mode.FP16, Mode.FP8):
        ops.set_mode(mode)
        found.append(layer.quant_method.run(layer, x, ones, ids[:, None]))
    return found[0], found[1]


def _required_cosine(name: str, exact: torch.Tensor, rounded: torch.Tensor) -> float:
    cosine = _cosine(exact, rounded)
    if not cosine >= LEAST_COSINE:
        raise SelfCheckError(
            f"{name}: FP8 mode computes something else than FP16 mode (cosine {cosine:.4f} on a probe, expected at least "
            f"{LEAST_COSINE}); its weights are too small for E4M3, or a kernel is broken on this machine; serve with "
            "engine.quantization: none and report it"
        )
    return cosine


def _require_loaded_planes(name: str, layer: Any) -> None:
    for part, tensor in stored(layer).items():
        before, after = layer.nestedfp_checksums[part], checksum(tensor)
        if before != after:
            raise SelfCheckError(
                f"{name}: the {part} has changed since it was loaded (checksum {before & (2**64 - 1):016x}, now "
                f"{after & (2**64 - 1):016x}): something wrote into it, or the memory is faulty; start again, on another "
                "device if it comes back"
            )


def _require_exact(name: str, layer: Any, x: torch.Tensor, outputs: torch.Tensor) -> None:
    n, k = layer.nestedfp_shape
    rows = min(n, ROWS_COMPARED)
    weight = ops.join_rows(layer.weight_upper.data, layer.weight_lower.data, n, k, 0, rows).float()
    said = f"{name}: FP16 mode does not compute with the stored weights"
    expected = x.float() @ weight.T + _listed_part(layer, x, rows)
    _require_close(said, outputs[:, :rows], expected, "engine.quantization: none")


def _require_fused(name: str, layer: Any) -> None:
    n, k = layer.nestedfp_shape
    if layer.outlier_deltas is not None or k % CARRIER_COLUMNS:
        return  # such layers read what was not quantised
    weights = layer.weight_upper.data, layer.weight_lower.data
    both = _probe(2 * k, weights[0].device)
    x, scale = both[:, :k].contiguous(), both[0, k:].contiguous()
    normed = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPSILON)).half() * scale
    operators: dict[str, tuple[Callable[[], tuple[torch.Tensor, torch.Tensor]], torch.Tensor]] = {
        "silu_and_mul": (lambda: ops.silu_and_mul(both), torch.nn.functional.silu(x) * both[:, k:])
    }
    if k <= MAX_NORM_COLUMNS:
        operators["rms_norm"] = (lambda: ops.rms_norm(x, scale, EPSILON), normed)
    for operator, (make, expected) in operators.items():
        ops.set_mode(Mode.FP16)
        halves, _ = make()
        _require_close(FUSED.format(name, operator, "FP16"), halves, expected, "engine.fused_quantiser: never")
        for mode in Mode:
            ops.set_mode(mode)
            carried = ops.linear_carried(*make(), *weights, None, n, k)
            plain = ops.linear(halves, *weights, None, None, None, None, n, k, True)
            said = FUSED.format(name, operator, mode.value.upper())
            _require_close(said, carried, plain, "engine.fused_quantiser: never")


def _listed_part(layer: Any, x: torch.Tensor, rows: int) -> torch.Tensor | float:
    """Return what the listed weights add to a product [tokens, rows], which either mode takes from ``x`` as it is."""
    if layer.outlier_deltas is None:
        return 0.0
    weight = torch.zeros(rows, x.shape[1], device=x.device)
    listed = layer.outlier_rows < rows
    at = (layer.outlier_rows[listed].long(), layer.outlier_cols[listed].long())
    weight.index_put_(at, layer.outlier_deltas[listed].float(), accumulate=True)
    return x.float() @ weight.T


def _require_close(said: str, found: torch.Tensor, expected: torch.Tensor, remedy: str) -> None:
    """Compare the largest difference with the root mean square of what was expected."""
    wanted = expected.float()
    scale = wanted.square().mean().sqrt().clamp_min(torch.finfo(torch.float16).tiny)
    error = float((found.float() - wanted).abs().max() / scale)
    if not error <= MOST_RELATIVE_ERROR:
        raise SelfCheckError(
            f"{said} (error {error:.3g} of the outputs' root mean square, expected at most {MOST_RELATIVE_ERROR}): the kernel "
            f"is broken on this machine; serve with {remedy} and report it"
        )


def _probe(k: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(TOKENS, k, generator=generator).to(device, torch.float16)


def _outputs(layer: Any, x: torch.Tensor, mode: Mode) -> torch.Tensor:
    ops.set_mode(mode)
    outputs: torch.Tensor = layer.quant_method.apply(layer, x, None)
    return outputs


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the cosine over all elements; 1 where both are zero, as of a layer of zeros."""
    left, right = a.double().flatten(), b.double().flatten()
    norms = float(left.norm() * right.norm())
    if norms == 0:
        return float(left.norm() == right.norm())
    return float(left @ right) / norms
