"""A node leaves a Ray of two nodes under a steady load, as a pod does on a node that is drained: no client notices it.

The engines' steps are sleeps of a known length, so that an answer takes longer than Ray itself waits for one on SIGTERM; everything
else is the service itself.
"""

import subprocess
import sys
import time

import httpx
import pytest
import ray_nodes
import yaml
from live_service import demo_config, wait_until
from processes import ROOT
from steady_load import WITHOUT_LOGPROBS, SteadyLoad

PORT = 8137
PER_S = 1.0
STEP_S = 0.15  # the longest answers, of 400 tokens, take a minute
DRAIN_S = 120.0
WITHIN_S = 420.0
RAYS_OWN_S = 30.0  # RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)"),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("leave") / "config.yaml"
    service = demo_config() | {"http": {"host": "0.0.0.0", "port": PORT, "drain_s": DRAIN_S}}
    service["engine"] |= ray_nodes.TIMED
    path.write_text(yaml.safe_dump(service))
    return path


@pytest.fixture(scope="module")
def cluster(config):
    with ray_nodes.cluster(config, step_s=STEP_S) as found:
        yield found


def leave(cluster, number):
    """``python -m deploy.leave`` on a node, as a preStop hook starts it: in the environment of the container."""
    command = [sys.executable, "-m", "deploy.leave", "--within", str(WITHIN_S)]
    environment = {**cluster.environment, "RAY_ADDRESS": cluster.gcs}
    return subprocess.Popen(
        [*cluster.inside[number], *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def takes_requests(url):
    """What a load balancer asks."""
    try:
        return httpx.get(f"{url}/-/healthz", timeout=10, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def places(cluster):
    """Where the running replicas are."""
    (deployment,) = cluster.applications()["nestedfp"]["deployments"].values()
    return sorted(each["node_ip"] for each in deployment["replicas"] if each["state"] == "RUNNING")


def test_a_node_that_leaves_under_load_loses_no_request(cluster, config, tmp_path, capsys):
    cluster.deploy(ray_nodes.shipped(config, PORT, tmp_path / "serve.yaml"))
    assert wait_until(cluster.running, 400, 2.0), cluster.applications()
    stays, leaves = (f"http://{address}:{PORT}" for address in cluster.addresses)
    for url in (stays, leaves):
        assert wait_until(
            lambda url=url: len(httpx.get(f"{url}/status", timeout=30).json().get("replicas", [])) == 2, 60, 1.0
        )
    assert places(cluster) == sorted(cluster.addresses)
    head = leave(cluster, 0)
    assert "is the cluster's head, which cannot leave it" in head.communicate(timeout=60)[0]
    assert head.returncode == 2
    with SteadyLoad([stays, leaves], PER_S, WITHOUT_LOGPROBS) as load:
        assert wait_until(lambda: len(load.answers) > 20, 120)
        began_s = time.monotonic()
        leaving = leave(cluster, 1)
        try:
            assert wait_until(lambda: leaving.poll() is not None or not takes_requests(leaves), 60)
            load.leave_out(leaves)
            told_s = time.monotonic()
            said, _ = leaving.communicate(timeout=WITHIN_S + 30)
        finally:
            leaving.kill()
        gone_s = time.monotonic()
        assert leaving.returncode == 0, said
        assert places(cluster) == [cluster.addresses[0]] * 2, "Serve has started a replacement elsewhere"
        cluster.end_node(1)
        since = len(load.answers)
        assert wait_until(lambda: len(load.answers) > since + 20, 120), "the node that stays alone"
    before = [each for each in load.in_flight_at(began_s) if each.url == leaves]
    through = [each for each in load.answers if each.url == leaves and each.ended_s > told_s]
    with capsys.disabled():
        print(
            f"\nnode left: {gone_s - began_s:.0f} s, {len(load.answers)} requests, {load.ends()}; by way of the node that left "
            f"{len(before)} were in flight when it began to leave, {len(through)} when it was taken out"
        )
    assert load.ends() == {"ok": len(load.answers)}, [answer for answer in load.answers if answer.end != "ok"]
    assert max(each.ended_s for each in before) > began_s + RAYS_OWN_S, "some that were in flight took long"
    assert max(each.ended_s for each in through) < gone_s, "they had ended when it was said to have left"
