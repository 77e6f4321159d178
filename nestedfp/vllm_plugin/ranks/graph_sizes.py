"""Token counts of CUDA graphs above vLLM's own largest size. Pure."""

from nestedfp.modes import Mode

# What the host takes at most to launch a layer of a step, without a graph (40 ms for 32 of them, docs/benchmarks.md) and in
# pieces between two attentions.
HOST_MS_PER_LAYER, HOST_MS_PER_LAYER_IN_PIECES = 1.25, 0.6
# What a multiprocessor of an H100 reaches in the linear layers of steps of some hundred tokens, whole steps looked at.
FLOP_PER_MS = {Mode.FP16: 600e9 / 132, Mode.FP8: 900e9 / 132}


def larger_sizes(largest: int, up_to: int) -> list[int]:
    """Return the token counts to capture above ``largest``: apart by 32, from 1024 by 128, and ``up_to``.

    A step is padded to the next size, so that it computes up to 6 or 12 % more than it must, half of that in the mean.
    """
    spaced = {n for n in range(32, up_to + 1, 32) if n % (32 if n <= 1024 else 128) == 0}
    return sorted(n for n in spaced | {up_to} if n > largest)


# Exact rows of a graph of a step of both kinds: 64 are what one launch for both has room for (csrc/cuda/config/mixed.h).
MIXED_EXACT_ROWS = (64, 128, 192, 256, 384, 512, 640, 768, 1024)


def mixed_sizes(up_to: int) -> list[tuple[int, int]]:
    """Return exact rows and all rows of each graph of a step that has exact and fast ones, in the order in which they are tried.

    A step replays the first that holds it. Fast rows that lie within a graph's exact ones are computed in FP16.
    """
    apart = [*range(64, 769, 64), *range(896, up_to, 128)]
    totals = [n for n in apart if n < up_to] + [up_to]
    return [(exact, total) for exact in MIXED_EXACT_ROWS for total in totals if total > exact]


def host_bound_tokens(weights: int, layers: int, mode: Mode, multiprocessors: int, in_pieces: bool = False) -> int:
    """Return the most tokens of a step that the GPU computes sooner than the host launches it.

    For larger ones a graph saves nothing, and padding and memory are what it costs. One graph for the whole step costs some time
    of the GPU besides: its attention is laid out for as many requests as it has tokens.

    Args:
        weights: of the model's linear layers on one rank, each multiplied once by every token.
        layers: that have attention.
        in_pieces: launched as graphs of the pieces between two attentions, not kernel by kernel.
    """
    gpu_ms_per_token = 2 * weights / (FLOP_PER_MS[mode] * multiprocessors)
    host_ms = layers * (HOST_MS_PER_LAYER_IN_PIECES if in_pieces else HOST_MS_PER_LAYER)
    return int(host_ms / gpu_ms_per_token)
