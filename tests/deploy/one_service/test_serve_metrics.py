"""The metrics of the running service, scraped by a real Prometheus: every query of the dashboard and of the alert rules."""

import subprocess
import threading
import time

import prometheus_run
import pytest
import yaml
from keyed_service import PORT, client_of
from live_service import ADMIN, MODEL, complete, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytestmark = [pytest.mark.serve, pytest.mark.skipif(not prometheus_run.installed(), reason=prometheus_run.MISSING)]

SCRAPED_S = 60.0  # until a scrape that failed on a busy machine has been made up for
SERIES_AT_MOST = 1500  # of a replica


@pytest.fixture(scope="module")
def client(service):
    with client_of("admin") as client:
        yield client


@pytest.fixture(scope="module")
def prometheus(client, tmp_path_factory):
    """Prometheus after half a minute of requests: in both precisions, pinned and not, answered and refused."""
    stop = threading.Event()

    def load():
        with client_of("admin") as own:
            while not stop.is_set():
                complete(own, max_tokens=16)
                own.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": -1})
                complete(own, vllm_xargs={"precision": "fp16"})
                with own.stream(
                    "POST", "/v1/completions", json={"model": MODEL, "prompt": "a b", "max_tokens": 12, "stream": True}
                ) as answer:
                    answer.read()

    threads = [threading.Thread(target=load) for _ in range(3)]
    with prometheus_run.scraping(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{PORT}") as server:
        for thread in threads:
            thread.start()
        try:
            for mode in ("fp8", "fp16", "fp8"):
                assert client.post("/admin/directive", json={"mode": mode}, headers=ADMIN).status_code == 200
                time.sleep(6)
            assert wait_until(lambda: server.query("count_over_time(nestedfp_controller_up[5m]) >= 4"), SCRAPED_S)
            yield server
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            client.post("/admin/directive", json={"mode": "auto"}, headers=ADMIN)


def test_the_page_is_openmetrics_and_both_replicas_and_the_controller_are_on_it(client):
    response = client.get("/metrics")
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
        page = client.get("/metrics").text
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


def test_prometheus_takes_the_page(prometheus):
    def seen():
        targets = prometheus.get("targets")["activeTargets"]
        return [(target["health"], target["lastError"]) for target in targets]

    assert wait_until(lambda: seen() == [("up", "")], SCRAPED_S), seen()


def test_every_query_of_the_dashboard_finds_something(prometheus):
    for title, expression in prometheus_run.dashboard_queries().items():
        assert wait_until(lambda e=expression: prometheus.query(e), SCRAPED_S), f"{title}: {expression}"


def test_every_series_that_an_alert_names_exists_and_its_rule_is_evaluated_without_an_error(prometheus):
    for alert, expression in prometheus_run.alerts().items():
        prometheus.query(expression)
        for name in prometheus_run.names(expression):
            found = wait_until(lambda n=name: prometheus.query(f"count({n})"), SCRAPED_S)
            assert found, f"{alert}: no series {name}"

    def evaluated():
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_until(evaluated, SCRAPED_S)
    assert {rule["name"] for rule in rules} == set(prometheus_run.alerts())
    assert {rule["health"] for rule in rules} == {"ok"}
    assert not [rule["name"] for rule in rules if rule["state"] == "firing"]


def test_what_prometheus_counts_is_what_was_asked(prometheus, client):
    def total(expression):
        found = wait_until(lambda: prometheus.query(expression), SCRAPED_S)
        assert found, expression
        return float(found[0]["value"][1])

    assert total('sum(nestedfp_answers_total{asked="exact"})') > 0
    assert total('sum(nestedfp_answers_total{precision=~"fast|mixed",asked="exact"}) or vector(0)') == 0
    assert total('sum(nestedfp_answers_total{precision="fast"})') > 0
    assert total('sum(nestedfp_requests_total{outcome="invalid"})') > 0
    assert total("sum(nestedfp_switches_total)") > 0
    assert total('sum(nestedfp_tokens_total{precision="fp8"})') > 0
    streamed = total("sum(nestedfp_ttft_seconds_count)")
    assert 0 < streamed <= total('sum(nestedfp_requests_total{outcome="ok"})') + 6  # those that end while we look


def test_promtool_finds_no_fault_in_the_rules_and_they_fire_when_they_should(tmp_path):
    groups = prometheus_run.rule_groups()
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
