"""What vLLM's statistics of a streamed token cost the process that serves HTTP: as vLLM has them, and as this service does.

    python -m benchmarks.front.front_statistics

Real objects of vLLM's front end without an engine: 256 requests, each of which gets one token a step.
"""

import statistics
import time
from typing import Any

REQUESTS = 256
STEPS = 300
ROUNDS = 5
FLUSH_STEPS = 16  # 0.25 s of steps of 15 ms, as deploy/metrics/bulk.py flushes


class Output:
    """The fields of an ``EngineCoreOutput`` that are read."""

    request_id = "r"
    prefill_stats = events = None
    num_nans_in_logits = 0
    new_token_ids = (1,)


def costs(histogram: Any) -> tuple[float, float]:
    """Return (keeping, observing) in microseconds of processor time a token; medians over rounds."""
    from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

    requests = [RequestStateStats(arrival_time=time.time()) for _ in range(REQUESTS)]
    lora = LoRARequestStates(False)
    kept, observed = [], []
    for _ in range(ROUNDS):
        keep_s = observe_s = 0.0
        for step in range(STEPS):
            began_s = time.process_time()
            told = IterationStats()
            for request in requests:
                told.update_from_output(Output, time.monotonic(), False, request, lora, None)  # type: ignore[arg-type]
            kept_s = time.process_time()
            for value in told.inter_token_latencies_iter:
                histogram.observe(value)
            if step % FLUSH_STEPS == 0 and hasattr(histogram, "flush"):
                histogram.flush()
            keep_s += kept_s - began_s
            observe_s += time.process_time() - kept_s
        kept.append(keep_s / STEPS / REQUESTS * 1e6)
        observed.append(observe_s / STEPS / REQUESTS * 1e6)
    return statistics.median(kept), statistics.median(observed)


def main() -> None:
    """Print both."""
    from prometheus_client import CollectorRegistry, Histogram
    from vllm import envs

    from deploy.metrics.bulk import BulkHistogram, lean_statistics

    envs.enable_envs_cache()  # as deploy/replica/llm_replica.py does
    bounds = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # vLLM's
    histogram = Histogram("vllm:itl", "Text.", ("engine",), buckets=bounds, registry=CollectorRegistry()).labels("0")
    print("us a token: keep, observe")
    for name, costing in (("vLLM's own", histogram), ("this service", None)):
        if costing is None:
            lean_statistics()
            costing = BulkHistogram(histogram)
        keep_us, observe_us = costs(costing)
        print(f"{name:12}  {keep_us:.2f}  {observe_us:.2f}")


if __name__ == "__main__":
    main()
