"""The shipped Serve configuration on two nodes, updated under a steady load: no client notices, and an override outlives it."""

import re
import subprocess
import time

import httpx
import pytest
import ray_nodes
import yaml
from live_service import demo_config, wait_until
from processes import ROOT
from steady_load import SteadyLoad

from nestedfp.admin_key import KEY_FILE_ENV

PORT = 8133
PER_S = 2.0
KEY = "key-of-the-update-0123456789"
ORDER_S = 3000.0  # longer than the test
DRAIN_S = 60.0  # longer than the longest answer of the load takes on a machine that starts an engine meanwhile

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)"),
]


def write(path, revision, **engine):
    """Write the service's configuration, and what ``serve deploy`` takes; the latter's path."""
    config = demo_config() | {"http": {"host": "0.0.0.0", "port": PORT, "drain_s": DRAIN_S}}
    config["engine"] |= engine
    path.write_text(yaml.safe_dump(config))
    return ray_nodes.shipped(path, PORT, path.with_suffix(".serve.yaml"), revision)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("update")
    path = folder / "config.yaml"
    write(path, "1")
    (folder / "admin.key").write_text(KEY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_FILE_ENV, str(folder / "admin.key"))  # of the nodes, which are started after this
        yield path


def replicas(cluster):
    """The running replicas' ids."""
    deployments = cluster.applications()["nestedfp"]["deployments"].values()  # none while the application is built
    return {one["replica_id"] for each in deployments for one in each["replicas"] if one["state"] == "RUNNING"}


def served(cluster):
    """How many requests to generate each replica has answered, by its access log."""
    found = {}
    for path in cluster.folder.glob("session_latest/logs/serve/access_*.log*"):
        name = re.match(r"access_(\w+)\.log", path.name)[1]
        found[name] = found.get(name, 0) + path.read_text().count('"outcome":"ok"')
    return found


def test_a_rolling_update_loses_no_request(cluster, config, capsys):
    cluster.deploy(write(config, "1"))
    assert wait_until(cluster.running, 400, 2.0), cluster.applications()
    urls = [f"http://{address}:{PORT}" for address in cluster.addresses]
    for url in urls:
        assert wait_until(
            lambda url=url: len(httpx.get(f"{url}/status", timeout=30).json().get("replicas", [])) == 2, 60, 1.0
        )
    order = {"mode": "fp8", "ttl_s": ORDER_S}
    told = httpx.post(f"{urls[0]}/admin/directive", json=order, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
    assert told.status_code == 200, told.text
    for url in urls:  # each node's HAProxy has both nodes' replicas behind it
        assert 'nestedfp_replicas_scraped{application="nestedfp"} 2.0' in httpx.get(f"{url}/metrics", timeout=30).text
    old = replicas(cluster)
    seen, met = set(old), []
    with SteadyLoad(urls, PER_S) as load:
        assert wait_until(lambda: len(load.answers) > 20, 120)
        began_s = time.monotonic()
        cluster.deploy(write(config, "2", max_num_seqs=12))

        def updated():
            nonlocal seen
            now = replicas(cluster)
            if now != seen:
                met.append(time.monotonic())
                seen = now
            return cluster.running() and len(now) == 2 and not now & old

        assert wait_until(updated, 420, 0.5), cluster.applications()
        took_s = time.monotonic() - began_s
        since = len(load.answers)
        assert wait_until(lambda: len(load.answers) > since + 10, 120), "the new replicas alone"
    for url in urls:
        status = httpx.get(f"{url}/status", timeout=30).json()
        assert status["override"] is not None, status
        assert status["override"]["mode"] == "fp8"
        assert 0 < status["override"]["remaining_s"] <= ORDER_S - took_s, "the time goes on"
        assert {each["directive"] for each in status["replicas"]} == {"fp8"}, "an override outlives the update"
    counts = served(cluster)
    across = {answer for at_s in met for answer in load.in_flight_at(at_s)}
    with capsys.disabled():
        print(
            f"\nrolling update: {took_s:.0f} s, {len(load.answers)} requests, {load.ends()}; in flight at one of "
            f"{len(met)} changes: {len(across)}; answered by each replica: {counts}"
        )
    assert load.ends() == {"ok": len(load.answers)}, [answer for answer in load.answers if answer.end != "ok"]
    assert across, "some were in flight when replicas changed"
    assert old | replicas(cluster) == {name for name, count in counts.items() if count}, "old and new ones served"
    command = [str(ray_nodes.SERVE), "shutdown", "-y", "-a", cluster.dashboard]
    subprocess.run(command, cwd=ROOT, env=cluster.environment, check=True, capture_output=True, timeout=120)
    assert wait_until(lambda: not any(ray_nodes.listens(address, PORT) for address in cluster.addresses), 60)
