"""What the hardware allows a step at best: bytes over bandwidth, or arithmetic over its peak, whichever takes longer. Pure.

Each part of a step, linear layers, output head and attention, waits for the slower of its two; the parts follow each other.
Launches, norms and communication between GPUs are not in it, so a measured step takes longer.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nestedfp.checkpoint import CheckpointError
from nestedfp.steps.step_costs import StepCost, StepCosts

EXACT, FAST = "exact", "fast"
ROWS = tuple(1 << power for power in range(12))
FP16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet, dense arithmetic."""

    bytes_per_s: float
    fp16_flops: float
    fp8_flops: float


GPUS = {
    "H100": Gpu(3.35e12, 989e12, 1979e12),  # SXM
    "H200": Gpu(4.8e12, 989e12, 1979e12),
    "A100": Gpu(2.04e12, 312e12, 312e12),  # 80 GB SXM; multiplies no FP8: it reads the upper plane only
    "L40S": Gpu(0.864e12, 362e12, 733e12),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder.

    Attributes:
        linear: (output, input) features of each linear layer that has an FP8 mode.
        plain: likewise of those that have none; the output head.
        layers, heads, kv_heads, head_dim: of attention.
    """

    linear: tuple[tuple[int, int], ...]
    plain: tuple[tuple[int, int], ...]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class RooflineStep:
    """One step of decodes, one row each, at best."""

    rows: int
    answers: str  # EXACT or FAST
    weight_bytes: int
    kv_bytes: int
    flops: int
    predicted_ms: float
    bound_by: str  # memory or arithmetic, for the linear layers
    measured_ms: float | None = None


def shape_of(config: Mapping[str, Any], matrices: Mapping[str, tuple[int, int]] | None, nested: set[str]) -> ModelShape:
    """Return the shape of a model.

    Args:
        config: config.json.
        matrices: shapes of a checkpoint's weights by module; None: there is no checkpoint, and a Llama's are made up.
        nested: those that have an FP8 mode.

    Raises:
        CheckpointError: config.json lacks a number, or the model has experts, whose bytes depend on the tokens.
    """
    inner = config.get("text_config")
    inner = inner if isinstance(inner, dict) else config
    if experts := next((key for key in inner if "experts" in key and inner[key]), None):
        raise CheckpointError(
            f"config.json: {experts}: experts are read as tokens choose them; a dense model was expected"
        )

    def number(key: str, default: int | None = None) -> int:
        found = inner.get(key) or default
        if not isinstance(found, int) or found < 1:
            raise CheckpointError(f"config.json: {key} is {found!r}, expected a positive integer")
        return found

    hidden, layers, heads = (number(key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads, head_dim = number("num_key_value_heads", heads), number("head_dim", hidden // heads)
    head = (number("vocab_size"), hidden)
    if matrices is None:
        inside, between = heads * head_dim, number("intermediate_size")
        one = ((inside + 2 * kv_heads * head_dim, hidden), (hidden, inside), (2 * between, hidden), (hidden, between))
        return ModelShape(one * layers, (head,), layers, heads, kv_heads, head_dim)
    linear = tuple(shape for module, shape in matrices.items() if module in nested)
    # Embeddings are read by the row; the output head, which may be the same matrix, whole.
    plain = tuple(
        shape for module, shape in matrices.items() if module not in nested and shape != head and "layers." in module
    )
    return ModelShape(linear, (*plain, head), layers, heads, kv_heads, head_dim)


def step(shape: ModelShape, gpu: Gpu, answers: str, rows: int, context_tokens: int, ranks: int) -> RooflineStep:
    """Return what a step of ``rows`` decodes moves and computes on each of ``ranks`` GPUs, and what it takes at best.

    Args:
        context_tokens: entries of the KV cache (FP16) that each row attends to.
    """
    fast = answers == FAST
    linear = sum(n * k for n, k in shape.linear) // ranks
    plain = sum(n * k for n, k in shape.plain) // ranks
    moved = sum(n + k for n, k in shape.linear) * rows * FP16_BYTES // ranks  # activations, in and out
    kv_bytes = rows * context_tokens * 2 * FP16_BYTES * shape.layers * shape.kv_heads * shape.head_dim // ranks
    attended = 4 * rows * context_tokens * shape.layers * shape.heads * shape.head_dim // ranks
    linear_bytes = linear * (1 if fast else FP16_BYTES)
    memory_s = (linear_bytes + moved) / gpu.bytes_per_s
    arithmetic_s = 2 * rows * linear / (gpu.fp8_flops if fast else gpu.fp16_flops)
    seconds = max(memory_s, arithmetic_s)
    seconds += max(plain * FP16_BYTES / gpu.bytes_per_s, 2 * rows * plain / gpu.fp16_flops)
    seconds += max(kv_bytes / gpu.bytes_per_s, attended / gpu.fp16_flops)
    return RooflineStep(
        rows,
        answers,
        linear_bytes + plain * FP16_BYTES,
        kv_bytes,
        2 * rows * (linear + plain) + attended,
        seconds * 1e3,
        "memory" if memory_s > arithmetic_s else "arithmetic",
    )


def free_rows(gpu: Gpu, answers: str) -> int:
    """Return how many rows a linear layer multiplies while its weights are read."""
    if answers == FAST:
        return int(gpu.fp8_flops / (2 * gpu.bytes_per_s))
    return int(gpu.fp16_flops / gpu.bytes_per_s)


def measured_ms(table: Mapping[str, Any], answers: str, rows: int, context_tokens: int) -> float:
    """Return what a step of decodes took by a table of the simulator (docs/simulator.md has the formula).

    Raises:
        CheckpointError: it is no such table.
    """
    try:
        c = {key: float(value) for key, value in table["fp8" if answers == FAST else "fp16"].items()}
        over = max(0.0, rows - c["knee_tokens"])
        tokens_us = c["per_token_us"] * rows + c["over_knee_us"] * over + c["per_decode_us"] * rows
        return c["fixed_ms"] + tokens_us * 1e-3 + c["per_kv_token_ns"] * rows * context_tokens * 1e-6
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"expected a table of the simulator with fp16 and fp8 coefficients, got none ({error!r})"
        ) from None


def pays_from(steps: list[RooflineStep], *, measured: bool) -> int | None:
    """Return the rows from which on fast steps save 5 % of the exact ones; None: they do not."""
    times = {(s.rows, s.answers): (s.measured_ms if measured else s.predicted_ms) or 0.0 for s in steps}
    costs = (StepCost(rows, times[rows, EXACT], times[rows, FAST]) for rows in sorted({s.rows for s in steps}))
    return StepCosts(tuple(costs)).fp8_pays_from()


def report(gpu_name: str, steps: list[RooflineStep], context_tokens: int, ranks: int) -> dict[str, Any]:
    """Return all of it for JSON (docs/fidelity.md has the schema)."""
    gpu = GPUS[gpu_name]
    has_measured = all(each.measured_ms for each in steps)
    return {
        "schema_version": 1,
        "gpu": {"name": gpu_name, **asdict(gpu)},
        "ranks": ranks,
        "context_tokens": context_tokens,
        "free_rows": {answers: free_rows(gpu, answers) for answers in (EXACT, FAST)},
        "fast_pays_from_rows": {
            "predicted": pays_from(steps, measured=False),
            "measured": pays_from(steps, measured=True) if has_measured else None,
        },
        "steps": [asdict(each) for each in steps],
    }


def table(found: Mapping[str, Any]) -> str:
    """Return the report for a terminal."""
    rows = sorted({each["rows"] for each in found["steps"]})
    by = {(each["rows"], each["answers"]): each for each in found["steps"]}
    measured = all(each["measured_ms"] for each in found["steps"])
    lines = [
        f"{'rows':>5} {'':6} {'weights':>9} {'KV':>9} {'arithmetic':>12} {'at best':>9}{'  measured' if measured else ''}"
    ]
    for count in rows:
        for answers in (EXACT, FAST):
            each = by[count, answers]
            lines.append(
                f"{count:5} {answers:6} {each['weight_bytes'] / 1e9:6.2f} GB {each['kv_bytes'] / 1e9:6.2f} GB "
                f"{each['flops'] / 1e12:7.3f} TFLOP {each['predicted_ms']:6.2f} ms"
                + (f" {each['measured_ms']:6.2f} ms" if measured else "")
                + (" (arithmetic)" if each["bound_by"] == "arithmetic" else "")
            )
    pays = found["fast_pays_from_rows"]
    said = ", ".join(
        f"{kind} from {pays[kind]} rows on" if pays[kind] else f"{kind} at no end"
        for kind in ("predicted", "measured")[: 1 + measured]
    )
    free = found["free_rows"]
    lines.append(f"rows that the weights' reading hides: {free[EXACT]} exact, {free[FAST]} fast; fast pays: {said}")
    return "\n".join(lines)
