"""The synthetic trace, for the load test: the same as ``controller.synthetic``."""

from controller.synthetic import MEAN_RATE_RPS, OUTPUT_RANGE, PROMPT_RANGE, synthetic_trace

__all__ = ["MEAN_RATE_RPS", "OUTPUT_RANGE", "PROMPT_RANGE", "synthetic_trace"]
