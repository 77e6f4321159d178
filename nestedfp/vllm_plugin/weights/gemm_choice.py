"""Chooses the GEMM configs of a loaded model before anything is captured: nestedfp/kernels/tuning on the layers of the model.

Rank 0 of a tensor-parallel group times, the others take its times: all ranks have layers of the same shapes, and the same
choice on each keeps them in step.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger

from nestedfp.kernels.cuda_library import PackedWeight
from nestedfp.kernels.gpu_kernels import is_portable
from nestedfp.kernels.tuning import gemm_cache, gemm_tuning, mixed_tuning
from nestedfp.kernels.tuning.gemm_tuning import Timing
from nestedfp.kernels.tuning.mixed_tuning import MixedChoice
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.weights import library_route

logger = init_logger("vllm.nestedfp")

Shapes = Mapping[tuple[int, int], Sequence[PackedWeight]]  # by (N, K)

R = TypeVar("R")

BUDGET_S = 30.0
MIXED_BUDGET_S = 15.0


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
        library_route.choose(shapes, max_tokens, measure=options.gemm_choice == "measure")
        return
    if options.gemm_choice == "model" or not shapes:
        logger.info("GEMM configs are chosen by the cost model")
        return
    began_s, num_sms = time.monotonic(), torch.cuda.get_device_properties().multi_processor_count
    tokens, fast_rows = token_counts(max_tokens), mixed_tuning.fast_rows(max_tokens)
    time_configs = partial(gemm_tuning.tune, tokens=tokens, num_sms=num_sms, budget_s=BUDGET_S, report=logger.info)
    compare = partial(
        mixed_tuning.tune, max_tokens=max_tokens, num_sms=num_sms, budget_s=MIXED_BUDGET_S, report=logger.info
    )
    taken = gemm_tuning.take(_of_rank_0("gemm", shapes, tokens[-1], Timing.of_list, time_configs), num_sms)
    logger.info("GEMM configs: %d timings guide the choice, ready after %.1f s", taken, time.monotonic() - began_s)
    if options.mixed_steps and fast_rows:
        mixed_tuning.take(_of_rank_0("mixed", shapes, fast_rows[-1], MixedChoice.of_list, compare))


def _of_rank_0(
    kind: str,
    shapes: Shapes,
    reach: int,
    of_list: Callable[[Any], R],
    measure: Callable[[Shapes], Mapping[tuple[int, int], list[R]]],
) -> list[R]:
    """Return what rank 0 has kept or measures; the others wait for it."""
    group = get_tp_group()
    rows: Any = None
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
            for shape, found in measure(missing).items():
                kept[shape] = found
                if card is not None:
                    gemm_cache.save(kind, card, *shape, reach, found)
        rows = [row for found in kept.values() for row in found or ()]
    if group.world_size > 1:
        rows = group.broadcast_object(rows, src=0)
    return list(rows)
