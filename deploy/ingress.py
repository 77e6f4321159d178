"""The HTTP front: OpenAI's routes from Ray Serve LLM, plus the controller's status and the operator's routes."""

import asyncio
import hmac
import os
from typing import Annotated, Any

import ray
from fastapi import FastAPI, Header, HTTPException, Query, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.llm._internal.serve.core.ingress.ingress import init
from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress

from deploy.admission import RETRY_AFTER_S
from deploy.config import ADMIN_KEY_ENV
from deploy.server import CONTROLLER_ACTOR
from nestedfp.modes import DirectiveMode

ACTOR_TIMEOUT_S = 5.0  # an answer takes milliseconds, that to an override a second at most


class OverrideRequest(BaseModel):
    """Body of ``POST /admin/directive``."""

    model_config = ConfigDict(extra="forbid")

    mode: DirectiveMode  # "fp16" and "fp8" override the policy, "auto" hands back to it
    ttl_s: Annotated[float, Field(gt=0)] | None = None  # the override ends by itself; None: until the next one
    replica_id: str | None = None  # for this replica alone; None: for all


class NestedFPIngress(OpenAiIngress):  # type: ignore[misc]
    """OpenAI's routes and the control plane's."""

    async def _process_llm_request(self, *args: Any, **kwargs: Any) -> Response:
        # Ray Serve LLM wraps a refusal into its own exception's text; a user needs the engine's sentence only.
        try:
            return await super()._process_llm_request(*args, **kwargs)
        except OpenAIHTTPException as refusal:
            return error_response(refusal.status_code, refusal.message, refusal.type)
        except HTTPException as refusal:
            return error_response(refusal.status_code, str(refusal.detail), "invalid_request_error")

    async def status(self) -> dict[str, Any]:
        """Mode, epoch and reason in force, and the state of every replica."""
        result: dict[str, Any] = await _ask_controller("status")
        return result

    async def decisions(self, since: Annotated[int, Query(ge=0)] = 0) -> list[dict[str, Any]]:
        """The controller's decisions with an id above ``since``, oldest first."""
        result: list[dict[str, Any]] = await _ask_controller("decisions", since)
        return result

    async def set_directive(
        self, body: OverrideRequest, authorization: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Override the policy, or hand back to it. Needs ``Authorization: Bearer <admin key>``."""
        require_admin(authorization)
        result: dict[str, Any] = await _ask_controller("set_override", body.mode.value, body.ttl_s, body.replica_id)
        return result

    async def reload(self, authorization: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        """Take the controller's section of the configuration file up again. Needs the admin key."""
        require_admin(authorization)
        result: dict[str, Any] = await _ask_controller("reload")
        return result


def error_response(status_code: int, message: str, kind: str) -> JSONResponse:
    """Return an error in OpenAI's format."""
    error = {"message": message, "type": kind, "param": None, "code": status_code}
    overloaded = status_code == status.HTTP_503_SERVICE_UNAVAILABLE
    headers = {"Retry-After": str(RETRY_AFTER_S)} if overloaded else None
    return JSONResponse({"error": error}, status_code=status_code, headers=headers)


def require_admin(authorization: str | None) -> None:
    """Check the admin key.

    Raises:
        HTTPException: 403 when the service has no key, 401 when the request's is missing or wrong.
    """
    key = os.environ.get(ADMIN_KEY_ENV)
    if not key:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"admin routes are off: start the service with {ADMIN_KEY_ENV} set"
        )
    given = (authorization or "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise HTTPException(
            status.HTTP_401_UNAUTHORIZED,
            "missing or wrong admin key: send the header 'Authorization: Bearer <key>'",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def _ask_controller(method: str, *args: Any) -> Any:
    # Looked up for every call: Serve replaces a crashed controller by a new actor of the same name.
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["name"].startswith("SERVE_DEPLOYMENT_ACTOR") and entry["name"].endswith(CONTROLLER_ACTOR):
            try:
                actor = ray.get_actor(entry["name"], namespace=entry["namespace"])
            except ValueError:  # gone since it was listed
                continue
            try:
                return await asyncio.wait_for(
                    getattr(actor, method).options(name=method).remote(*args), ACTOR_TIMEOUT_S
                )
            except (ray.exceptions.RayActorError, TimeoutError):
                continue
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ValueError):
                    raise HTTPException(status.HTTP_400_BAD_REQUEST, str(error.cause)) from None
                raise
    raise HTTPException(
        status.HTTP_503_SERVICE_UNAVAILABLE,
        "the controller does not answer or is restarting; replicas go on under their last directive and then under the "
        "fallback; try again",
        headers={"Retry-After": "2"},
    )


ROUTES = {
    "models": lambda app: app.get("/v1/models"),
    "model_data": lambda app: app.get("/v1/models/{model:path}"),
    "completions": lambda app: app.post("/v1/completions"),
    "chat": lambda app: app.post("/v1/chat/completions"),
    "tokenize": lambda app: app.post("/tokenize"),
    "detokenize": lambda app: app.post("/detokenize"),
    "status": lambda app: app.get("/status"),
    "decisions": lambda app: app.get("/decisions"),
    "set_directive": lambda app: app.post("/admin/directive"),
    "reload": lambda app: app.post("/admin/reload"),
}


async def explain_invalid(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that does not validate with 400 and the reason, as OpenAI's clients expect it.

    Ray Serve LLM's own handler repeats the input, and answers 500 where that is no JSON.
    """
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    kind = request.headers.get("content-type", "none")
    if first["loc"] == ("body",) and "json" not in kind:
        message = f"expected a JSON body with the header 'Content-Type: application/json'; got Content-Type {kind}"
    else:
        message = f"Invalid request format: {first['msg']} at {first['loc']}"
    param = ".".join(str(part) for part in first["loc"])
    body = {"error": {"message": message, "type": first["type"], "param": param, "code": "invalid_parameter"}}
    return JSONResponse(body, status.HTTP_400_BAD_REQUEST)


def build_ingress() -> Any:
    """Return the ingress class with its routes, ready for ``serve.deployment``."""
    app: FastAPI = init()
    app.add_exception_handler(RequestValidationError, explain_invalid)
    return make_fastapi_ingress(NestedFPIngress, endpoint_map=ROUTES, app=app)
