"""The service on a Ray cluster that runs already, here of two nodes on one machine."""

import re
import subprocess

import httpx
import pytest
import ray_nodes
import yaml
from live_service import MODEL, complete, demo_config, wait_until
from processes import ROOT

from deploy.haproxy.launcher import SETTINGS_ENV

PORT = 8131
two_nodes = pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)")
NODE = {"RAY_SERVE_ENABLE_HA_PROXY": "1", SETTINGS_ENV: "{}"}


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
@pytest.mark.parametrize("lacking", NODE)
def test_in_a_process_of_a_node_without_the_environment_nothing_is_built(monkeypatch, lacking):
    from deploy.app import build

    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(lacking)
    with pytest.raises(RuntimeError, match="start every Ray node in the environment"):
        build({"config": "none.yaml"})


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(yaml.safe_dump(demo_config() | {"http": {"host": "0.0.0.0", "port": PORT}}))
    return path


def check_service(cluster):
    """Each node's HAProxy answers, with both nodes' replicas behind it."""
    for address in cluster.addresses:
        with httpx.Client(base_url=f"http://{address}:{PORT}", timeout=120, trust_env=False) as client:

            def both_replicas(client=client):
                try:
                    answer = client.get("/status")
                    return answer.status_code == 200 and len(answer.json()["replicas"]) == 2
                except httpx.TransportError:
                    return False

            assert wait_until(both_replicas, 120, 1.0), address
            assert client.get("/ready").json()["status"] == "ready"
            for _ in range(8):
                usage = complete(client)["usage"]
                assert sum(usage["precision_tokens"]["completion"].values()) == usage["completion_tokens"]
            assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
            metrics = client.get("/metrics").text
            assert 'nestedfp_replicas_scraped{application="nestedfp"} 2.0' in metrics
    answered = re.findall(r'^nestedfp_requests_total\{.*outcome="ok".*replica="(\w+)".*\} [1-9]', metrics, re.MULTILINE)
    assert len(set(answered)) == 2, metrics


def check_places(cluster):
    (deployment,) = cluster.applications()["nestedfp"]["deployments"].values()
    assert {replica["node_ip"] for replica in deployment["replicas"]} == set(cluster.addresses)


def shut_down(cluster):
    command = [str(ray_nodes.SERVE), "shutdown", "-y", "-a", cluster.dashboard]
    subprocess.run(command, cwd=ROOT, env=cluster.environment, check=True, capture_output=True, timeout=120)
    assert wait_until(lambda: not any(ray_nodes.listens(address, PORT) for address in cluster.addresses), 60)


@two_nodes
@pytest.mark.faults
def test_serve_deploy_starts_the_shipped_configuration_on_two_nodes(cluster, config, tmp_path):
    cluster.deploy(ray_nodes.shipped(config, PORT, tmp_path / "serve.yaml"))
    assert wait_until(cluster.running, 400, 2.0), cluster.applications()
    check_service(cluster)
    check_places(cluster)
    shut_down(cluster)
