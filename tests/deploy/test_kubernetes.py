"""The Kubernetes files: rendered by kustomize, held against Kubernetes' and KubeRay's schemas, Ray's and this service's own models.

No cluster runs here. tests/deploy/test_serve_update.py deploys the shipped Serve configuration on a Ray of two raylets.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import kubernetes_validate
import monitoring
import pytest
import yaml
from processes import ROOT

from deploy import leave
from deploy.config import DeployConfig
from deploy.haproxy import launcher

K8S = ROOT / "k8s"
OVERLAYS = sorted(path.parent for path in (K8S / "overlays").glob("*/kustomization.yaml"))
VERSION = "1.34"  # of Kubernetes' schemas
OPERATORS_KINDS = ("PodMonitor", "PrometheusRule")  # of Prometheus' operator, whose schemas are not at hand
KINDS = {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "RayService", "Service", "StatefulSet", *OPERATORS_KINDS}

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH, which has kustomize")


def render(folder: Path) -> list[dict]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module", params=OVERLAYS, ids=lambda path: path.name)
def overlay(request):
    """(folder, documents)"""
    return request.param, render(request.param)


def one(documents, kind, name=None):
    found = [each for each in documents if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, (kind, name)
    return found[0]


def templates(documents):
    """The head's pod template and the workers'."""
    cluster = one(documents, "RayService")["spec"]["rayClusterConfig"]
    return cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]


def config_of(documents) -> DeployConfig:
    data = yaml.safe_load(one(documents, "ConfigMap", "nestedfp-config")["data"]["deployment.yaml"])
    data["model"]["path"] = "models/fairytales-8m"  # what the claim holds is not here
    return DeployConfig.model_validate(data)


def test_kubernetes_own_schemas_accept_every_document_and_every_pod(overlay):
    documents = overlay[1]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
        for template in templates(documents)
    ]
    own = [each for each in documents if each["kind"] not in (*OPERATORS_KINDS, "RayService")]
    for document in own + pods:
        kubernetes_validate.validate(document, VERSION, strict=True)
    assert {each["metadata"]["namespace"] for each in documents} == {"nestedfp"}


def test_rays_own_model_accepts_the_serve_configuration_and_its_functions_exist(overlay):
    _, documents = overlay
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve.schema import ServeDeploySchema

        import deploy.app

        schema = ServeDeploySchema.model_validate(yaml.safe_load(one(documents, "RayService")["spec"]["serveConfigV2"]))
    assert schema.http_options.port == 8000
    for application in schema.applications:
        module, _, function = application.import_path.partition(":")
        assert module == "deploy.app"
        assert callable(getattr(deploy.app, function))
    control, replicas = schema.applications
    assert control.args["application"] == replicas.name
    mounts = {mount["mountPath"] for mount in templates(documents)[0]["spec"]["containers"][0]["volumeMounts"]}
    for path in (control.args["keys_file"], replicas.args["config"]):
        assert str(Path(path).parent) in mounts


def test_the_service_accepts_its_configuration_and_the_pods_have_what_it_needs(overlay):
    _, documents = overlay
    config = config_of(documents)
    assert config.http.host == "0.0.0.0"
    assert config.http.keys_file, "a service that listens everywhere has keys"
    assert config.controller.reload_on_change
    workers = one(documents, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    resources = workers["template"]["spec"]["containers"][0]["resources"]
    gpus = int(resources["limits"].get("nvidia.com/gpu", 0)) * workers["replicas"]
    if config.engine.accelerator == "gpu":
        assert gpus == config.replicas * config.engine.tensor_parallel_size
        assert config.engine.tensor_parallel_size <= int(resources["limits"]["nvidia.com/gpu"]), "ranks share a node"
    else:
        assert gpus == 0
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def test_no_container_is_root_or_holds_a_key_in_its_environment(overlay):
    _, documents = overlay
    pods = [template["spec"] for template in templates(documents)]
    pods.append(one(documents, "StatefulSet")["spec"]["template"]["spec"])
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert "requests" in container["resources"]
    environment = {each["name"]: each.get("value") for pod in pods[:2] for each in pod["containers"][0]["env"]}
    assert "NESTEDFP_ADMIN_KEY" not in environment
    assert {"NESTEDFP_ADMIN_KEY_FILE", "NESTEDFP_KEYS_FILE", "NESTEDFP_CONFIG"} <= environment.keys()


def test_a_pod_has_more_time_to_stop_than_its_streams_have_to_end(overlay):
    _, documents = overlay
    drain_s = config_of(documents).http.drain_s + launcher.DRAIN_S
    head, worker = templates(documents)
    assert head["spec"]["terminationGracePeriodSeconds"] >= drain_s + 30, "30 s for what Ray does after"
    (container,) = worker["spec"]["containers"]
    within_s = leave.arguments(container["lifecycle"]["preStop"]["exec"]["command"][3:]).within
    assert container["lifecycle"]["preStop"]["exec"]["command"][:3] == ["python", "-m", "deploy.leave"]
    assert within_s >= leave.LEFT_S + drain_s + 120, "two minutes in which a replacement is loaded"
    rays_own_s = 30  # RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S: Ray drains again on SIGTERM
    assert worker["spec"]["terminationGracePeriodSeconds"] >= within_s + rays_own_s + 30, "30 s for what Ray does after"


GIB = 1 << 30
# As measured: k8s/base/rayservice.yaml says how.
HEAD_BYTES, NODE_BYTES, REPLICA_BYTES = 2.3 * GIB, 0.5 * GIB, 1.9 * GIB


def in_bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([MG]i)", quantity).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


@pytest.fixture(scope="module")
def object_store_bytes() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        from deploy.startup.local_ray import OBJECT_STORE_BYTES
    return OBJECT_STORE_BYTES


def test_a_pod_has_the_memory_that_its_processes_and_its_shared_memory_take(overlay, object_store_bytes):
    _, documents = overlay
    config = config_of(documents)
    replica = REPLICA_BYTES + (config.engine.kv_cache_bytes or 0)
    # A rolling update starts a replica beside the one that goes.
    for template, processes in zip(templates(documents), (HEAD_BYTES, NODE_BYTES + 2 * replica), strict=True):
        (container,) = template["spec"]["containers"]
        resources = container["resources"]
        limit = in_bytes(resources["limits"]["memory"])
        assert in_bytes(resources["requests"]["memory"]) == limit, "a pod that gets less than it was promised is killed"
        (shared,) = [volume["emptyDir"] for volume in template["spec"]["volumes"] if volume["name"] == "memory"]
        assert shared["medium"] == "Memory"
        held = in_bytes(shared["sizeLimit"]) if processes > HEAD_BYTES else object_store_bytes
        assert processes + held <= limit


def test_rays_object_store_fits_into_the_shared_memory(overlay, object_store_bytes):
    """By itself Ray takes 30 % of the memory, and where /dev/shm has less, files in the container's own file system."""
    _, documents = overlay
    cluster = one(documents, "RayService")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        assert group["rayStartParams"]["object-store-memory"] == str(object_store_bytes)
        (shared,) = [each["emptyDir"] for each in group["template"]["spec"]["volumes"] if each["name"] == "memory"]
        assert in_bytes(shared["sizeLimit"]) >= 2 * object_store_bytes


