"""Two services in one cluster, each an application with its control routes: where they are mounted, and who leads to whom."""

from haproxy_calls import ask, up
from haproxy_run import ok, running

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
