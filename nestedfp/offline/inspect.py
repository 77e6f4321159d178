"""What a checkpoint's linear layers are like and what the loader makes of them: one report, for a table and JSON."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestedfp.checkpoint import CheckpointError, read_config, read_weights
from nestedfp.eligible import beyond_fp16
from nestedfp.offline.profile import Profile
from nestedfp.offline.reading import Progress, Weight, profiles, weights_of
from nestedfp.offline.verdicts import LISTED, NESTED, PLAIN, Verdict, gemm_of, judge

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One matrix of the checkpoint."""

    module: str
    gemm: str  # type of the fused layer that it is part of: qkv, o_proj, gate_up, down_proj, ...
    weight: Weight
    verdict: Verdict
    profile: Profile

    def as_json(self) -> dict[str, Any]:
        """Return it for the report."""
        return {
            "module": self.module,
            "gemm": self.gemm,
            "dtype": self.weight.dtype,
            "shape": list(self.weight.shape),
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            **self.profile.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Inspection:
    """A whole checkpoint.

    Attributes:
        folder: its path.
        layers: matrices that are some module's weight, in the order of their names' numbers.
        faults: by tensor, why FP16 cannot hold it; by config.json, why FP16 does not suit the model.
        nbytes: of all tensors, as stored.
        nested_bytes: of those that have an FP8 mode, as FP16.
    """

    folder: Path
    layers: list[Layer]
    faults: dict[str, str]
    nbytes: int
    nested_bytes: int

    @property
    def linear(self) -> list[Layer]:
        """The layers that can be nested by their names."""
        return [layer for layer in self.layers if layer.verdict.is_linear]

    def by_gemm(self) -> dict[str, list[Layer]]:
        """Return the linear layers by type."""
        found: dict[str, list[Layer]] = {}
        for layer in self.linear:
            found.setdefault(layer.gemm, []).append(layer)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the report (docs/fidelity.md has the schema)."""
        verdicts = Counter(layer.verdict.kind for layer in self.linear)
        return {
            "schema_version": SCHEMA_VERSION,
            "model": str(self.folder),
            "totals": {
                "bytes": self.nbytes,
                "fp8_bytes": self.nested_bytes,
                "linear_layers": len(self.linear),
                "verdicts": dict(verdicts),
                **self.total(self.linear).as_json(),
            },
            "gemms": {
                gemm: {"layers": len(layers), **self.total(layers).as_json()} for gemm, layers in self.by_gemm().items()
            },
            "layers": [layer.as_json() for layer in self.layers],
            "faults": self.faults,
        }

    @staticmethod
    def total(layers: list[Layer]) -> Profile:
        """Return the statistics of several layers together."""
        return sum((layer.profile for layer in layers), Profile())


def inspect(folder: Path, progress: Progress) -> Inspection:
    """Read a checkpoint, plain or converted.

    Args:
        folder: with config.json and safetensors shards.
        progress: is told of bytes read.

    Raises:
        CheckpointError: it cannot be read, or is quantised by another method.
    """
    config = read_config(folder)
    method = (config.get("quantization_config") or {}).get("quant_method", "nestedfp")
    if method != "nestedfp":
        raise CheckpointError(f"{folder} is quantised already ({method}); inspect the original FP16 or BF16 checkpoint")
    weights = weights_of(read_weights(folder))
    found = profiles(weights, progress)
    verdicts = judge({name: weight.shape for name, weight in weights.items()}, found)
    layers = [
        Layer(module, gemm_of(module)[1], weights[f"{module}.weight"], verdict, found[f"{module}.weight"])
        for module, verdict in sorted(verdicts.items(), key=lambda item: _numbers_first(item[0]))
    ]
    return Inspection(
        folder,
        layers,
        {
            **({"config.json": said} if (said := beyond_fp16(config)) else {}),
            **{name: profile.fault for name, profile in found.items() if profile.fault},
        },
        sum(weight.nbytes for weight in weights.values()),
        sum(2 * layer.weight.elements for layer in layers if layer.verdict.kind != PLAIN),
    )


def _numbers_first(module: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in module.split(".")]


def table(found: Inspection) -> str:
    """Return the report for a terminal: a line for each type of layer, then those that stay plain, then totals."""
    head = f"{'type':16} {'layers':>6} {'nested':>6} {'listed':>6} {'plain':>6}"
    head += f" {'smallest':>9} {'largest':>9} {'>1.75':>8} {'subnormal':>9} {'cast':>8} {'FP8 error':>9}"
    lines = [head]
    for gemm, layers in [*found.by_gemm().items(), ("all", found.linear)]:
        kinds = Counter(layer.verdict.kind for layer in layers)
        line = f"{gemm[:16]:16} {len(layers):6} {kinds[NESTED]:6} {kinds[LISTED]:6} {kinds[PLAIN]:6}"
        of = found.total(layers)
        share = f"{of.outliers / max(1, of.total):.1e}" if of.outliers else "0"
        casts = f"{(of.flushed + of.rounded) / max(1, of.total):.1e}" if of.flushed + of.rounded else "0"
        line += (
            f" {min(of.minimum, 0):9.3f} {max(of.maximum, 0):9.3f} {share:>8} {of.subnormals / max(1, of.total):9.1e}"
        )
        lines.append(f"{line} {casts:>8} {of.fp8_error:9.2%}")
    for layer in found.linear:
        if layer.verdict.kind == PLAIN:
            lines.append(f"plain: {layer.module}: {layer.verdict.reason}")
    lines += [f"fault: {name}: {fault}" for name, fault in found.faults.items()]
    covered = found.nested_bytes / max(1, found.nbytes)
    lines.append(f"{found.nbytes / 1e9:.3g} GB of weights, {covered:.1%} have an FP8 mode")
    return "\n".join(lines)
