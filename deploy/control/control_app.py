"""The control routes: the controller's status and the operator's orders, as a Serve application of their own.

It needs no engine, so that it answers while replicas start, and when none is left. HAProxy hands it ``/status``, ``/decisions``
and ``/admin/*`` of the root as well (deploy/haproxy/haproxy_config.py).
"""

import asyncio
import contextlib
import logging
import os
from typing import Annotated, Any

import ray
from fastapi import FastAPI, Header, HTTPException, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from starlette.exceptions import HTTPException as StarletteHTTPException

from deploy.access.keys import Keys, Role, Unauthorized, path_of
from deploy.config import REPOSITORY
from deploy.control import controller_lookup
from deploy.control_room import page
from deploy.control_room.feed import Feed
from deploy.front.checks.requests import check_kind
from deploy.front.replies import Refused, request_id_of
from deploy.haproxy.launcher import require_environment
from deploy.metrics.application_page import ApplicationMetrics
from deploy.metrics.openmetrics import CONTENT_TYPE
from nestedfp import admin_key
from nestedfp.modes import DirectiveMode

LOOKUP_TIMEOUT_S = 5.0  # it takes a millisecond
ACTOR_TIMEOUT_S = 5.0  # an answer takes milliseconds, that to an override a second at most
LONGEST_TTL_S = 7 * 24 * 3600.0

READ = ["GET", "HEAD"]  # the server leaves the body of an answer to HEAD out

log = logging.getLogger(__name__)
routes = FastAPI(title="NestedFP control", docs_url=None, redoc_url=None, openapi_url=None)


class OverrideRequest(BaseModel):
    """Body of ``POST /admin/directive``."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    mode: DirectiveMode  # "fp16" and "fp8" override the policy, "auto" hands back to it
    ttl_s: Annotated[float, Field(gt=0, le=LONGEST_TTL_S)] | None = None  # ends by itself; None: until the next one


class Control:
    """The control plane's routes.

    Args:
        application: name of the Serve application whose controller is asked.
        keys_file: who may ask (deploy/access/keys.py); None: everybody, unless the environment names a file.
    """

    def __init__(self, application: str, keys_file: str | None = None) -> None:
        require_environment()
        self._application = application
        self._keys = Keys(path_of(keys_file))
        self._metrics = ApplicationMetrics(application, self._ask)
        self._feed = Feed(self._ask)

    async def check_health(self) -> None:
        """Have the control room's timelines begin with the application; called by Serve."""
        self._feed.start()

    @routes.api_route("/", methods=READ)
    async def control_room(self) -> HTMLResponse:
        """The control room's page. It holds no data, so it needs no key; what it asks for does."""
        return HTMLResponse(page.HTML, headers=page.HEADERS)

    @routes.api_route("/data", methods=READ)
    async def data(
        self,
        since: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
        authorization: Annotated[str | None, Header()] = None,
    ) -> JSONResponse:
        """What the control room shows that has come since, for whoever may read ``/status``."""
        self._require_role(authorization)
        self._feed.start()
        return JSONResponse(self._feed.since(since), headers=page.PRIVATE)

    @routes.api_route("/metrics", methods=READ)
    async def metrics(self) -> Response:
        """Metrics of the controller and of every replica, in OpenMetrics."""
        return Response(await self._metrics.text(), media_type=CONTENT_TYPE)

    @routes.api_route("/status", methods=READ)
    async def status(self, authorization: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        """Mode, epoch and reason in force, and the state of every replica."""
        self._require_role(authorization)
        return await self._ask("status")

    @routes.api_route("/decisions", methods=READ)
    async def decisions(
        self,
        since: Annotated[int, Query(ge=0, lt=2**63)] = 0,
        authorization: Annotated[str | None, Header()] = None,
    ) -> list[dict[str, Any]]:
        """The controller's decisions with an id above ``since``, oldest first."""
        self._require_role(authorization)
        return await self._ask("decisions", since)

    @routes.post("/admin/directive")
    async def set_directive(
        self, body: OverrideRequest, authorization: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Override the policy, or hand back to it. Needs ``Authorization: Bearer <admin key>``."""
        self._require_admin(authorization)
        return await self._tell("set_override", body.mode.value, body.ttl_s)

    @routes.post("/admin/reload")
    async def reload(self, authorization: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        """Take the controller's section of the configuration file up again. Needs the admin key."""
        self._require_admin(authorization)
        return await self._tell("reload")

    def _require_role(self, authorization: str | None) -> None:
        """Let everybody in where no keys are configured, else as ``_require_admin``."""
        if self._keys.configured:
            self._require_admin(authorization)

    def _require_admin(self, authorization: str | None) -> None:
        """Let holders of the admin key in, and of a key with the role admin.

        Raises:
            HTTPException: 403 when the service has no admin key, 401 when the request's is missing or wrong.
        """
        try:
            if self._keys.holder(authorization, Role.ADMIN) is not None:
                return
        except Unauthorized:
            pass  # it may be the admin key, which is in no file of keys
        except Refused as refusal:
            raise HTTPException(refusal.status, str(refusal)) from None
        if (refused := admin_key.refusal(authorization)) is not None:
            headers = {"WWW-Authenticate": "Bearer"} if refused[0] == status.HTTP_401_UNAUTHORIZED else None
            raise HTTPException(*refused, headers)

    async def _controllers(self) -> list[Any]:
        # Looked up for every call: Serve replaces a crashed controller by a new actor of the same name. On a thread, because
        # Ray's head may hang, and these routes must say so.
        try:
            return await asyncio.wait_for(
                asyncio.to_thread(controller_lookup.find, self._application), LOOKUP_TIMEOUT_S
            )
        except TimeoutError:
            log.warning("Ray's head has not told within %g s where the controller is", LOOKUP_TIMEOUT_S)
            return []

    async def _ask(self, method: str, *args: Any) -> Any:
        """What the first controller answers that does."""
        for actor in await self._controllers():
            with contextlib.suppress(_NoAnswer):
                return await _call(actor, method, *args)
        raise _nobody()

    async def _tell(self, method: str, *args: Any) -> Any:
        """Give an order to every controller: while an update runs, the old replicas have one of their own.

        Returns what the first answers. The first refusal is raised, whatever the others did, and 503 where nobody answers.
        """
        calls = [_call(actor, method, *args) for actor in await self._controllers()]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, _NoAnswer)]
        answers = [end for end in ends if not isinstance(end, BaseException)]
        if errors:
            raise errors[0]
        if not answers:
            raise _nobody()
        return answers[0]


