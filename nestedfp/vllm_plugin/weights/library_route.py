"""Large steps through the libraries' GEMMs, on the GPUs that run the portable kernels.

Those (csrc/cuda/portable) read weights at the memory's pace, which is what decoding takes, and compute prompts far from what a card
can whose fast instructions they do not have. So from some number of tokens on a layer is multiplied by a library:

    FP8 mode    vLLM's CUTLASS GEMM with a scale for each token, of the codes and the upper plane as they are: a row-major E4M3
                matrix whose K is permuted as the codes' is (csrc/cuda/kernels/layout.h). On 8.9, 9.0 and newer. It quantises the
                activations, also where the portable kernels do not.
    FP16 mode   torch's, of exact weights that are joined into scratch memory, some rows at a time.

From how many tokens on is measured on a model's own layers when an engine starts, against the portable kernels, whose results a
library's must agree with at every count that is timed; a library that does not, or fails, is not used. The operator,
``nestedfp::library_linear``, is opaque to torch.compile and reads the mode when it runs, as ``nestedfp::linear`` does.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.library
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger

from nestedfp.format import UPPER_SCALE
from nestedfp.kernels import ops
from nestedfp.kernels.cuda_library import BLOCK_ROWS, PackedWeight
from nestedfp.kernels.tuning.gemm_tuning import graph_us, rotation
from nestedfp.modes import Mode

logger = init_logger("vllm.nestedfp")

TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
LAUNCHES = 4  # of a graph that is timed
SCRATCH_BYTES = 64 << 20  # of joined weights at a time
# Of a token's outputs, and of BLOCK_COLUMNS of all of them, by which a library may differ from the portable kernels: by FP16's
# rounding, or by that of activations to E4M3 where those do not round them (0.026 in the mean).
MOST_RELATIVE_ERROR = {Mode.FP16: 0.01, Mode.FP8: 0.08}
BLOCK_COLUMNS = 16
CHECKED_ROWS = 256  # at a time

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, int, int], torch.Tensor]

_from_tokens: dict[tuple[int, int], dict[Mode, int]] = {}
_weight_scales: dict[torch.device, torch.Tensor] = {}


def fits(layer: Any) -> bool:
    """Whether a nested layer can go to the libraries; a list of outliers multiplies in the project's own operator only."""
    return layer.outlier_deltas is None and takes(*layer.nestedfp_shape)


def takes(n: int, k: int) -> bool:
    """Whether the libraries take weights of this shape."""
    return n % 16 == 0 and k % 8 == 0


def linear(layer: Any, x: torch.Tensor, bias: torch.Tensor | None, quantize_activations: bool) -> torch.Tensor:
    """Compute a layer's ``x @ W.T + bias`` in the mode in force when the operator runs.

    Args:
        layer: that ``fits``.
        x: [..., k] float16.
        bias: [n], or None.
        quantize_activations: in FP8 mode below the number of tokens, as ``ops.linear`` has it.

    Returns:
        [..., n] float16.
    """
    out: torch.Tensor = torch.ops.nestedfp.library_linear(
        x, layer.weight_upper, layer.weight_lower, bias, *layer.nestedfp_shape, quantize_activations
    )
    return out


def fp8_product(
    x: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, bias: torch.Tensor | None, n: int, k: int
) -> torch.Tensor:
    """Multiply [m, k] float16, quantised by token, by the upper plane; return [m, n] float16."""
    from vllm import _custom_ops

    codes, scales = torch.ops.nestedfp.quantize_rows(x)
    weight = upper.view(torch.float8_e4m3fn).t()
    out: torch.Tensor = _custom_ops.cutlass_scaled_mm(
        codes.view(torch.float8_e4m3fn), weight, scales, _weight_scale(x.device), torch.float16, bias
    )
    return out


def fp16_product(
    x: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, bias: torch.Tensor | None, n: int, k: int
) -> torch.Tensor:
    """Multiply [m, k] float16 by the exact weights, SCRATCH_BYTES of them at a time; return [m, n] float16."""
    out = x.new_empty(len(x), n)
    for first, rows in parts(n, k):
        weight = ops.join_rows(upper, lower, n, k, first, rows)
        part = out[:, first : first + rows]
        if bias is None:
            torch.mm(x, weight.t(), out=part)
        else:
            torch.addmm(bias[first : first + rows], x, weight.t(), out=part)
    return out


PRODUCTS: dict[Mode, Product] = {Mode.FP16: fp16_product, Mode.FP8: fp8_product}


