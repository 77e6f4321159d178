"""The page of one replica: vLLM's own metrics, and what the replica's agent, admission and path know of it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.messages import PathStats
from deploy.access.admission import Admission
from deploy.metrics import openmetrics
from deploy.metrics.bulk import BulkHistogram
from nestedfp.modes import DirectiveMode
from nestedfp.vllm_plugin.serving.engine_families import by, engine_families, gauge, states

# Of everything that is registered in the process: vLLM's families, and what prometheus_client says of the process.
SHARED_PREFIXES = ("vllm:", "process_", "python_gc_")


def agent_families(agent: Any, meter: Any) -> Iterator[Metric]:
    """Yield what the control plane's end of the replica knows."""
    yield gauge("nestedfp_engine_stats_age_seconds", "Age of the engine's statistics on this page", agent.stats_age_s)
    yield states("nestedfp_directive", "Directive in force on the replica", "mode", list(DirectiveMode), agent.directed)
    yield gauge(
        "nestedfp_lease_remaining_seconds",
        "How long the controller's word still holds; 0: the fallback is in force",
        agent.lease_remaining_s,
    )
    yield CounterMetricFamily(
        "nestedfp_slo_judged_requests", "Requests held against the objectives", value=meter.slo_evaluated
    )
    yield CounterMetricFamily("nestedfp_slo_met_requests", "Of those, requests that met them", value=meter.within_slo)


def path_families(path: PathStats, admission: Admission) -> Iterator[Metric]:
    """Yield what stands in front of the engine."""
    yield gauge("nestedfp_path_requests", "Requests accepted over HTTP that the engine does not have yet", path.in_path)
    yield gauge(
        "nestedfp_path_wait_p90_seconds",
        "From arrival to the hand-over to the engine, last seconds",
        path.wait_p90_ms / 1e3,
    )
    yield gauge("nestedfp_path_loop_lag_seconds", "Largest lag of the event loop, last second", path.loop_lag_ms / 1e3)
    yield gauge("nestedfp_open_requests", "Requests in this replica", path.open_streams)
    yield gauge("nestedfp_paused_streams", "Streams whose clients do not read", path.paused_streams)
    refused = CounterMetricFamily(
        "nestedfp_admission_refused", "Requests refused for want of room or time", labels=("reason", "priority")
    )
    for labels, count in admission.refusals.items():
        refused.add_metric(labels, count)
    yield refused
    yield gauge("nestedfp_admission_sequences", "Sequences inside", admission.inside)


@dataclass
class ReplicaMetrics:
    """The page of one replica."""

    labels: Mapping[str, str]  # on every sample: application, replica, model
    meter: Any  # of the replica's requests (``deploy.front.context.PathMeter``)
    admission: Admission
    # Linear layers of the first rank by how they are stored: {"nested": 12, "listed": 0, "plain": 1}; empty: a plain engine.
    layers: Mapping[str, int]
    histograms: Sequence[BulkHistogram] = ()  # to be flushed before a page is made
    _page_s: float = 0.0

    def text(self, agent: Any, path: PathStats) -> str:
        """Return the page. ``agent`` is the replica's (``deploy.agent.agent.ReplicaAgent``); None: a plain engine."""
        began_s = time.perf_counter()
        for histogram in self.histograms:
            histogram.flush()
        families = [family for family in REGISTRY.collect() if family.name.startswith(SHARED_PREFIXES)]
        if agent is not None and agent.stats is not None:
            families += engine_families(agent.stats, agent.stats_age_s)
            families += agent_families(agent, self.meter)
        families += path_families(path, self.admission)
        families += self.meter.requests.collect()
        if self.layers:
            families.append(
                by(GaugeMetricFamily, "nestedfp_layers", "Linear layers by how they are stored", "kind", self.layers)
            )
        families.append(
            CounterMetricFamily("nestedfp_page_seconds", "Time that making these pages has taken", value=self._page_s)
        )
        text = openmetrics.render(families, self.labels)
        self._page_s += time.perf_counter() - began_s
        return text
