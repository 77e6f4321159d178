"""The page of one replica: vLLM's own metrics, and what the replica's agent, admission and path know of it."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.messages import PathStats
from deploy.access.admission import Admission
from deploy.metrics import openmetrics
from deploy.metrics.bulk import BulkHistogram
from deploy.metrics.request_metrics import RequestMetrics
from nestedfp.modes import DirectiveMode, Mode

# Of everything that is registered in the process: vLLM's families, and what prometheus_client says of the process.
SHARED_PREFIXES = ("vllm:", "process_", "python_gc_")


class AgentReading(NamedTuple):
    """What the replica's agent knows at one moment."""

    stats: Mapping[str, Any]  # the engine's newest statistics (PrecisionMixin.nestedfp_stats)
    stats_age_s: float
    directive: DirectiveMode  # in force
    epoch: int
    lease_remaining_s: float
    slo_evaluated: int
    within_slo: int


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


def engine_families(view: AgentReading) -> Iterator[Metric]:
    """Yield what the engine's statistics say."""
    stats = view.stats

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
        stats["oldest_wait_s"] + (view.stats_age_s if stats["oldest_wait_s"] > 0 else 0.0),
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


def agent_families(view: AgentReading) -> Iterator[Metric]:
    """Yield what the control plane's end of the replica knows."""
    yield gauge("nestedfp_engine_stats_age_seconds", "Age of the engine's statistics on this page", view.stats_age_s)
    yield states(
        "nestedfp_directive", "Directive in force on the replica", "mode", list(DirectiveMode), view.directive.value
    )
    yield gauge("nestedfp_directive_epoch", "Epoch of the directive in force", view.epoch)
    yield gauge(
        "nestedfp_lease_remaining_seconds",
        "How long the controller's word still holds; 0: the fallback is in force",
        view.lease_remaining_s,
    )
    yield CounterMetricFamily(
        "nestedfp_slo_judged_requests", "Requests held against the objectives", value=view.slo_evaluated
    )
    yield CounterMetricFamily("nestedfp_slo_met_requests", "Of those, requests that met them", value=view.within_slo)


def path_families(path: PathStats, admission: Admission) -> Iterator[Metric]:
    """Yield what stands in front of the engine."""
    yield gauge("nestedfp_path_requests", "Requests accepted over HTTP that the engine does not have yet", path.in_path)
    yield gauge(
        "nestedfp_path_wait_p90_seconds",
        "From arrival to the hand-over to the engine, last seconds",
        path.wait_p90_ms / 1e3,
    )
    if path.delivery_p90_ms is not None:
        yield gauge(
            "nestedfp_path_delivery_p90_seconds",
            "From the engine's output to its bytes written, last seconds; none before the first stream",
            path.delivery_p90_ms / 1e3,
        )
    yield gauge("nestedfp_path_loop_lag_seconds", "Largest lag of the event loop, last second", path.loop_lag_ms / 1e3)
    yield gauge("nestedfp_open_requests", "Requests in this replica", path.open_streams)
    yield gauge("nestedfp_paused_streams", "Streams whose clients do not read", path.paused_streams)
    yield from admission_families(admission)


def admission_families(admission: Admission) -> Iterator[Metric]:
    """Yield what is inside, what may be, and who was refused."""
    refused = CounterMetricFamily(
        "nestedfp_admission_refused", "Requests refused for want of room or time", labels=("reason", "priority")
    )
    for labels, count in admission.refusals.items():
        refused.add_metric(labels, count)
    yield refused
    yield gauge("nestedfp_admission_sequences", "Sequences inside", admission.inside)
    yield gauge("nestedfp_admission_tokens", "Tokens that the requests inside ask for", admission.tokens_inside)
    if admission.limit is not None:
        yield gauge("nestedfp_admission_limit_sequences", "Sequences inside at most; none: no limit", admission.limit)
    if admission.token_limit is not None:
        yield gauge("nestedfp_admission_limit_tokens", "Tokens inside at most; none: no limit", admission.token_limit)
    if (wait_s := admission.expected_wait_s()) is not None:
        text = "How long the engine will take to begin a request that comes now; none: nobody knows"
        yield gauge("nestedfp_admission_expected_wait_seconds", text, wait_s)
    yield gauge("nestedfp_admission_scale_ratio", "What the controller multiplies the limits by", admission.scale)


class ReplicaMetrics:
    """The page of one replica.

    Args:
        labels: on every sample: application, replica, model.
        requests: counted by the replica's front.
        admission: the replica's admission control.
        layers: linear layers of the first rank by how they are stored: ``{"nested": 12, "listed": 0, "plain": 1}``; empty:
            a plain engine.
        histograms: to be flushed before a page is made.
        worst_cosine: of FP8 against FP16 over all layers, from the self-check of the start; None: not checked.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        requests: RequestMetrics,
        admission: Admission,
        layers: Mapping[str, int],
        histograms: Iterable[BulkHistogram] = (),
        worst_cosine: float | None = None,
    ) -> None:
        self._labels = dict(labels)
        self._requests = requests
        self._admission = admission
        self._layers = dict(layers)
        self._histograms = list(histograms)
        self._worst_cosine = worst_cosine
        self._pages = 0
        self._page_s = 0.0

    def text(self, view: AgentReading | None, path: PathStats) -> str:
        """Return the page. ``view`` is None for a plain engine, or before the engine's first answer."""
        began_s = time.perf_counter()
        for histogram in self._histograms:
            histogram.flush()
        families = [family for family in REGISTRY.collect() if family.name.startswith(SHARED_PREFIXES)]
        if view is not None:
            families += engine_families(view)
            families += agent_families(view)
        families += path_families(path, self._admission)
        families += self._requests.collect()
        if self._layers:
            families.append(
                by(GaugeMetricFamily, "nestedfp_layers", "Linear layers by how they are stored", "kind", self._layers)
            )
        if self._worst_cosine is not None:
            text = "Lowest cosine of FP8 against FP16 over all layers, from the start's self-check"
            families.append(gauge("nestedfp_self_check_cosine_ratio", text, self._worst_cosine))
        families.append(
            CounterMetricFamily("nestedfp_page_seconds", "Time that making these pages has taken", value=self._page_s)
        )
        families.append(CounterMetricFamily("nestedfp_pages", "Pages made before this one", value=self._pages))
        text = openmetrics.render(families, self._labels)
        self._pages += 1
        self._page_s += time.perf_counter() - began_s
        return text
