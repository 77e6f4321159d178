"""Pages of metrics: what is on them, and that another parser reads them as OpenMetrics."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop
from controller.messages import PathStats
from deploy.access.admission import Admission, Asked, NoRoom
from deploy.access.priority import Priority
from deploy.front.context import PathMeter
from deploy.metrics import controller_families, openmetrics
from deploy.metrics.bulk import BulkHistogram, lean_statistics
from deploy.metrics.replica_page import ReplicaMetrics
from deploy.metrics.request_metrics import RequestOutcome
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

STATS = {
    **{"mode": "fp8", "switches": 3, "steps_fp16": 5, "steps_fp8": 7, "tokens_fp16": 50, "tokens_fp8": 70},
    **{"fp16_only": False, "fp8_weight_share": 0.75, "step_ms_fp16": 2.0, "step_ms_fp8": None, "waiting": 2},
    **{"waiting_tokens": 30, "oldest_wait_s": 1.0, "blocked": 0, "running": 4, "kv_usage": 0.25, "arrivals": 9},
    **{"progress_age_s": None, "step_s_fp16": 0.5, "step_s_fp8": 0.25},
    "fp8_reasons": {"directive": 2, "tpot_slack": 5},
}
LABELS = {"application": "a", "replica": "r1", "model": "m"}


def samples(text):
    """Every sample of a page by (name, labels), read by the parser of prometheus_client."""
    assert text.endswith("# EOF\n")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def value(text, name, **labels):
    return samples(text)[name, frozenset(labels.items())]


def replica_page(replica="r1", meter=None, **changes):
    agent = SimpleNamespace(stats={**STATS, **changes}, stats_age_s=0.5, directed="auto", lease_remaining_s=1.5)
    labels = LABELS | {"replica": replica}
    metrics = ReplicaMetrics(labels, meter or PathMeter(), Admission(8, 4), {"nested": 12, "plain": 1})
    return metrics.text(agent, PathStats(in_path=3, wait_p90_ms=20.0, delivery_p90_ms=4))


# -- pages -------------------------------------------------------------------------------------------------------------


def test_names_of_vllm_keep_their_colon_and_every_sample_gets_the_labels():
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Tokens.", ("engine",), registry=registry).labels("0").inc(5)
    text = openmetrics.render(registry.collect(), LABELS)
    assert value(text, "vllm:prompt_tokens_total", engine="0", **LABELS) == 5
    assert "_created" not in text


def test_pages_of_two_replicas_make_one_page_with_every_family_once():
    text = openmetrics.merge([replica_page("r1"), replica_page("r2", tokens_fp8=700)])
    assert text.count("# TYPE nestedfp_tokens counter") == 1
    assert value(text, "nestedfp_tokens_total", precision="fp8", **LABELS) == 70
    assert value(text, "nestedfp_tokens_total", precision="fp8", **(LABELS | {"replica": "r2"})) == 700


# -- a replica ---------------------------------------------------------------------------------------------------------


def test_a_replica_tells_its_precision_queue_and_path():
    text = replica_page()
    assert value(text, "nestedfp_steps_total", precision="fp16", **LABELS) == 5
    assert value(text, "nestedfp_step_seconds_total", precision="fp8", **LABELS) == 0.25
    assert value(text, "nestedfp_fp8_steps_total", reason="tpot_slack", **LABELS) == 5
    assert value(text, "nestedfp_step_smoothed_seconds", precision="fp16", **LABELS) == pytest.approx(0.002)
    assert ("nestedfp_step_smoothed_seconds", frozenset({"precision": "fp8", **LABELS}.items())) not in samples(text)
    assert value(text, "nestedfp_mode", mode="fp8", **LABELS) == 1
    assert value(text, "nestedfp_mode", mode="fp16", **LABELS) == 0
    assert value(text, "nestedfp_directive", mode="auto", **LABELS) == 1
    assert value(text, "nestedfp_engine_stats_age_seconds", **LABELS) == 0.5
    assert value(text, "nestedfp_path_requests", **LABELS) == 3
    assert value(text, "nestedfp_path_wait_p90_seconds", **LABELS) == pytest.approx(0.02)
    assert value(text, "nestedfp_layers", kind="nested", **LABELS) == 12


def test_requests_that_wait_go_on_waiting_while_the_statistics_age():
    assert value(replica_page(), "nestedfp_engine_oldest_wait_seconds", **LABELS) == 1.5
    assert value(replica_page(waiting=0, oldest_wait_s=0.0), "nestedfp_engine_oldest_wait_seconds", **LABELS) == 0


def test_refusals_have_their_reason_and_class_and_are_there_from_the_start():
    admission = Admission(1, 4, tokens=500)
    admission.enter(Asked(prompt_tokens=7))
    with pytest.raises(NoRoom):
        admission.enter(priority=Priority.BATCH)
    text = ReplicaMetrics(LABELS, PathMeter(), admission, {}).text(None, PathStats())
    found = {
        (dict(labels)["reason"], dict(labels)["priority"]): value
        for (name, labels), value in samples(text).items()
        if name == "nestedfp_admission_refused_total"
    }
    assert len(found) == 4 * 3
    assert {key for key, value in found.items() if value} == {("sequences", "batch")}


def test_a_plain_engine_has_a_page_as_well():
    text = ReplicaMetrics(LABELS, PathMeter(), Admission(None, 4), {}).text(None, PathStats())
    assert value(text, "nestedfp_open_requests", **LABELS) == 0
    assert "nestedfp_tokens" not in text


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_request_is_counted_once_when_it_leaves_and_its_latency_when_it_ended_by_itself():
    meter = PathMeter(lambda: 10.25)
    passage = meter.arrive(10.0)
    passage.asked, passage.key = AskedPrecision.EXACT, "team-a"
    passage.counts["a"] = TokenCounts(3, 0, 0, 0, 2, 0)
    passage.submitted()
    passage.writing()
    passage.wrote(1)
    passage.finished()
    passage.meter.left(passage)
    left = meter.arrive(10.0)
    left.outcome = RequestOutcome.LEFT
    left.meter.left(left)
    text = replica_page(meter=meter)
    assert value(text, "nestedfp_requests_total", outcome="ok", **LABELS) == 1
    assert value(text, "nestedfp_requests_total", outcome="left", **LABELS) == 1
    labels = {"precision": "exact", "asked": "exact", "key": "team-a", **LABELS}
    assert value(text, "nestedfp_answers_total", **labels) == 1
    assert value(text, "nestedfp_answers_total", **labels | {"key": ""}) == 0, "there from the start"
    assert value(text, "nestedfp_answers_within_slo_total", **labels | {"key": ""}) == 0, "250 ms"
    assert value(text, "nestedfp_ttft_seconds_count", **LABELS) == 1
    assert value(text, "nestedfp_ttft_seconds_sum", **LABELS) == pytest.approx(0.25)
    assert value(text, "nestedfp_ttft_seconds_bucket", le="0.2", **LABELS) == 0
    assert value(text, "nestedfp_ttft_seconds_bucket", le="0.3", **LABELS) == 1


# -- the bulk histogram ------------------------------------------------------------------------------------------------


def test_observations_in_bulk_land_where_single_ones_do():
    values = [0.0, 0.001, 0.005, 0.0050001, 0.3, 10.0, 11.0, 1e9, 0.005]
    single, bulk = CollectorRegistry(), CollectorRegistry()
    one = Histogram("x", "Text.", ("engine",), registry=single).labels("0")
    many = BulkHistogram(Histogram("x", "Text.", ("engine",), registry=bulk).labels("0"))
    for each in values[:5]:
        one.observe(each)
        many.observe(each)
    many.flush()
    for each in values[5:]:
        one.observe(each)
        many.observe(each)
    many.flush()
    many.flush()
    assert samples(openmetrics.render(single.collect(), {})) == pytest.approx(
        samples(openmetrics.render(bulk.collect(), {}))
    )


def test_the_lean_statistics_of_a_token_say_what_those_of_vllm_say(monkeypatch):
    from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

    original = IterationStats.update_from_output
    assert not getattr(original, "_nestedfp", False)

    class Output:
        request_id, prefill_stats, num_nans_in_logits, events = "r", None, 0, None

        def __init__(self, tokens):
            self.new_token_ids = [7] * tokens

    def statistics():
        """A first token, then one, three and no tokens."""
        told, request, lora = IterationStats(), RequestStateStats(arrival_time=5.0), LoRARequestStates(False)
        told.iteration_timestamp = 6.0
        for now_s, tokens, first in ((10.0, 1, True), (10.5, 1, False), (11.5, 3, False), (11.75, 0, False)):
            told.update_from_output(Output(tokens), now_s, first, request, lora, None)
        return vars(told) | {"prompt_token_stats": vars(told.prompt_token_stats)}, vars(request)

    expected = statistics()
    monkeypatch.setattr(IterationStats, "update_from_output", original)  # restored at the end
    lean_statistics()
    assert IterationStats.update_from_output is not original
    assert statistics() == expected
    assert expected[0]["inter_token_latencies_iter"] == [0.5, 1.0, 0.25]


# -- the controller ----------------------------------------------------------------------------------------------------


def status_of(config=None):
    report = ControlLoop(config or ControllerConfig()).status(100.0)
    return report.model_dump(mode="json")


def test_the_families_of_the_controller_follow_from_its_status():
    status = status_of() | {"mode": "fp8", "epoch": 7, "rung": "shed", "decisions": {"held": {"held_by_quorum": 3}}}
    text = openmetrics.render(controller_families.families(status), {"application": "a"})
    assert value(text, "nestedfp_controller_directive", mode="fp8", application="a") == 1
    assert value(text, "nestedfp_controller_rung", rung="shed", application="a") == 1
    assert value(text, "nestedfp_controller_replicas", state="known", application="a") == 0
    assert value(text, "nestedfp_controller_up", application="a") == 1
    assert value(text, "nestedfp_decisions_total", outcome="held", reason="held_by_quorum", application="a") == 3


def test_a_silent_controller_is_down_and_nothing_else_is_said_of_it():
    text = openmetrics.render(controller_families.families(None), {})
    assert samples(text) == {("nestedfp_controller_up", frozenset()): 0}
