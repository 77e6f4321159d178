"""What Prometheus hears of an engine: of every replica of the service, and of a plain ``vllm serve`` on vLLM's own page."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nestedfp.modes import DirectiveMode, Mode


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a family of one sample without labels."""
    return GaugeMetricFamily(name, text, value=value)


def by(kind: Any, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a family with one label."""
    family: Metric = kind(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)  # type: ignore[attr-defined]
    return family


def states(name: str, text: str, label: str, all_: Iterable[str], now: str) -> Metric:
    """Return a family with one sample for each state: 1 for the present one, 0 for the others."""
    return by(GaugeMetricFamily, name, text, label, {each: float(each == now) for each in all_})


def engine_families(stats: Mapping[str, Any], stats_age_s: float = 0.0) -> Iterator[Metric]:
    """Yield what the engine's statistics (``nestedfp_stats``) say, so many seconds after it said so."""

    def pair(kind: Any, name: str, text: str, key: str, scale: float = 1.0) -> Metric:
        values = {mode.value: stats.get(f"{key}_{mode.value}") for mode in Mode}
        return by(
            kind, name, text, "precision", {mode: value * scale for mode, value in values.items() if value is not None}
        )

    yield pair(CounterMetricFamily, "nestedfp_tokens", "Tokens computed by steps of a precision", "tokens")
    yield by(
        CounterMetricFamily,
        "nestedfp_steps",
        "Steps that ran in a precision, or in both (mixed)",
        "precision",
        {kind: stats[f"steps_{kind}"] for kind in ("fp16", "fp8", "mixed") if f"steps_{kind}" in stats},
    )
    yield by(
        CounterMetricFamily,
        "nestedfp_fp8_steps",
        "Steps that ran in FP8, by what asked for it",
        "reason",
        stats.get("fp8_reasons", {}),
    )
    if any(stats.get(f"drafted_{mode.value}") for mode in Mode):
        text = "Draft tokens that steps of a precision verified"
        yield pair(CounterMetricFamily, "nestedfp_draft_tokens", text, "drafted")
        text = "Draft tokens that steps of a precision accepted"
        yield pair(CounterMetricFamily, "nestedfp_accepted_draft_tokens", text, "accepted")
    yield pair(CounterMetricFamily, "nestedfp_step_seconds", "Time that steps of a precision took", "step_s")
    yield pair(
        GaugeMetricFamily, "nestedfp_step_smoothed_seconds", "Smoothed duration of a step", "step_ms", scale=1e-3
    )
    yield CounterMetricFamily(
        "nestedfp_switches", "Changes of precision from one step to the next", value=stats["switches"]
    )
    yield states("nestedfp_mode", "Precision of the last step", "mode", list(Mode), stats["mode"])
    yield gauge("nestedfp_fp16_only", "1: this engine has no FP8 mode", float(stats["fp16_only"]))
    if stats.get("fp8_weight_share") is not None:
        yield gauge(
            "nestedfp_fp8_weight_ratio", "Share of the weights' bytes that has an FP8 mode", stats["fp8_weight_share"]
        )
    yield gauge("nestedfp_engine_waiting_requests", "Requests that wait for their turn", stats["waiting"])
    yield gauge("nestedfp_engine_waiting_tokens", "Prompt tokens still to be computed", stats["waiting_tokens"])
    yield gauge(
        "nestedfp_engine_oldest_wait_seconds",
        "How long the first request in line has waited, up to this moment",
        stats["oldest_wait_s"] + (stats_age_s if stats["oldest_wait_s"] > 0 else 0.0),
    )
    yield gauge(
        "nestedfp_engine_blocked_requests", "Requests that wait for something else than their turn", stats["blocked"]
    )
    yield gauge("nestedfp_engine_running_requests", "Requests in the engine's steps", stats["running"])
    yield gauge("nestedfp_kv_usage_ratio", "Share of the KV cache in use", stats["kv_usage"])
    yield CounterMetricFamily("nestedfp_arrivals", "Requests that the engine was given", value=stats["arrivals"])
    yield gauge(
        "nestedfp_engine_stalled_seconds",
        "How long the engine has had work and made no step, as it said last",
        stats["progress_age_s"] or 0.0,
    )


class EngineCollector(Collector):
    """The families of a plain ``vllm serve``.

    Attributes:
        stats: what the engine said last (``nestedfp_stats``); empty: nothing yet.
    """

    def __init__(self) -> None:
        self.stats: Mapping[str, Any] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on what the engine says."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        if self.stats:
            yield from engine_families(self.stats)
            text = "Directive in force in the engine"
            yield states("nestedfp_directive", text, "mode", list(DirectiveMode), self.stats["directive"])
