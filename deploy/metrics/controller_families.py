"""The families of the controller, from its status. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.audit import Rung
from nestedfp.modes import DirectiveMode
from nestedfp.vllm_plugin.serving.engine_families import by, gauge, states


def families(status: Mapping[str, Any] | None) -> Iterator[Metric]:
    """Yield what a status (``controller.audit.StatusReport`` as JSON) says; None: the controller does not answer."""
    yield gauge("nestedfp_controller_up", "1: the controller answers", float(status is not None))
    if status is None:
        return
    yield states(
        "nestedfp_controller_directive",
        "Directive that the controller has given to most replicas",
        "mode",
        list(DirectiveMode),
        status["mode"],
    )
    yield states(
        "nestedfp_controller_rung", "How far it has gone against an overload", "rung", list(Rung), status["rung"]
    )
    for name, text, value in (
        ("nestedfp_controller_fp8_insufficient", "1: FP8 alone does not hold the SLO", status["fp8_insufficient"]),
        (
            "nestedfp_controller_admission_scale_ratio",
            "What admission limits are multiplied by",
            status["admission_scale"],
        ),
        (
            "nestedfp_controller_path_saturated",
            "1: the path limits a replica, not its engine",
            status["path_saturated"],
        ),
        ("nestedfp_controller_config_refused", "1: the last reload was refused", status["config_error"] is not None),
    ):
        yield gauge(name, text, float(value))
    yield CounterMetricFamily(
        "nestedfp_controller_step_errors", "Steps of the loop that failed", value=status["step_errors"]
    )
    times = status["broadcasts"]
    known = {name: times[f"{name}_ms"] / 1e3 for name in ("p50", "p99") if times["count"]}
    yield by(
        GaugeMetricFamily,
        "nestedfp_controller_broadcast_seconds",
        "From a decision to the last replica's acknowledgement, over the broadcasts of the last hour",
        "percentile",
        known,
    )
    decisions = CounterMetricFamily("nestedfp_decisions", "The controller's decisions", labels=("outcome", "reason"))
    for outcome, reasons in status["decisions"].items():
        for reason, count in reasons.items():
            decisions.add_metric((outcome, reason), count)
    yield decisions
    replicas = status["replicas"]
    yield by(
        GaugeMetricFamily,
        "nestedfp_controller_replicas",
        "Replicas as the controller sees them; a replica may be in several states",
        "state",
        {
            "known": len(replicas),
            "ready": sum(each["ready"] for each in replicas),
            "stale": sum(each["stale"] for each in replicas),
            "faulty": sum(each["fault"] is not None for each in replicas),
            "acked": sum(each["acked"] for each in replicas),
            "fp8": sum(each["directed"] == DirectiveMode.FP8 for each in replicas),
        },
    )
    yield by(
        GaugeMetricFamily,
        "nestedfp_controller_snapshot_age_seconds",
        "Since a replica's last snapshot",
        "replica",
        {each["id"]: each["age_s"] for each in replicas},
    )
