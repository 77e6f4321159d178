"""Chooses the GEMM configs of a loaded model before anything is captured: nestedfp/kernels/tuning on the layers of the model.

Rank 0 of a tensor-parallel group times, the others take its times: all ranks have layers of the same shapes, and the same
choice on each keeps them in step.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger

from nestedfp.kernels.cuda_library import FP8, PackedWeight, describe
from nestedfp.kernels.cuda_library import choose as kernel_choice
from nestedfp.kernels.gpu_kernels import is_portable
from nestedfp.kernels.tuning import gemm_cache, gemm_tuning, mixed_tuning
from nestedfp.kernels.tuning.gemm_tuning import Timing
from nestedfp.kernels.tuning.mixed_tuning import MixedChoice
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.weights import library_route

logger = init_logger("vllm.nestedfp")

Shapes = Mapping[tuple[int, int], Sequence[PackedWeight]]  # by (N, K)

R = TypeVar("R", bound=gemm_cache.Row)

BUDGET_S = 20.0
MIXED_BUDGET_S = 15.0
NAMED_TOKENS = (1, 16, 32, 64, 128, 256, 384, 448, 480, 512, 640, 864, 1024, 2048, 8192)  # in the log


def weights_by_shape(model: torch.nn.Module) -> dict[tuple[int, int], list[PackedWeight]]:
    """Return the nested weights of a model by (N, K), largest shape first: it weighs most if the time runs out."""
    found: dict[tuple[int, int], list[PackedWeight]] = defaultdict(list)
    for module in model.modules():
        n, k = getattr(module, "nestedfp_shape", (0, 0))
        if getattr(module, "nestedfp", False) and k % 8 == 0:  # others are copied first, and rare
            found[n, k].append(PackedWeight(module.weight_upper.data, module.weight_lower.data, n, k))
    return dict(sorted(found.items(), key=lambda item: -item[0][0] * item[0][1]))


def token_counts(largest: int) -> list[int]:
    """Return the token counts to time for steps of up to ``largest`` tokens."""
    return sorted({min(m, largest) for m in gemm_tuning.TUNED_TOKENS})


def choose(model: torch.nn.Module, options: PluginOptions, max_tokens: int) -> None:
    """Time configs for the model's layers, or take kept times, and give them to the kernels of this rank.

    Args:
        max_tokens: the most tokens that a step has.
    """
    shapes = weights_by_shape(model)
    if is_portable(torch.cuda.get_device_capability()):
        logger.info("GEMM tiles are chosen by the portable kernels' rule")
        pinned = options.gemm_choice == "model" or options.fused_quantiser == "always"
        library_route.choose(shapes, max_tokens, measure=not pinned)
        return
    if options.gemm_choice == "model" or not shapes:
        logger.info("GEMM configs are chosen by the cost model")
        return
    began_s, num_sms = time.monotonic(), torch.cuda.get_device_properties().multi_processor_count
    tokens, fast_rows = token_counts(max_tokens), mixed_tuning.fast_rows(max_tokens)

    def time_configs(missing: Shapes) -> dict[tuple[int, int], list[Timing]]:
        return gemm_tuning.tune(missing, tokens, num_sms, BUDGET_S, logger.info)

    def compare(missing: Shapes) -> dict[tuple[int, int], list[MixedChoice]]:
        return mixed_tuning.tune(missing, max_tokens, num_sms, MIXED_BUDGET_S, logger.info)

    taken = gemm_tuning.take(_of_rank_0("gemm", shapes, tokens[-1], Timing.of_list, time_configs), num_sms)
    logger.info("GEMM configs: %d timings guide the choice, ready after %.1f s", taken, time.monotonic() - began_s)
    if options.mixed_steps and fast_rows:
        mixed_tuning.take(_of_rank_0("mixed", shapes, fast_rows[-1], MixedChoice.of_list, compare))
    if get_tp_group().rank_in_group == 0:
        for line in chosen_lines(shapes, gemm_tuning.PRECISIONS, max_tokens, num_sms):
            logger.info("%s", line)


def _of_rank_0(
    kind: str,
    shapes: Shapes,
    reach: int,
    of_list: Callable[[Any], R],
    measure: Callable[[Shapes], Mapping[tuple[int, int], list[R]]],
) -> list[R]:
    """Return what rank 0 has kept or measures; the others wait for it."""
    group = get_tp_group()
    lists: Any = None
    if group.rank_in_group == 0:
        card = gemm_cache.this_card()
        kept = {s: None if card is None else gemm_cache.load(kind, card, *s, reach, of_list) for s in shapes}
        if missing := {shape: weights for shape, weights in shapes.items() if kept[shape] is None}:
            logger.info(
                "GEMM configs (%s): measuring %d of %d layer shapes, once for each card; gemm_choice: model leaves it",
                kind,
                len(missing),
                len(shapes),
            )
            for shape, rows in measure(missing).items():
                kept[shape] = rows
                if card is not None:
                    gemm_cache.save(kind, card, *shape, reach, rows)
        lists = [row.as_list() for rows in kept.values() for row in rows or ()]
    if group.world_size > 1:
        lists = group.broadcast_object(lists, src=0)
    return [of_list(values) for values in lists]


def chosen_lines(
    shapes: Iterable[tuple[int, int]], precisions: Sequence[int], max_tokens: int, num_sms: int
) -> list[str]:
    """Say which configs the kernels take now (``cuda_library.describe``): a line for each shape (N, K) and precision."""
    lines = []
    for n, k in shapes:
        for precision in precisions:
            configs = {m: describe(kernel_choice(precision, m, n, k, num_sms)) for m in NAMED_TOKENS if m <= max_tokens}
            parts = ", ".join(f"{m}: {config}" for m, config in configs.items())
            lines.append(
                f"GEMM configs for N={n}, K={k} in {'FP8' if precision == FP8 else 'FP16'}, by tokens: {parts}"
            )
    return lines
