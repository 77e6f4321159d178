"""The numerical self-check of an engine's start: what lies in memory is what was loaded, and both precisions compute with it.

Three questions, asked of every nested layer once the rest of the start is done; two small
products and one pass over the planes each:

    Are the planes still those that were packed? A checksum of each, taken when they were packed and now.
    Does FP8 mode compute about what FP16 mode does? The cosine between the two for a probe.
    Does FP16 mode compute with the stored weights? Its product against PyTorch's with the planes joined; for one layer of each
    shape, and its first rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nestedfp.format import join
from nestedfp.kernels import ops
from nestedfp.modes import Mode

TOKENS = 4
SEED = 20
ROWS_COMPARED = 256
LEAST_COSINE = (
    0.9  # layers of real models have 0.998 and more; one whose weights FP8 cannot hold, or a broken kernel, far less
)
MOST_RELATIVE_ERROR = 0.02  # of a probe's outputs, against their root mean square; FP16's own rounding makes 0.001


class SelfCheckError(RuntimeError):
    """The engine must not serve; the message names the layer, what was expected and what came."""


@dataclass(frozen=True)
class SelfCheck:
    """What the check found on one rank."""

    layers: int
    plane_bytes: int
    worst_cosine: float | None  # None: no nested layer
    worst_layer: str

    def line(self) -> str:
        """Return one line for a person."""
        if self.worst_cosine is None:
            return "self-check: no nested layer"
        return (
            f"self-check: {self.layers} nested layers, {self.plane_bytes / 1e9:.3g} GB of planes as they were loaded; lowest "
            f"cosine of FP8 against FP16 {self.worst_cosine:.4f} ({self.worst_layer})"
        )


def checksum(plane: torch.Tensor) -> int:
    """Return the sum of a plane's 64-bit words (of its bytes, where they make no whole words), modulo 2^64.

    Every change of a single byte changes it.
    """
    flat = plane.reshape(-1)
    words = flat.view(torch.int64) if flat.numel() % 8 == 0 else flat.to(torch.int64)
    return int(words.sum())


def remember(layer: torch.nn.Module) -> None:
    """Keep the checksums of a layer's planes, as they were packed."""
    layer.nestedfp_checksums = (checksum(layer.weight_upper.data), checksum(layer.weight_lower.data))


def nested_layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers that have planes."""
    for name, module in model.named_modules():
        if getattr(module, "nestedfp", False):
            yield name, module


def run(model: torch.nn.Module) -> SelfCheck:
    """Check a loaded model on this rank; leaves FP16 mode in force.

    Raises:
        SelfCheckError: for the first layer that is not as it should be.
    """
    layers = plane_bytes = 0
    worst, worst_layer = None, ""
    shapes: set[tuple[int, int]] = set()
    try:
        for name, layer in nested_layers(model):
            _require_loaded_planes(name, layer)
            layers += 1
            plane_bytes += layer.weight_upper.nbytes + layer.weight_lower.nbytes
            x = _probe(layer.nestedfp_shape[1], layer.weight_upper.device)
            exact = _outputs(layer, x, Mode.FP16)
            cosine = _cosine(exact, _outputs(layer, x, Mode.FP8))
            if not cosine >= LEAST_COSINE:
                raise SelfCheckError(
                    f"{name}: FP8 mode computes something else than FP16 mode (cosine {cosine:.4f} on a probe, expected at "
                    f"least {LEAST_COSINE}); its weights are too small for E4M3, or a kernel is broken on this machine; serve "
                    "with engine.quantization: none and report it"
                )
            if worst is None or cosine < worst:
                worst, worst_layer = cosine, name
            if layer.nestedfp_shape not in shapes:
                shapes.add(layer.nestedfp_shape)
                _require_exact(name, layer, x, exact)
    finally:
        ops.set_mode(Mode.FP16)
    return SelfCheck(layers, plane_bytes, worst, worst_layer)


def _require_loaded_planes(name: str, layer: Any) -> None:
    now = (checksum(layer.weight_upper.data), checksum(layer.weight_lower.data))
    for plane, before, after in zip(("upper", "lower"), layer.nestedfp_checksums, now, strict=True):
        if before != after:
            raise SelfCheckError(
                f"{name}: the {plane} plane has changed since it was loaded (checksum {before & (2**64 - 1):016x}, now "
                f"{after & (2**64 - 1):016x}): something wrote into it, or the memory is faulty; start again, on another "
                "device if it comes back"
            )


def _require_exact(name: str, layer: Any, x: torch.Tensor, outputs: torch.Tensor) -> None:
    n, k = layer.nestedfp_shape
    rows = min(n, ROWS_COMPARED)
    upper, lower = ops.unpack(layer.weight_upper.data, layer.weight_lower.data, n, k)
    weight = join(upper[:rows].contiguous(), lower[:rows].contiguous()).float()
    if layer.outlier_deltas is not None:
        listed = layer.outlier_rows < rows
        at = (layer.outlier_rows[listed].long(), layer.outlier_cols[listed].long())
        weight.index_put_(at, layer.outlier_deltas[listed].float(), accumulate=True)
    expected = x.float() @ weight.T
    scale = expected.square().mean().sqrt().clamp_min(torch.finfo(torch.float16).tiny)
    error = float((outputs[:, :rows].float() - expected).abs().max() / scale)
    if not error <= MOST_RELATIVE_ERROR:
        raise SelfCheckError(
            f"{name}: FP16 mode does not compute with the stored weights (error {error:.3g} of the outputs' root mean square, "
            f"expected at most {MOST_RELATIVE_ERROR}): the kernel is broken on this machine; serve with engine.quantization: "
            "none and report it"
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
