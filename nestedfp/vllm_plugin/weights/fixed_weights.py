"""Weights are loaded once: CUDA graphs and compiled models hold the addresses of the planes and the outlier lists."""

from typing import Any, NoReturn


class FixedWeights:
    """Refuses what replaces the weights of a running worker; comes before vLLM's worker among the bases."""

    def reload_weights(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise RuntimeError(
            "nestedfp does not replace the weights of a running engine, whose graphs hold their addresses; start another "
            "engine with the new checkpoint and stop this one"
        )

    init_weight_transfer_engine = start_weight_update = start_draft_weight_update = update_weights = reload_weights
