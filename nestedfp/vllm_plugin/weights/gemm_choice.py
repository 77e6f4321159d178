"""Chooses the GEMM configs of a loaded model before anything is captured: nestedfp/kernels/tuning on the layers of the model.

Rank 0 of a tensor-parallel group times, the others take its times: all ranks have layers of the same shapes, and the same
choice on each keeps them in step.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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

BUDGET_S = 20.0
MIXED_BUDGET_S = 15.0
NAMED_TOKENS = (1, 16, 32, 64, 128, 256, 384, 448, 480, 512, 640, 864, 1024, 2048, 8192)  # in the log


def weights_by_shape(model: torch.nn.Module) -> dict[tuple[int, int], list[PackedWeight]]:
    """Return the nested weights of a model by (N, K), largest shape first: it weighs most if the time runs out."""
    found: dict[tuple[int, int], list[PackedWeight]] = defaultdict(list)
    for module in model.modules():
        n, k = getattr(module, "nestedfp_shape", (0, 0))
        if getattr(module, "nestedfp", False) and k % 8 == 0:  # others are copied first, and rare
            upper = module.weight_upper.data
            lower = upper.new_empty(0) if module.weight_lower is None else module.weight_lower.data
            found[n, k].append(PackedWeight(upper, lower, n, k))
    return dict(sorted(found.items(), key=lambda item: -item[0][0] * item[0][1]))


def token_counts(largest: int) -> list[int]:
    """Return the token counts to time for steps of up to ``largest`` tokens."""
    return sorted({min(m, largest) for m in gemm_tuning.TUNED_TOKENS})


def choose(model: torch.nn.Module, options: PluginOptions, max_tokens: int) -> None:
    """Time configs for the model's layers, or take kept times, and give them to the kernels of this rank.

    Args:
        max_tokens: the most tokens that a step has.

    Raises:
        ValueError: when the folder that ``options.gemm_timings`` names holds no timings, or damaged ones.
    """
    if is_portable(torch.cuda.get_device_capability()):
        logger.info("GEMM tiles are chosen by the portable kernels' rule")
        shapes = {} if options.weights == "two_copies" else weights_by_shape(model)
        pinned = options.gemm_choice == "model" or options.gemm_timings or options.fused_quantiser == "always"
        library_route.choose(shapes, max_tokens, measure=not pinned)
        return
    if options.gemm_choice == "model":
        logger.info("GEMM configs are chosen by the shipped table and the cost model (gemm_choice: model)")
        return
    began_s = time.monotonic()
    group = get_tp_group()
    lists: Any = None
    precisions = (FP8,) if options.weights == "two_copies" else gemm_tuning.PRECISIONS  # the others are cuBLAS's
    if group.rank_in_group == 0:
        timings = _pinned(Path(options.gemm_timings)) if options.gemm_timings else _timed(model, max_tokens, precisions)
        lists = [timing.as_list() for timing in timings]
    if group.world_size > 1:
        lists = group.broadcast_object(lists, src=0)
    num_sms = torch.cuda.get_device_properties().multi_processor_count
    taken = gemm_tuning.take(map(Timing.of_list, lists), num_sms)
    logger.info("GEMM configs: %d timings guide the choice, ready after %.1f s", taken, time.monotonic() - began_s)
    if options.mixed_steps and options.weights != "two_copies":  # which runs none
        _choose_mixed(model, options, max_tokens, num_sms)
    if group.rank_in_group == 0:
        for line in chosen_lines(weights_by_shape(model), precisions, max_tokens, num_sms):
            logger.info("%s", line)


def _choose_mixed(model: torch.nn.Module, options: PluginOptions, max_tokens: int, num_sms: int) -> None:
    """Choose where exact and fast rows are multiplied in one launch, as ``choose`` does the rest."""
    group = get_tp_group()
    lists: Any = None
    if group.rank_in_group == 0:
        choices = (
            _pinned_mixed(Path(options.gemm_timings)) if options.gemm_timings else _mixed(model, max_tokens, num_sms)
        )
        lists = [choice.as_list() for choice in choices]
    if group.world_size > 1:
        lists = group.broadcast_object(lists, src=0)
    mixed_tuning.take(map(MixedChoice.of_list, lists))


def _pinned_mixed(path: Path) -> list[MixedChoice]:
    return [choice for file in sorted(path.glob("mixed-*.json")) for choice in gemm_cache.load_mixed(file) or ()]


def _mixed(model: torch.nn.Module, max_tokens: int, num_sms: int) -> list[MixedChoice]:
    shapes, card = weights_by_shape(model), gemm_cache.this_card()
    paths = {} if card is None else {shape: gemm_cache.path_of(card, *shape, kind="mixed") for shape in shapes}
    found = {shape: gemm_cache.load_mixed(path) or [] for shape, path in paths.items()}
    wanted = set(mixed_tuning.fast_rows(max_tokens))
    missing = {
        shape: weights
        for shape, weights in shapes.items()
        if not wanted <= {choice.fast_rows for choice in found.get(shape, ())}
    }
    for shape, choices in mixed_tuning.tune(missing, max_tokens, num_sms, MIXED_BUDGET_S, logger.info).items():
        found[shape] = choices
        if shape in paths:
            gemm_cache.save_mixed(paths[shape], choices)
    return [choice for choices in found.values() for choice in choices]


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


def _pinned(path: Path) -> list[Timing]:
    timings = gemm_cache.load_folder(path)
    logger.info("GEMM configs are chosen by the %d timings in %s and the cost model", len(timings), path)
    return timings


def _timed(model: torch.nn.Module, max_tokens: int, precisions: Sequence[int]) -> list[Timing]:
    shapes, card = weights_by_shape(model), gemm_cache.this_card()
    wanted = token_counts(max_tokens)
    kept = {shape: None if card is None else gemm_cache.load(card, *shape, wanted[-1], precisions) for shape in shapes}
    missing = {shape: weights for shape, weights in shapes.items() if kept[shape] is None}
    if missing:
        logger.info(
            "GEMM configs: timing %d of %d layer shapes, at most %.0f s (once for each card; gemm_choice: model leaves it)",
            len(missing),
            len(shapes),
            BUDGET_S,
        )
        num_sms = torch.cuda.get_device_properties().multi_processor_count
        measured = gemm_tuning.tune(missing, wanted, num_sms, BUDGET_S, logger.info, precisions)
        for shape, timings in measured.items():
            kept[shape] = timings
            if card is not None:
                gemm_cache.save(card, *shape, wanted[-1], timings, precisions)
    return [timing for timings in kept.values() if timings is not None for timing in timings]
