"""Speculative decoding: drafters that nested weights verify, and when they run.

Rejection sampling gives every token the distribution of the step that verified it, whatever was proposed. So a token has the
precision of its step, a pinned request is verified in FP16, and a drafter only makes that faster. All drafters run FP16: those
with a checkpoint of their own are plain, and the nested layers of those in the model's checkpoint multiply both planes.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ON_GPU = ("eagle", "eagle3", "mtp")  # vLLM's V2 runner has no n-gram drafts
ON_CPU = (*ON_GPU, "ngram")


def obstacle(config: "VllmConfig", *, is_cpu: bool) -> str | None:
    """Return why the drafts of a configuration cannot be verified, and what to set instead; None: they can, or there are none."""
    if (speculation := config.speculative_config) is None:
        return None
    if speculation.method not in (methods := ON_CPU if is_cpu else ON_GPU):
        return (
            f"nestedfp verifies no drafts of {speculation.method!r} on a {'CPU' if is_cpu else 'GPU'}; set speculative_config's "
            f"method to one of {', '.join(methods)}, or remove it"
        )
    if speculation.rejection_sample_method == "synthetic":
        return (
            "rejection_sample_method='synthetic' accepts drafts that the model has not verified, and no answer would be exact; "
            "remove it from speculative_config"
        )
    drafter, model = speculation.draft_model_config, config.model_config
    if drafter.get_vocab_size() != model.get_vocab_size():
        return (
            f"{speculation.model} drafts tokens of a vocabulary of {drafter.get_vocab_size()}, and the model has one of "
            f"{model.get_vocab_size()}; set speculative_config to a drafter that was made for this model"
        )
    return None


def precede(runner: Any, act: Callable[[], object]) -> None:
    """Have ``act`` called before a runner's drafter, if there is one, makes drafts: in serving, and where steps are timed."""
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    if drafter is None:
        return
    propose = drafter.propose

    @functools.wraps(propose)
    def proposed(*args: Any, **kwargs: Any) -> Any:
        act()
        return propose(*args, **kwargs)

    drafter.propose = proposed
