"""Two services in one cluster, each an application with its control routes: where they are mounted, and who leads to whom."""

import subprocess
import sys

import pytest
from haproxy_calls import ask, up
from haproxy_run import ok, running
from processes import ROOT

from deploy.config import ConfigError
from deploy.startup.attach import require_place, require_words

ROUTES = ("/status", "/decisions?since=3", "/metrics", "/admin/directive", "/control", "/control/data")


def test_each_applications_control_routes_lead_to_its_own_control_application(folder, replicas):
    places = {"first": "/", "first-control": "/control", "second": "/a/second", "second-control": "/a/second/control"}
    made = {name: replicas(ok(name)) for name in places}
    with running(folder, {name: (places[name], [made[name].port]) for name in places}) as (_, port):
        for name, place in places.items():
            up(port, f"{place.rstrip('/')}/up")
            assert ask(port, f"{place.rstrip('/')}/up")[2] == name.encode()
        for each in made.values():
            each.seen.clear()
        for base in ("", "/a/second"):
            for route in ROUTES:
                ask(port, base + route)
        wanted = ["/control/status", "/control/decisions?since=3", "/control/metrics", "/control/admin/directive"]
        wanted += ["/control/", "/control/data"]
        assert [path for path, _ in made["first-control"].seen] == wanted
        assert [path for path, _ in made["second-control"].seen] == [f"/a/second{path}" for path in wanted]
        others = ["/a/second/v1/models", "/a/second/statusx", "/a/second/x/status", "/a/second/admin"]
        assert {ask(port, path)[2] for path in others} == {b"second"}
        assert [path for path, _ in made["second"].seen] == others
        assert {ask(port, path)[2] for path in ("/v1/models", "/a/secondary/status", "/a/status")} == {b"first"}


def test_a_place_is_refused_that_another_application_has():
    taken = {"/": "first", "/control": "first-control", "/x/control": "theirs"}
    require_place(taken, ("first", "first-control"), "/")
    require_place(taken, ("second", "second-control"), "/second")
    require_place({}, ("first", "first-control"), "/")
    with pytest.raises(
        ConfigError, match="the application 'first' is at / on this cluster already: set --application first"
    ):
        require_place(taken, ("second", "second-control"), "/")
    with pytest.raises(ConfigError, match="the application 'theirs' is at /x/control"):
        require_place(taken, ("second", "second-control"), "/x")


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("a::b", "/"),
        ("", "/"),
        ("a#b", "/"),
        ("a", "second"),
        ("a", "/second/"),
        ("a", "/a b"),
        ("a", ""),
        ("a", "//a"),
    ],
)
def test_names_that_cannot_be_told_from_the_rest_are_refused(name, prefix):
    with pytest.raises(ConfigError, match=r"--(application|route-prefix): expected .*letters, digits, - and _, got"):
        require_words(name, prefix)
    require_words("nestedfp-2", "/a_b/c-d")


def test_without_a_cluster_a_place_is_refused_in_one_line():
    command = [sys.executable, "-m", "deploy.serve", "--route-prefix", "/second"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --application and --route-prefix need --address")
    assert len(done.stderr.splitlines()) == 1
