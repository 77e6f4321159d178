"""A seeded synthetic trace of the shape of the Azure conversation trace, for use when no file is given. Pure.

What was matched (to AzureLLMInferenceTrace_conv, 19 366 requests in 3 502 s, November 2023):

* mean rate 5.53 requests/s;
* prompt tokens: lognormal with the trace's mean (6.633) and deviation (0.985) of the logarithm, cut to the trace's
  range 2..14 050. Trace: median 1 020, mean 1 155, p95 4 083; a draw of this: median 760, mean 1 225, p95 3 860. The
  trace has spikes at a few lengths (system prompts of one customer) that a lognormal does not have;
* output tokens: lognormal (5.019, 0.859), cut to 7..1 000. Trace: median 129, mean 211, p95 451; draw: 151, 213, 616;
* prompt and output lengths independent (correlation of the logarithms in the trace: 0.09);
* arrivals: Poisson with a rate that changes (doubly stochastic). Bursts with a median length of 20 s come at 1.3 to 2.5
  times the mean rate and take 15 % of the time, as the trace's 20 s windows above 1.3 times the mean do. The bursts are
  stronger than in that hour (its largest 20 s window is 1.65 times the mean), because the hour's mean hides that a
  service is sized by its bursts. Not matched: the slow drift of the rate over the hour.
"""

import numpy as np

from workload.traces import Arrival

MEAN_RATE_RPS = 5.53
BURST_MEDIAN_S = 20.0
BURST_SIGMA = 0.35  # deviation of the logarithm of a burst's length
BURST_FACTOR = (1.3, 2.5)  # of the mean rate, uniform
BURST_SHARE = 0.15  # of the time

PROMPT_LOG_MEAN, PROMPT_LOG_SIGMA, PROMPT_RANGE = 6.633, 0.985, (2, 14_050)
OUTPUT_LOG_MEAN, OUTPUT_LOG_SIGMA, OUTPUT_RANGE = 5.019, 0.859, (7, 1_000)


def synthetic_trace(
    seed: int, duration_s: float, mean_rate_rps: float = MEAN_RATE_RPS, *, bursts: bool = True
) -> tuple[Arrival, ...]:
    """Draw arrivals for ``duration_s`` seconds; the same seed gives the same trace. Without bursts they are Poisson."""
    rng = np.random.default_rng([0x7ACE, seed])
    episodes = _episodes(rng, duration_s, mean_rate_rps) if bursts else [(0.0, duration_s, mean_rate_rps)]
    times_s = np.concatenate(
        [
            rng.uniform(begin_s, end_s, rng.poisson(rate_rps * (end_s - begin_s)))
            for begin_s, end_s, rate_rps in episodes
        ]
    )
    times_s.sort()
    prompt_tokens = _lengths(rng, len(times_s), PROMPT_LOG_MEAN, PROMPT_LOG_SIGMA, PROMPT_RANGE)
    output_tokens = _lengths(rng, len(times_s), OUTPUT_LOG_MEAN, OUTPUT_LOG_SIGMA, OUTPUT_RANGE)
    return tuple(
        Arrival(float(at_s), prompt, output)
        for at_s, prompt, output in zip(times_s, prompt_tokens, output_tokens, strict=True)
    )


def _episodes(rng: np.random.Generator, duration_s: float, mean_rate_rps: float) -> list[tuple[float, float, float]]:
    """Calm and burst in turn: (begin, end, rate), covering 0..duration_s."""
    mean_factor = sum(BURST_FACTOR) / 2
    calm_rate_rps = mean_rate_rps * (1 - BURST_SHARE * mean_factor) / (1 - BURST_SHARE)
    mean_burst_s = BURST_MEDIAN_S * float(np.exp(BURST_SIGMA**2 / 2))
    mean_calm_s = mean_burst_s * (1 - BURST_SHARE) / BURST_SHARE
    episodes: list[tuple[float, float, float]] = []
    at_s, burst = 0.0, False
    while at_s < duration_s:
        if burst:
            length_s = BURST_MEDIAN_S * float(np.exp(BURST_SIGMA * rng.standard_normal()))
            rate_rps = mean_rate_rps * float(rng.uniform(*BURST_FACTOR))
        else:
            length_s, rate_rps = float(rng.gamma(4.0, mean_calm_s / 4.0)), calm_rate_rps
        episodes.append((at_s, min(at_s + length_s, duration_s), rate_rps))
        at_s, burst = at_s + length_s, not burst
    return episodes


def _lengths(
    rng: np.random.Generator, count: int, log_mean: float, log_sigma: float, limits: tuple[int, int]
) -> list[int]:
    lengths: list[int] = np.clip(np.rint(np.exp(rng.normal(log_mean, log_sigma, count))), *limits).astype(int).tolist()
    return lengths