def test_selectors_find_the_pods_that_they_mean(overlay):
    _, documents = overlay
    head, worker = (template["metadata"]["labels"] for template in templates(documents))

    def matches(selector, labels):
        return selector["matchLabels"].items() <= labels.items()

    for budget, labels, others in (("nestedfp-replicas", worker, head), ("nestedfp-head", head, worker)):
        selector = one(documents, "PodDisruptionBudget", budget)["spec"]["selector"]
        assert matches(selector, labels)
        assert not matches(selector, others)
    policy = one(documents, "NetworkPolicy", "nestedfp")["spec"]
    assert matches(policy["podSelector"], head)
    assert matches(policy["podSelector"], worker)
    open_to_clients = [rule for rule in policy["ingress"] if "nestedfp.io/client" in str(rule)]
    assert [port["port"] for rule in open_to_clients for port in rule["ports"]] == [8000]
    monitor = one(documents, "PodMonitor")["spec"]
    assert matches(monitor["selector"], head)
    assert not matches(monitor["selector"], worker), "one page has everything"
    ports = {port["name"]: port["containerPort"] for port in templates(documents)[0]["spec"]["containers"][0]["ports"]}
    assert ports[monitor["podMetricsEndpoints"][0]["port"]] == 8000


def test_the_images_are_those_of_the_dockerfile_and_pinned(overlay):
    folder, documents = overlay
    wanted = "nestedfp-cpu" if config_of(documents).engine.accelerator == "cpu" else "nestedfp-gpu"
    for template in templates(documents):
        image = template["spec"]["containers"][0]["image"]
        assert image == f"{wanted}:0.1.0", folder
    text = (K8S / "Dockerfile").read_text()
    assert f"-t {wanted}:0.1.0" in text
    assert f"--target {wanted.removeprefix('nestedfp-')} " in text