class _NoAnswer(Exception):
    """A controller is gone or hangs."""


async def _call(actor: Any, method: str, *args: Any) -> Any:
    try:
        return await asyncio.wait_for(getattr(actor, method).options(name=method).remote(*args), ACTOR_TIMEOUT_S)
    except (ray.exceptions.RayActorError, TimeoutError):
        raise _NoAnswer from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise HTTPException(status.HTTP_400_BAD_REQUEST, str(error.cause)) from None
        log.exception("the controller failed on %s", method)
        raise HTTPException(
            status.HTTP_500_INTERNAL_SERVER_ERROR, f"the controller failed on {method}; its log says why"
        ) from None


def _nobody() -> HTTPException:
    return HTTPException(
        status.HTTP_503_SERVICE_UNAVAILABLE,
        "the controller does not answer: it starts or restarts, or the service runs a plain engine that has none; "
        "replicas go on under the override or the policy; try again",
        headers={"Retry-After": "2"},
    )


@routes.exception_handler(RequestValidationError)
async def explain_invalid(request: Request, error: RequestValidationError) -> Response:
    """Answer a request that does not validate with 400 and the reason, in OpenAI's format."""
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"])
    try:
        if first["loc"][0] == "body":
            check_kind(dict(request.scope["headers"]))
    except Refused as refusal:
        return _error(request, refusal)
    return _error(request, Refused(status.HTTP_400_BAD_REQUEST, f"{first['msg']}, at {param}", param=param))


@routes.exception_handler(StarletteHTTPException)
async def explain_refused(request: Request, error: StarletteHTTPException) -> Response:
    """Answer a refusal in OpenAI's format."""
    answer = _error(request, Refused(error.status_code, str(error.detail)))
    answer.headers.update(error.headers or {})
    return answer


def _error(request: Request, refusal: Refused) -> Response:
    return Response(refusal.body(request_id_of(request.scope)), refusal.status, media_type="application/json")


def control_application(application: str, keys_file: str | None = None) -> Any:
    """Return the Serve application of the control routes of another Serve application."""
    # Bound here and not where the class stands: Serve takes the routes with the handlers that they have by then.
    deployment = serve.deployment(
        serve.ingress(routes)(Control),
        name="Control",
        num_replicas=1,
        max_ongoing_requests=1000,
        health_check_period_s=2,
        health_check_timeout_s=5,  # Serve asks three times; its check takes a millisecond
        graceful_shutdown_timeout_s=5,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": {"PYTHONPATH": python_path()}}},
        logging_config={"enable_access_log": False},
    )
    return deployment.bind(application, keys_file)


def python_path() -> str:
    """Return the ``PYTHONPATH`` of the service's processes."""
    return os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
