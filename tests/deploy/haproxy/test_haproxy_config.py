"""HAProxy's configuration: Ray Serve's own template read, ours written, and what the launcher makes of them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from haproxy_calls import APP, CONTROL
from haproxy_run import render
from processes import ROOT

from deploy import environment
from deploy.config import load
from deploy.haproxy import launcher
from deploy.haproxy.haproxy_config import Limits, write
from deploy.haproxy.targets import TEMPLATE_CHANGED, Targets, read

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


BACKENDS = {
    "none": {},
    "an application": {APP: ("/", [30001])},
    "two applications and two replicas": {APP: ("/", [30001, 30002]), CONTROL: ("/control", [30003])},
    "no replica": {APP: ("/", []), CONTROL: ("/control", [])},
}


def targets_of(folder: Path, backends: dict) -> Targets:
    return read(render(folder, 18000, backends).read_text())


@pytest.mark.parametrize("backends", BACKENDS.values(), ids=BACKENDS)
def test_haproxy_itself_finds_our_configuration_valid(tmp_path, backends):
    path = tmp_path / "ours.cfg"
    path.write_text(write(targets_of(tmp_path, backends), Limits()))
    done = subprocess.run([launcher.binary(), "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALERT" not in done.stderr
    assert "WARNING" not in done.stderr, done.stderr


def test_replicas_are_taken_over_and_the_python_proxy_is_not(tmp_path):
    targets = targets_of(tmp_path, BACKENDS["two applications and two replicas"])
    assert [(backend.name, backend.prefix) for backend in targets.backends] == [(CONTROL, "/control"), (APP, "")]
    assert [line.split()[2] for line in targets.backends[1].servers] == ["127.0.0.1:30001", "127.0.0.1:30002"]
    assert targets.bind == "bind 127.0.0.1:18000"
    text = write(targets, Limits())
    assert "fallback" not in text
    assert "listen stats" not in text
    assert "prometheus" not in text


@pytest.mark.parametrize(
    "line", ["stats socket", "bind", "acl is_nestedfp-app path_beg", "default-server", "use_backend", "acl healthcheck"]
)
def test_another_template_gives_one_clear_error(tmp_path, line):
    text = render(tmp_path, 18000, BACKENDS["two applications and two replicas"]).read_text()
    changed = "\n".join(each for each in text.splitlines() if not each.strip().startswith(line))
    if line == "acl healthcheck":
        changed = changed.replace("healthcheck", "health")
    with pytest.raises(ValueError, match=f"^{TEMPLATE_CHANGED}: no line '{line[:6]}"):
        read(changed)


def test_a_folder_whose_sockets_haproxy_could_not_bind_is_refused_at_once(tmp_path, capsys):
    long = tmp_path / "a-folder-with-a-long-name"
    command = ["--config", str(ROOT / "deploy/configs/demo.yaml"), "--folder", str(long)]
    assert environment.main(command) == 2
    assert "a path of at most 29 characters" in capsys.readouterr().err
    assert not long.exists()


def test_ray_serve_takes_up_what_its_nodes_environment_says_of_ends_and_checks():
    with tempfile.TemporaryDirectory() as folder:
        variables = environment.of(load(ROOT / "deploy/configs/demo.yaml"), Path(folder))
    names = [
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_UNHEALTHY_THRESHOLD",
    ]
    code = f"from ray.serve._private import constants; print([getattr(constants, name) for name in {names}])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[True, 2.0, 8.0, 3]"
