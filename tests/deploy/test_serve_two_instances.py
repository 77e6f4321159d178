"""Two services in one Ray cluster, neither under the usual name: each has its own replicas, controller, control routes and keys."""

import hashlib
import re
import time

import httpx
import pytest
import ray_nodes
import yaml
from live_service import demo_config, wait_until

PORT = 8141
PLACES = {"tales": "", "stories": "/second"}  # application -> its route prefix, "" for the root
KEYS = {"tales": "key-of-tales-0123456789", "stories": "key-of-stories-0123456789"}

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not ray_nodes.possible(), reason="no right to make network namespaces (ip netns)"),
]


def headers(name):
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each service's configuration, with a key of its own that may do everything."""
    folder = tmp_path_factory.mktemp("two")
    for name, key in KEYS.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        (folder / f"{name}-keys.yaml").write_text(
            yaml.safe_dump({"keys": [{"name": name, "sha256": digest, "role": "admin"}]})
        )
        config = demo_config() | {"replicas": 1, "controller": {"policy": {"name": "static_fp16"}}}
        config["http"] = {"host": "0.0.0.0", "port": PORT, "keys_file": str(folder / f"{name}-keys.yaml")}
        config["model"] |= {"id": name}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(scope="module")
def cluster(files):
    """Its nodes have the admin key that both services share."""
    (files / "admin").write_text("key-of-the-nodes-0123456789")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTEDFP_ADMIN_KEY_FILE", str(files / "admin"))
        with ray_nodes.cluster(files / "tales.yaml") as found:
            yield found


def serve_file(files, *names):
    """What ``serve deploy`` takes: these services, each as docs/operations.md says."""
    applications = []
    for name in names:
        keys, config = str(files / f"{name}-keys.yaml"), str(files / f"{name}.yaml")
        applications += [
            {
                "name": f"{name}-control",
                "route_prefix": f"{PLACES[name]}/control",
                "import_path": "deploy.app:build_control",
                "args": {"application": name, "keys_file": keys},
            },
            {
                "name": name,
                "route_prefix": PLACES[name] or "/",
                "import_path": "deploy.app:build",
                "args": {"config": config},
            },
        ]
    into = files / "serve.yaml"
    options = {"host": "0.0.0.0", "port": PORT}
    into.write_text(
        yaml.safe_dump({"proxy_location": "EveryNode", "http_options": options, "applications": applications})
    )
    return into


def states(cluster):
    return {name: each["status"] for name, each in cluster.applications().items()}


def complete(client, name, as_name=None, **more):
    body = {"model": name, "prompt": "Once upon a time", "max_tokens": 8, **more}
    return client.post(f"{PLACES[name]}/v1/completions", json=body, headers=headers(as_name or name))


def status(client, name):
    answer = client.get(f"{PLACES[name]}/status", headers=headers(name))
    return answer.json() if answer.status_code == 200 else {}


def test_two_services_share_a_cluster_and_nothing_else(cluster, files):
    cluster.deploy(serve_file(files, *PLACES))
    wanted = {each for name in PLACES for each in (name, f"{name}-control")}
    assert wait_until(lambda: states(cluster) == dict.fromkeys(wanted, "RUNNING"), 400, 2.0), cluster.applications()
    with httpx.Client(base_url=f"http://{cluster.addresses[0]}:{PORT}", timeout=60, trust_env=False) as client:
        seen = {}
        for name, other in zip(PLACES, reversed(PLACES), strict=True):
            base = PLACES[name]
            assert wait_until(lambda name=name: len(status(client, name).get("replicas", [])) == 1, 60, 1.0), name
            answer = complete(client, name)
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
            listed = client.get(f"{base}/v1/models", headers=headers(name)).json()["data"]
            assert [each["id"] for each in listed] == [name]
            assert complete(client, name, as_name=other).status_code == 401, "the other service's key"
            assert client.get(f"{base}/status", headers=headers(other)).status_code == 401
            page = client.get(f"{base}/control")
            assert page.status_code == 200
            assert "<html" in page.text
            assert client.get(f"{base}/control/data", headers=headers(name)).status_code == 200
            metrics = client.get(f"{base}/metrics").text
            assert set(re.findall(r'application="([^"]+)"', metrics)) == {name}
            assert f'nestedfp_replicas_scraped{{application="{name}"}} 1.0' in metrics
            assert client.get(f"{base}/ready").json()["status"] == "ready"
            seen[name] = status(client, name)["replicas"][0]["id"]
            shared = {"Authorization": "Bearer key-of-the-nodes-0123456789"}
            assert client.get(f"{base}/status", headers=shared).status_code == 200
        assert len(set(seen.values())) == 2
        # An order to one is not heard by the other.
        order = {"mode": "fp8", "ttl_s": 600}
        told = client.post("/second/admin/directive", json=order, headers=headers("stories"))
        assert told.status_code == 200, told.text
        assert client.post("/admin/directive", json=order, headers=headers("stories")).status_code == 401
        precisions = {name: complete(client, name).json()["usage"]["precision_tokens"]["completion"] for name in PLACES}
        assert precisions["stories"]["fp16"] == 0, "its controller found it under its name"
        assert precisions["tales"]["fp8"] == 0


def test_one_that_goes_takes_its_routes_with_it_and_the_other_serves_on(cluster, files):
    cluster.deploy(serve_file(files, "tales"))
    assert wait_until(lambda: states(cluster) == {"tales": "RUNNING", "tales-control": "RUNNING"}, 120, 1.0)
    with httpx.Client(base_url=f"http://{cluster.addresses[0]}:{PORT}", timeout=60, trust_env=False) as client:
        assert wait_until(lambda: complete(client, "stories").status_code in (404, 503), 60, 1.0)
        began_s = time.monotonic()
        while time.monotonic() < began_s + 5:
            assert complete(client, "tales").status_code == 200
        assert len(status(client, "tales")["replicas"]) == 1
