"""The metrics of the running service: what is on the page, and that every series of the dashboard and of the alert rules is."""

import shutil
import subprocess

import monitoring
import pytest
import yaml
from keyed_service import client_of
from live_service import ADMIN, MODEL, complete, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytestmark = pytest.mark.serve

SERIES_AT_MOST = 1500  # of a replica


@pytest.fixture(scope="module")
def client(service):
    with client_of("admin") as client:
        yield client


@pytest.fixture(scope="module")
def page(client):
    """What is scraped after requests in both precisions, pinned and not, streamed, answered and refused."""
    for mode, told in (("fp8", "fast"), ("fp16", "exact")):
        assert client.post("/admin/directive", json={"mode": mode}, headers=ADMIN).status_code == 200
        assert wait_until(lambda told=told: complete(client, max_tokens=16)["usage"]["precision"] == told, 60)
        complete(client, vllm_xargs={"precision": "fp16"})
    client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": -1})
    streamed = {"model": MODEL, "prompt": "a b", "max_tokens": 12, "stream": True}
    assert client.post("/v1/completions", json=streamed).status_code == 200
    client.post("/admin/directive", json={"mode": "auto"}, headers=ADMIN)
    text = client.get("/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def whole_page(client):
    """The page with both replicas: one that is asked while it is busy may not answer in time."""
    said = 'nestedfp_replicas_scraped{application="nestedfp"} 2.0'
    return wait_until(lambda: said in (page := client.get("/metrics")).text and page, 30)


def test_the_page_is_openmetrics_and_both_replicas_and_the_controller_are_on_it(client):
    response = whole_page(client)
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    replicas = {sample.labels["replica"] for sample in families["nestedfp_tokens"].samples}
    assert len(replicas) == 2
    assert {sample.labels["replica"] for sample in families["vllm:prompt_tokens"].samples} == replicas
    labels = families["vllm:prompt_tokens"].samples[0].labels
    assert (labels["application"], labels["model"]) == ("nestedfp", MODEL)
    assert families["nestedfp_controller_up"].samples[0].value == 1
    layers = {s.labels["kind"]: s.value for s in families["nestedfp_layers"].samples}
    assert layers["nested"] > 0


def test_the_service_is_healthy_and_ready_after_both_precisions_answered_a_probe(client):
    assert client.get("/health").json()["status"] == "healthy"
    ready = client.get("/ready")
    assert ready.status_code == 200
    assert set(ready.json()["probe_s"]) == {"fp16", "fp8"}
    assert all(check["worst_cosine"] > 0.99 and check["layers"] > 0 for check in ready.json()["self_checks"])
    assert ready.json()["stats_age_s"] >= 0


def test_the_number_of_series_is_bounded_whatever_clients_send(client):
    def series():
        page = whole_page(client).text
        return sum(len(family.samples) for family in text_string_to_metric_families(page))

    complete(client)
    client.post("/v1/completions", json={"model": "no such model", "prompt": "x"})
    before = series()
    for number in range(20):
        client.post("/v1/completions", json={"model": f"model-{number}", "prompt": "x"}, headers={"x-odd": str(number)})
        client.get(f"/v1/models/{number}")
        client.post(f"/v1/{number}")
    assert series() <= before + 8  # those that the first of its kind adds
    assert before < 2 * SERIES_AT_MOST


def test_every_series_that_a_query_or_an_alert_names_is_on_the_page(page):
    found = {sample.name for sample in page}
    missing = {title: monitoring.names(expression) - found for title, expression in monitoring.queries().items()}
    assert not any(missing.values()), missing
    assert len(missing) > 40


def test_what_is_counted_is_what_was_asked(page):
    def total(name, **labels):
        return sum(each.value for each in page if each.name == name and labels.items() <= each.labels.items())

    assert (
        total("nestedfp_answers_total", asked="exact", precision="exact")
        == total("nestedfp_answers_total", asked="exact")
        > 0
    )
    assert total("nestedfp_answers_total", precision="fast") > 0
    assert total("nestedfp_requests_total", outcome="invalid") > 0
    assert total("nestedfp_switches_total") > 0
    assert total("nestedfp_tokens_total", precision="fp8") > 0
    assert 0 < total("nestedfp_ttft_seconds_count") <= total("nestedfp_requests_total", outcome="ok")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on the PATH (Debian: apt install prometheus)")
def test_promtool_finds_no_fault_in_the_rules_and_they_fire_when_they_should(tmp_path):
    groups = monitoring.rule_groups()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yaml")], check=True, capture_output=True)
    for group in groups["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # promtool would compare their text
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    labels = 'application="a",replica="r"'
    case = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": f"nestedfp_engine_stalled_seconds{{{labels}}}", "values": "0x8 0+15x20"},
                    {"series": 'nestedfp_controller_up{application="a"}', "values": "1x10 0x30"},
                    {"series": f'nestedfp_requests_total{{{labels},outcome="ok"}}', "values": "0+100x40"},
                    {"series": f'nestedfp_requests_total{{{labels},outcome="failed"}}', "values": "0+5x40"},
                ],
                "alert_rule_test": [
                    {"eval_time": "2m", "alertname": "NestedFPEngineStalled", "exp_alerts": []},
                    {"eval_time": "5m", "alertname": "NestedFPEngineStalled", "exp_alerts": [firing("critical", "r")]},
                    {"eval_time": "5m", "alertname": "NestedFPControllerDown", "exp_alerts": [firing("warning")]},
                    {"eval_time": "9m", "alertname": "NestedFPErrors", "exp_alerts": [firing("critical")]},
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(case))
    done = subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(severity, replica=None):
    labels = {"application": "a", "severity": severity}
    return {"exp_labels": labels if replica is None else labels | {"replica": replica}}
