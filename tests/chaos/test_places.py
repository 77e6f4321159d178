"""At which replica a request was, from what HAProxy and the access logs say."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from haproxy_run import Replica, ok, running
from live_service import wait_until

from chaos import places
from chaos.places import failures, in_flight, replica_of, sessions, since

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own
HEAD = "# pxname,svname,qcur,scur,"


def test_the_open_requests_of_each_replica_are_read_from_haproxys_table():
    app, control = "SERVE_REPLICA_nestedfp-NestedFPServer_fairytales-8m", "SERVE_REPLICA_nestedfp-control-Control"
    rows = ["http_frontend,FRONTEND,,9,", f"http-nestedfp,{app}-2uiybmvp,0,5,", f"http-nestedfp,{app}-7pr1z5j6,0,,"]
    rows += ["http-nestedfp,BACKEND,0,5,", f"http-control,{control}-zjbav77b,0,1,"]
    assert sessions("\n".join([HEAD, *rows])) == {"2uiybmvp": 5, "7pr1z5j6": 0, "zjbav77b": 1}


def test_a_real_haproxy_is_asked_and_one_that_has_gone_is_left_out():
    replica = Replica(ok("served"))
    with tempfile.TemporaryDirectory(prefix="nfp-", dir="/tmp") as folder:
        with running(Path(folder), {"SERVE_REPLICA_app-d": ("/", [replica.port])}) as (_, _):
            assert wait_until(lambda: in_flight(folder) == {str(replica.port): 0}, 10), in_flight(folder)
        assert wait_until(lambda: in_flight(folder) == {}, 10), "its watcher ends it with the node"
    replica.stop()


def test_a_process_belongs_to_the_replica_whose_access_log_it_or_an_ancestor_has_open(tmp_path):
    code = "import subprocess, sys; open(sys.argv[1], 'a'); f = open(sys.argv[1], 'a')\n"
    code += "p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "access_abc123.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replica:
        engine = int(replica.stdout.readline())
        try:
            assert replica_of(engine) == replica_of(replica.pid) == "abc123"
            assert replica_of(1) is None  # this process may have logs open
        finally:
            os.kill(engine, 9)
    assert replica_of(replica.pid) is None, "it has ended"


def test_failures_are_counted_by_replica(tmp_path):
    logs = tmp_path / "ray" / "session_latest" / "logs" / "serve"
    logs.mkdir(parents=True)
    assert failures(str(tmp_path)) == {}
    line = "time=x id=a outcome={} status=200\n"
    (logs / "access_a1.log").write_text(line.format("ok") + line.format("failed") * 2)
    (logs / "access_b2.log").write_text(line.format("refused") + line.format("ok"))
    before = failures(str(tmp_path))
    assert before == {"a1": 2, "b2": 0}
    (logs / "access_c3.log").write_text(line.format("failed"))
    assert since(before, failures(str(tmp_path))) == {"a1": 0, "b2": 0, "c3": 1}


def test_the_log_of_a_replica_is_known_by_its_name():
    from deploy.access.access_log import Access, as_text

    access = Access(0.0, "id", None, "m", "failed", 200, "auto", None, None, None, 1.0)
    assert places.FAILED.findall(as_text(access)) == [as_text(access)]
    assert places.FAILED.findall(as_text(access._replace(outcome="ok", model="outcome=failed"))) == []
