"""The service's control and status endpoints, as the load test uses them. Blocking httpx.

POST /admin/directive {"mode": "fp16" | "fp8" | "auto"} with the key as bearer token; "auto" hands the precision
back to the controller's policy. GET /status answers with ``records.ServiceStatus``. GET /v1/models names the model. Any other
OpenAI server has the last one only.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, Self

import httpx
from pydantic import ValidationError

from loadtest.errors import ServiceError
from loadtest.service.target import target_url
from workload.records import ServiceStatus

DirectiveName = Literal["fp16", "fp8", "auto"]
REPLY_LIMIT_S = 10.0
POLL_S = 0.5


class ServiceClient:
    """A running service, which gets the key with every request. Every failure is a ServiceError that names the endpoint.

    The URL may name no other machine than this, but for ``allow_host``.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        transport: httpx.BaseTransport | None = None,
        allow_host: str | None = None,
    ) -> None:
        self.url = target_url(url, allow_host)
        self.key = key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.Client(
            base_url=self.url, headers=headers, timeout=REPLY_LIMIT_S, transport=transport, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def status(self) -> ServiceStatus:
        """What every replica is doing."""
        answer = self._json("GET", "/status")
        try:
            return ServiceStatus.model_validate(answer)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise ServiceError(f"GET /status: {where}: {problem['msg']} (got {str(answer)[:200]})") from error

    def slo(self) -> dict[str, float]:
        """What the controller steers by, as in the section ``slo`` of its configuration; empty where the server does not tell."""
        try:
            status = self.status()
        except ServiceError:
            return {}
        told = {"ttft_ms": status.slo_ttft_ms, "tpot_ms": status.slo_tpot_ms}
        return {name: value for name, value in told.items() if value is not None}

    def model(self) -> tuple[str, int | None]:
        """Name of the first model that is listed and, where the service tells it, its context in tokens.

        Raises:
            ServiceError: it does not answer, or not with a list of models.
        """
        answer = self._json("GET", "/v1/models")
        try:
            first = answer["data"][0]
            name, context = str(first["id"]), first.get("max_model_len")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServiceError(
                f'GET /v1/models: expected {{"data": [{{"id": ...}}]}}, got {str(answer)[:200]}'
            ) from error
        return name, context if isinstance(context, int) and context > 1 else None

    def direct(self, mode: DirectiveName, limit_s: float, progress: Callable[[str], None]) -> ServiceStatus:
        """Give a directive and wait until it is in force everywhere and no request waits or runs."""
        answer = self._json("POST", "/admin/directive", body={"mode": mode})
        epoch = answer.get("epoch") if isinstance(answer, dict) else None
        least_epoch = epoch if isinstance(epoch, int) else 0
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                status = self.status()
                missing = _not_settled(status, mode, least_epoch)
            except ServiceError as error:  # the controller may be restarting
                missing = str(error)
            if missing is None:
                return status
            if time.monotonic() > deadline_s:
                raise ServiceError(f"directive {mode} not settled within {limit_s:g} s: {missing}")
            progress(f"waiting for {mode}: {missing}")
            time.sleep(POLL_S)

    def hand_back(self) -> None:
        """Let the controller's policy choose the precision again."""
        self._json("POST", "/admin/directive", body={"mode": "auto"})

    def reload(self) -> None:
        """Have the controller read its configuration anew."""
        self._json("POST", "/admin/reload", body={})

    def _json(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        where = f"{method} {self.url}{path}"
        try:
            reply = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ServiceError(
                f"{where}: no answer ({type(error).__name__}: {error}); is the service running?"
            ) from error
        if reply.status_code in (401, 403):
            raise ServiceError(
                f"{where}: HTTP {reply.status_code}: the service does not accept the key; where it has a file of keys, "
                "it must be one of them, with the role admin"
            )
        if reply.status_code in (404, 405, 503) and path.startswith(("/status", "/admin/")):
            raise ServiceError(
                f"{where}: expected HTTP 200, got {reply.status_code}: {reply.text[:200]}; a server without a controller "
                "takes no directives: give --policies plain"
            )
        if not reply.is_success:
            raise ServiceError(f"{where}: expected HTTP 200, got {reply.status_code}: {reply.text[:200]}")
        try:
            return reply.json()
        except ValueError as error:
            raise ServiceError(f"{where}: expected JSON, got {reply.text[:200]!r}") from error


def _not_settled(status: ServiceStatus, mode: DirectiveName, least_epoch: int) -> str | None:
    """What is still missing, or None."""
    if not status.replicas:
        return "no replica reports"
    if status.epoch < least_epoch:
        return f"epoch {status.epoch} in force, {least_epoch} expected"
    if mode != "auto" and status.mode != mode:
        return f"mode {status.mode} in force"
    behind = [replica.id for replica in status.replicas if replica.epoch < status.epoch]
    if mode != "auto" and behind:
        return f"replicas not yet at epoch {status.epoch}: {', '.join(behind)}"
    if status.waiting or status.running:
        return f"{status.waiting} requests waiting, {status.running} running"
    return None
