"""The service on a Ray cluster that runs already, here of two nodes on one machine: by ``serve deploy``, and by ``--address``."""

import re
import subprocess
import sys

import httpx
import pytest
import ray_nodes
import yaml
from live_service import MODEL, complete, demo_config, wait_until
from processes import ROOT

from deploy.config import ConfigError
from deploy.haproxy.launcher import SETTINGS_ENV
from deploy.startup.attach import require_environment

PORT = 8131
two_nodes = pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)")
NODE = {"RAY_SERVE_ENABLE_HA_PROXY": "1", SETTINGS_ENV: "{}"}


def test_a_node_without_the_environment_is_named_and_nothing_is_deployed():
    require_environment({"a": NODE, "b": NODE})
    for lacking in ({}, {"RAY_SERVE_ENABLE_HA_PROXY": "1"}, {**NODE, "RAY_SERVE_ENABLE_HA_PROXY": "0"}):
        with pytest.raises(ConfigError, match=r"1 of 2 nodes lack the environment \(b\): start every node"):
            require_environment({"a": NODE, "b": lacking})
    with pytest.raises(ConfigError, match="no living node"):
        require_environment({})


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:{free}", "error: --address: no Ray cluster at 127.0.0.1:{free}"),
        ("ray://127.0.0.1:10001", "error: --address: expected auto or HOST:PORT"),
        ("somewhere", "error: --address: expected auto or HOST:PORT"),
    ],
)
def test_an_address_where_no_cluster_is_is_said_in_one_line(address, message):
    free = ray_nodes.free_port()
    command = [sys.executable, "-m", "deploy.serve", "--address", address.format(free=free)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(message.format(free=free))
    assert len(done.stderr.splitlines()) == 1


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


@two_nodes
@pytest.mark.faults
def test_the_start_up_command_deploys_on_a_running_cluster_and_returns(cluster, config):
    command = [sys.executable, "-m", "deploy.serve", "--config", str(config), "--address", cluster.gcs]
    plain = {
        name: value for name, value in cluster.environment.items() if not name.startswith(("RAY_SERVE_", SETTINGS_ENV))
    }
    done = subprocess.run([*cluster.head, *command], cwd=ROOT, env=plain, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert f"ready on port {PORT}" in done.stdout
    check_service(cluster)
    check_places(cluster)
    shut_down(cluster)
