"""The control routes: which orders they refuse, and their way to the controller, also when Ray's head does not answer."""

import asyncio
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
import ray
from fastapi import HTTPException

from deploy.haproxy import launcher
from nestedfp import admin_key

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray Serve's import

KEY = "a-key"


@pytest.fixture(scope="module")
def control_app():
    """The application as Serve deploys it: once, for every time adds its routes again."""
    from ray import serve

    from deploy.control import control_app

    serve.ingress(control_app.routes)(control_app.Control)  # gives the routes' methods their ``self``
    with pytest.MonkeyPatch.context() as node:
        node.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
        node.setenv(launcher.SETTINGS_ENV, "{}")
        yield control_app


def test_a_node_without_the_environment_refuses_the_routes(control_app, monkeypatch):
    monkeypatch.delenv(launcher.SETTINGS_ENV)
    with pytest.raises(RuntimeError, match="start every Ray node in the environment"):
        control_app.Control("a")


@pytest.fixture
def order(tmp_path, monkeypatch, control_app):
    """Sends a body to ``POST /admin/directive`` as Serve's replica takes it, with the key; there is no controller."""
    from ray import serve

    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.setenv(admin_key.KEY_FILE_ENV, str(tmp_path / "key"))
    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: [])
    context = SimpleNamespace(servable_object=control_app.Control("a"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)

    def post(body, scheme="Bearer "):
        async def sent():
            transport = httpx.ASGITransport(app=control_app.routes)
            async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
                headers = {
                    "Authorization": f"{scheme}{KEY}",
                    "Content-Type": "application/json",
                    "X-Request-Id": "mine",
                }
                return await client.post("/admin/directive", content=body, headers=headers)

        return asyncio.run(sent())

    return post


@pytest.mark.parametrize(
    ("ttl_s", "told"),
    [
        ("1e308", "less than or equal to 604800"),
        ("604801", "less than or equal to 604800"),
        ("1e999", "finite number"),
        ("Infinity", "finite number"),
        ("NaN", "finite number"),
        ("-1", "greater than 0"),
        ("-1e308", "greater than 0"),
        ("0", "greater than 0"),
        ('"soon"', "valid number"),
    ],
)
def test_an_order_for_a_time_that_is_none_is_refused_with_one_sentence(order, ttl_s, told):
    answer = order(f'{{"mode": "fp8", "ttl_s": {ttl_s}}}')
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert told in error["message"]
    assert (error["param"], error["code"], error["message"].count("\n")) == ("body.ttl_s", 400, 0)
    assert error["request_id"] == "mine"


def test_of_two_applications_in_one_cluster_each_has_its_own_controller(monkeypatch):
    from ray.serve._private.common import DeploymentID
    from ray.serve._private.utils import get_deployment_actor_name

    from deploy.control import controller_lookup

    def named(application, actor=controller_lookup.CONTROLLER_ACTOR):
        return get_deployment_actor_name(DeploymentID("NestedFPServer", application), actor, "v1")

    names = [
        named("one"),
        named("two"),
        named("one-more"),
        named("one", "another_actor"),
        "one",
        "SERVE_REPLICA::one::x",
    ]
    monkeypatch.setattr(
        controller_lookup.ray.util,
        "list_named_actors",
        lambda all_namespaces: [{"name": name, "namespace": "serve"} for name in names],
    )
    monkeypatch.setattr(controller_lookup.ray, "get_actor", lambda name, namespace: (name, namespace))
    assert controller_lookup.find("one") == [(named("one"), "serve")]
    assert controller_lookup.find("two") == [(named("two"), "serve")]
    assert controller_lookup.find("on") == controller_lookup.find("three") == []
    assert controller_lookup.find("one", besides=named("one")) == []


class Controller:
    """Answers in the place of an actor: what Ray would raise, or the name."""

    def __init__(self, name, error=None):
        self.name, self.error, self.told = name, error, []

    def options(self, name):
        return self

    @property
    def set_override(self):
        return self

    async def remote(self, *order):
        self.told.append(order)
        if self.error is not None:
            raise self.error
        return {"from": self.name}


DIED, UNKNOWN = ray.exceptions.ActorDiedError(), ray.exceptions.RayTaskError("set_override", "", ValueError("unknown"))


@pytest.mark.parametrize(
    ("errors", "answer"),
    [
        ((None, None), {"from": "0"}),
        ((DIED, None), {"from": "1"}),
        ((None, UNKNOWN), 400),  # what half of the replicas were not told is no success
        ((DIED, DIED), 503),
        ((), 503),
    ],
)
def test_an_order_goes_to_the_controllers_on_both_sides_of_an_update(order, monkeypatch, errors, answer):
    from deploy.control import controller_lookup

    both = [Controller(str(number), error) for number, error in enumerate(errors)]
    monkeypatch.setattr(controller_lookup, "find", lambda application: both)
    reply = order('{"mode": "fp16"}')
    assert (reply.json() if reply.status_code == 200 else reply.status_code) == answer
    assert [one.told for one in both] == [[("fp16", None)]] * len(both)


def test_the_control_routes_answer_although_rays_head_hangs(monkeypatch):
    from deploy.control import control_app

    released = threading.Event()

    def hanging(all_namespaces):
        released.wait(30)
        return []

    monkeypatch.setattr(ray.util, "list_named_actors", hanging)
    monkeypatch.setattr(control_app, "LOOKUP_TIMEOUT_S", 0.2)

    async def asked():
        """The route's error, and how long the loop stood still meanwhile."""
        asking = asyncio.create_task(control_app.Control("a").status())
        longest_s, before_s = 0.0, time.monotonic()
        while not asking.done():
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        released.set()
        with pytest.raises(HTTPException) as caught:
            await asking
        return caught.value, longest_s

    error, longest_s = asyncio.run(asked())
    assert (error.status_code, error.headers) == (503, {"Retry-After": "2"})
    assert longest_s < 10, "other routes wait for this one"


def test_a_controller_starts_without_the_last_order_where_ray_cannot_say_who_else_there_is(monkeypatch, caplog):
    from deploy.control import controller_lookup

    def failing(all_namespaces):
        raise ray.exceptions.RaySystemError("the head is away")

    monkeypatch.setattr(ray.util, "list_named_actors", failing)
    assert controller_lookup.standing_override("one", besides=None) is None
    assert "the head is away" in caplog.text
