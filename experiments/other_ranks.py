"""Step costs of an engine that nobody timed, from those of one that somebody did: more tensor-parallel ranks, or another shape.

A rank does its share of the source's work, in the time that the source took for as much, and all ranks add up their results twice a
layer. Pure. What each part of a measured step grows with:

    weights streamed   twice what FP16 mode's fixed part has over FP8 mode's, which reads half the bytes: with a rank's weights
    rest of the fixed  launches, norms, the head of the vocabulary: with the number of layers, whatever the ranks
    each token         with a rank's weights
    each decode        the KV cache that it reads: with layers and a rank's KV heads
    the sums           ALL_REDUCE_US each, and a token's hidden state at ALL_REDUCE_GB_S: twice a layer

The two constants are round numbers for GPUs of one host over NVLink. What the engine of the 24B shape timed at its start on two
ranks is within 8 % of what this makes of one rank's; what that of the 70B shape did on four, within 10 % up to 256 tokens and up to
a quarter above it at 384 to 768, on two up to a fifth below it (``benchmarks/results/start-costs-ranks.csv``).
"""

from nestedfp.offline.roofline import FP16_BYTES, ModelShape
from simulator.engine.cost_table import EngineTable, StepTimeModel
from simulator.errors import SimulationError

ALL_REDUCE_US = 10.0
ALL_REDUCE_GB_S = 250.0


def derive(table: EngineTable, source: ModelShape, target: ModelShape, ranks: int) -> EngineTable:
    """Return the table of ``target`` on ``ranks`` GPUs, from that of ``source`` on one.

    Raises:
        SimulationError: when a rank's share of the weights does not fit into a GPU's memory, as the source's table has it.
    """
    weights = _elements(target.linear) / ranks / _elements(source.linear)
    kv = target.layers * target.kv_heads / ranks / (source.layers * source.kv_heads)
    layers = target.layers / source.layers
    streamed_ms = 2 * (table.fp16.fixed_ms - table.fp8.fixed_ms)
    sums = 2 * target.layers if ranks > 1 else 0
    sum_ms = sums * ALL_REDUCE_US * 1e-3
    sum_us_per_token = sums * target.plain[0][1] * FP16_BYTES / (ALL_REDUCE_GB_S * 1e3)

    def scaled(costs: StepTimeModel, streamed_share: float) -> StepTimeModel:
        streamed = streamed_share * streamed_ms
        return costs.model_copy(
            update={
                "fixed_ms": streamed * weights + (costs.fixed_ms - streamed) * layers + sum_ms,
                "per_token_us": costs.per_token_us * weights + sum_us_per_token,
                "over_knee_us": costs.over_knee_us * weights,
                "per_decode_us": costs.per_decode_us * kv,
                "per_kv_token_ns": costs.per_kv_token_ns * kv,
            }
        )

    start_costs = None
    if table.start_costs is not None:
        # The same arithmetic; its first row is a step of one token, which has nothing but the fixed part.
        _, fp16_ms, fp8_ms = table.start_costs[0]
        rest_ms = fp16_ms - 2 * (fp16_ms - fp8_ms)

        def started(tokens: int, ms: float) -> float:
            return (ms - rest_ms) * weights + rest_ms * layers + sum_ms + sum_us_per_token * tokens * 1e-3

        start_costs = tuple((n, started(n, fp16), started(n, fp8)) for n, fp16, fp8 in table.start_costs)

    memory, target_bytes = _weight_bytes(source) + table.engine.kv_tokens * _kv_bytes(source), _weight_bytes(target)
    left = memory - target_bytes / ranks
    if left <= 0:
        raise SimulationError(
            f"a rank's weights of {target_bytes / ranks / 1e9:.0f} GB do not fit into the {memory / 1e9:.0f} GB that "
            "weights and KV cache had on the source's GPU; give more ranks"
        )
    kv_tokens = int(left / (_kv_bytes(target) / ranks))
    return table.model_copy(
        update={
            "engine": table.engine.model_copy(update={"kv_tokens": kv_tokens}),
            "fp16": scaled(table.fp16, 1.0),
            "fp8": scaled(table.fp8, 0.5),
            "start_costs": start_costs,
        }
    )


def _elements(matrices: tuple[tuple[int, int], ...]) -> int:
    return sum(n * k for n, k in matrices)


def _weight_bytes(shape: ModelShape) -> int:
    """Bytes of all weights; the embedding is as large as the output head."""
    return FP16_BYTES * (_elements(shape.linear) + 2 * _elements(shape.plain))


def _kv_bytes(shape: ModelShape) -> int:
    """Bytes of a token's KV cache."""
    return 2 * FP16_BYTES * shape.layers * shape.kv_heads * shape.head_dim