def parts(n: int, k: int) -> list[tuple[int, int]]:
    """Return first row and number of rows of the parts in which n rows of k weights are joined."""
    most = max(BLOCK_ROWS, SCRATCH_BYTES // (2 * k) // BLOCK_ROWS * BLOCK_ROWS)
    return [(first, min(most, n - first)) for first in range(0, n, most)]


def first_worth(times: Sequence[tuple[int, float, float]]) -> int | None:
    """Return from how many tokens on a library is faster, there and at all larger counts that were timed.

    Args:
        times: (tokens, microseconds of the portable kernels, of the library), tokens ascending.

    Returns:
        The tokens; None: nowhere.
    """
    found = None
    for tokens, portable_us, library_us in reversed(times):
        if library_us >= portable_us:
            break
        found = tokens
    return found


def scratch_bytes() -> int:
    """Return the memory that FP16 steps take for joined weights, which FP8 steps do not."""
    return SCRATCH_BYTES if any(Mode.FP16 in tokens for tokens in _from_tokens.values()) else 0


def choose(shapes: Mapping[tuple[int, int], Sequence[PackedWeight]], max_tokens: int, measure: bool) -> None:
    """Measure from how many tokens on layers are multiplied by the libraries; rank 0 of a tensor-parallel group does for all.

    Args:
        shapes: weights by (N, K), with both planes.
        max_tokens: the most tokens that a step has.
        measure: without it, and until this is called, the portable kernels multiply everything.
    """
    began_s = time.monotonic()
    group = get_tp_group()
    found: Any = None
    for weights in shapes.values():
        _weight_scale(weights[0].upper.device)  # before graphs are captured
    if measure and group.rank_in_group == 0:
        modes = _modes()
        found = [
            (n, k, {mode.value: _measured(mode, weights, max_tokens) for mode in modes})
            for (n, k), weights in shapes.items()
            if takes(n, k)
        ]
    if group.world_size > 1:
        found = group.broadcast_object(found, src=0)
    _from_tokens.clear()
    for n, k, tokens in found or ():
        _from_tokens[n, k] = {Mode(mode): count for mode, count in tokens.items() if count is not None}
        said = ", ".join(
            f"{mode} {'nowhere' if count is None else f'from {count} on'}" for mode, count in tokens.items()
        )
        logger.info("a library multiplies N=%d, K=%d by tokens: %s", n, k, said)
    logger.info("portable kernels and libraries: ready after %.1f s", time.monotonic() - began_s)


def _modes() -> list[Mode]:
    return [Mode.FP16, Mode.FP8] if torch.cuda.get_device_capability() >= (8, 9) else [Mode.FP16]


def _measured(mode: Mode, weights: Sequence[PackedWeight], max_tokens: int) -> int | None:
    n, k = weights[0].n, weights[0].k
    rotated, times = rotation(weights), []
    ops.set_mode(mode)
    try:
        for tokens in (count for count in TOKENS if count <= max_tokens):
            x = activations(tokens, k, weights[0].upper.device)
            if not agrees(mode, x, weights[0]):
                raise RuntimeError(f"it computes something else for {tokens} tokens")
            # In turns: a card that becomes slower does so for both.
            turns = [_us(product, x, rotated) for product in (_portable, PRODUCTS[mode], PRODUCTS[mode], _portable)]
            times.append((tokens, turns[0] + turns[3], turns[1] + turns[2]))
    except RuntimeError as error:  # no kernel for this card, or no memory: such steps go the way they went before
        logger.warning("N=%d, K=%d in %s: a library is not used: %s", n, k, mode.value, error)
        return None
    finally:
        ops.set_mode(Mode.FP16)
    return first_worth(times)


def activations(tokens: int, k: int, device: torch.device) -> torch.Tensor:
    """Return random rows [tokens, k] float16 whose magnitudes differ by a factor of a hundred."""
    magnitudes = torch.logspace(-1, 1, tokens, device=device)[:, None]
    return (torch.randn(tokens, k, device=device) * magnitudes).half()


def agrees(mode: Mode, x: torch.Tensor, weight: PackedWeight) -> bool:
    """Whether the library computes what the portable kernels do: every token, and every BLOCK_COLUMNS outputs of all.

    Args:
        mode: in force.
        x: [m, k] float16.
        weight: whose N is a multiple of BLOCK_COLUMNS.
    """
    bias = torch.randn(weight.n, device=x.device, dtype=torch.float16)
    given = x, weight.upper, weight.lower, bias, weight.n, weight.k
    found, expected = PRODUCTS[mode](*given), _portable(*given)
    most = MOST_RELATIVE_ERROR[mode]
    of_blocks = torch.zeros(2, weight.n // BLOCK_COLUMNS, device=x.device)
    for rows in range(0, len(x), CHECKED_ROWS):
        wanted = expected[rows : rows + CHECKED_ROWS].float()
        squares = torch.stack([(found[rows : rows + CHECKED_ROWS].float() - wanted).square(), wanted.square()])
        of_tokens = squares.sum(2)
        if not bool((of_tokens[0] <= most**2 * of_tokens[1]).all()):
            return False
        of_blocks += squares.view(2, len(wanted), -1, BLOCK_COLUMNS).sum((1, 3))
    return bool((of_blocks[0] <= most**2 * of_blocks[1]).all())


def _portable(
    x: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, bias: torch.Tensor | None, n: int, k: int
) -> torch.Tensor:
    return ops.linear(x, upper, lower, bias, None, None, None, n, k, True)


def _us(product: Product, x: torch.Tensor, weights: Sequence[PackedWeight]) -> float:
    """Return microseconds of a product over weights that no cache holds."""

    def launch(i: int) -> None:
        weight = weights[i % len(weights)]
        product(x, weight.upper, weight.lower, None, weight.n, weight.k)

    return graph_us(launch, LAUNCHES)


def _weight_scale(device: torch.device) -> torch.Tensor:
    if device not in _weight_scales:
        _weight_scales[device] = torch.full((1,), 1 / UPPER_SCALE, device=device)
    return _weight_scales[device]


def _on_gpu(
    x: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    k: int,
    quantize_activations: bool,
) -> torch.Tensor:
    mode = ops.get_mode()
    rows = x.reshape(-1, k)
    if len(rows) >= _from_tokens.get((n, k), {}).get(mode, math.inf):
        return PRODUCTS[mode](rows, upper, lower, bias, n, k).view(*x.shape[:-1], n)
    return ops.linear(x, upper, lower, bias, None, None, None, n, k, quantize_activations)


def _fake(
    x: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, bias: torch.Tensor | None, n: int, *_: Any
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], n)


_library = torch.library.Library("nestedfp", "FRAGMENT")
_library.define(
    "library_linear(Tensor x, Tensor upper, Tensor lower, Tensor? bias, SymInt n, SymInt k, bool quantize_activations) -> Tensor"
)
_library.impl("library_linear", _on_gpu, "CUDA")
torch.library.register_fake("nestedfp::library_linear", _fake, lib=_library)
