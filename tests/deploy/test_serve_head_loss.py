"""Ray's GCS is killed, and with it the head's every process, as in a head's pod: Redis has what the next head must know.

The engines' steps are sleeps of a known length, so that the processor is left to the head, which starts beside them here.
"""

import contextlib
import time

import httpx
import psutil
import pytest
import ray_nodes
import redis_run
import yaml
from live_service import MODEL, demo_config, wait_until
from steady_load import WITHOUT_LOGPROBS, SteadyLoad

PORT = 8139
PER_S = 2.0
STEP_S = 0.05  # the longest answers, of 400 tokens, take 20 s

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)"),
    pytest.mark.skipif(redis_run.missing() is not None, reason=str(redis_run.missing())),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "config.yaml"
    service = demo_config() | {"http": {"host": "0.0.0.0", "port": PORT}}
    service["engine"] |= ray_nodes.TIMED
    path.write_text(yaml.safe_dump(service))
    return path


@pytest.fixture(scope="module")
def cluster(config):
    """A head without replicas, as in k8s/, and a node with both."""
    with ray_nodes.cluster(config, head_cpus=0, redis=True, step_s=STEP_S) as found:
        yield found


def process_of(cluster, number, name):
    """A process that a node has started."""
    family = psutil.Process(cluster.processes[number].pid).children(recursive=True)
    (found,) = [each for each in family if each.name() == name]
    return found


def replicas(cluster):
    """The running replicas' ids; none while nobody tells."""
    with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
        deployments = cluster.applications()["nestedfp"]["deployments"].values()
        return {one["replica_id"] for each in deployments for one in each["replicas"] if one["state"] == "RUNNING"}
    return set()


def status(url):
    """The service's status; none while it does not tell."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        answer = httpx.get(f"{url}/status", timeout=30, trust_env=False)
        return answer.json() if answer.status_code == 200 else {}
    return {}


def test_requests_go_on_while_the_head_dies_and_comes_back(cluster, config, tmp_path, capsys):
    cluster.deploy(ray_nodes.shipped(config, PORT, tmp_path / "serve.yaml"))
    assert wait_until(cluster.running, 400, 2.0), cluster.applications()
    url = f"http://{cluster.addresses[1]}:{PORT}"  # the head's own HAProxy dies with it
    assert wait_until(lambda: len(status(url).get("replicas", [])) == 2, 60, 1.0)
    before = replicas(cluster)
    assert len(before) == 2
    with SteadyLoad([url], PER_S, WITHOUT_LOGPROBS) as load:
        assert wait_until(lambda: len(load.answers) > 20, 120)
        process_of(cluster, 0, "gcs_server").kill()
        killed_s = time.monotonic()
        assert wait_until(lambda: cluster.processes[0].poll() is not None, 120), "the head ends without its GCS"
        ended_s = time.monotonic()
        answer = httpx.get(f"{url}/status", timeout=30, trust_env=False)
        assert answer.status_code == 503, "nobody tells where the controller is"
        assert "the controller does not answer" in answer.text
        starts = 0

        def back():
            nonlocal starts
            if cluster.processes[0].poll() is not None:  # Kubernetes starts it as often as it ends
                cluster.start_node(0)
                starts += 1
            return replicas(cluster) == before

        assert wait_until(back, 300, 1.0), "Serve knows its replicas again, and none was started anew"
        back_s = time.monotonic()
        assert wait_until(lambda: len(status(url).get("replicas", [])) == 2, 60, 1.0)
        whole_s = time.monotonic()
        since = len(load.answers)
        assert wait_until(lambda: len(load.answers) > since + 20, 120)
    with capsys.disabled():
        print(
            f"\nGCS killed: the head ended after {ended_s - killed_s:.0f} s and was started {starts} times; Serve knew its "
            f"replicas again after {back_s - killed_s:.0f} s, /status was whole after {whole_s - killed_s:.0f} s; "
            f"{len(load.answers)} requests, {load.ends()}; in flight when it died: {len(load.in_flight_at(killed_s))}"
        )
    assert load.ends() == {"ok": len(load.answers)}, [answer for answer in load.answers if answer.end != "ok"]
    assert any(killed_s < answer.began_s and answer.ended_s < back_s for answer in load.answers), "some without a head"
    assert replicas(cluster) == before
    assert httpx.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"] == MODEL