def test_the_rules_that_are_deployed_are_those_that_the_metrics_tests_read():
    rules = one(render(OVERLAYS[0]), "PrometheusRule")
    assert {"groups": rules["spec"]["groups"]} == monitoring.rule_groups()


# -- the image ---------------------------------------------------------------------------------------------------------


def test_the_dockerfile_copies_what_exists_runs_as_a_user_who_can_write_its_keys_and_pins_its_bases():
    text = (K8S / "Dockerfile").read_text()
    tracked = set(
        subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    )
    folders = {str(parent) for path in tracked for parent in Path(path).parents}
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    names = [name for _, name in stages]
    for base, _ in stages:
        assert base in (*names, "scratch") or re.search(r":\d+\.\d+\.\d+", base), f"{base} has no exact version"
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert source in tracked or source in folders, source
    allowed = {line[1:] for line in (K8S / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for source in line.split()[:-1]
    }
    assert copied == allowed
    for target in ("cpu", "gpu"):
        stage = text[text.index(f" AS {target}\n") :].split("\nFROM ")[0]
        assert "\nUSER 10001:10001\n" in stage
        assert "install -d -o nestedfp -g nestedfp runs\n" in stage, "the admin key's folder is the user's"
    base = text[text.index(" AS cpu-base\n") :].split("\nFROM ")[0]
    for stage in (base, text[text.index(" AS gpu\n") :]):
        assert re.search(r"apt-get install .*\bwget\b", stage), "KubeRay's probes are commands that run it"
    assert re.search(r"apt-get install .*\bg\+\+", base), "on a CPU torch compiles loops when the engine starts"


@pytest.mark.slow
def test_the_image_holds_every_package_that_what_it_runs_imports(tmp_path):
    text = (K8S / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            (tmp_path / source).parent.mkdir(exist_ok=True)
            if not (tmp_path / source).exists():
                (tmp_path / source).symlink_to(ROOT / source)
    modules = (
        "deploy.serve",
        "deploy.leave",
        "deploy.app",
        "deploy.replica.llm_replica",
        "controller.live.actor",
        "loadtest.cli",
        "simulator.run",
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for together in (modules, ("loadtest.sender.worker",)):  # the sender is a process of its own
        # The copies and the installed libraries alone: the editable install finds nestedfp, which the image builds.
        code = (
            f"import sys; sys.path[:] = [p for p in sys.path if p not in ('', {str(ROOT)!r})]; sys.path.insert(0, '.')"
        )
        code += "".join(f"\nimport {module}" for module in together)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


# -- the containers' environment ---------------------------------------------------------------------------------------


@pytest.fixture
def run_folder():
    """Not tmp_path: HAProxy's sockets need a short one."""
    with tempfile.TemporaryDirectory(prefix="nfp-", dir="/tmp") as folder:
        yield Path(folder) / "run"


def source(run_folder, config, then):
    return subprocess.run(
        ["bash", "-c", f"source {K8S / 'environment.sh'} && {then}"],
        cwd=ROOT,
        env={
            "PATH": f"{ROOT / '.venv' / 'bin'}:/usr/bin:/bin",
            "NESTEDFP_CONFIG": str(config),
            "NESTEDFP_RUN_FOLDER": str(run_folder),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_container_sets_the_environment_up_once_and_every_process_gets_the_same(run_folder):
    show = 'echo "$RAY_SERVE_ENABLE_HA_PROXY $RAY_SERVE_HAPROXY_BINARY_PATH $RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"'
    first = source(run_folder, "deploy/configs/demo.yaml", show)
    assert first.returncode == 0, first.stderr
    ha_proxy, launcher, _ = first.stdout.split()
    assert ha_proxy == "1"
    assert Path(launcher).stat().st_mode & 0o077 == 0
    assert (run_folder / "environment").stat().st_mode & 0o077 == 0
    assert source(run_folder, "deploy/configs/demo.yaml", show).stdout == first.stdout


def test_a_container_with_a_wrong_configuration_says_so_and_does_not_start(tmp_path, run_folder):
    (tmp_path / "bad.yaml").write_text("model: {id: x}\n")
    done = source(run_folder, tmp_path / "bad.yaml", "echo started")
    assert done.returncode != 0
    assert "model.path: required" in done.stderr
    assert "started" not in done.stdout
