"""What a plain ``vllm serve --quantization nestedfp`` has beside vLLM's own routes.

    GET  /nestedfp/stats       the engine's counters
    POST /nestedfp/directive   {"mode": "fp16" or "fp8"}, or {"mode": "auto", "slo": {"ttft_ms": 500, "tpot_ms": 50}}; with
                               ``Authorization: Bearer KEY``, the key in the file that NESTEDFP_ADMIN_KEY_FILE names
    GET  /metrics              vLLM's page, with the engine's families (engine_families.py)

Every answer says its precision (middleware.py).
"""

import asyncio
import contextlib
import itertools
import os
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from nestedfp import admin_key
from nestedfp.answers import Answer
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from nestedfp.vllm_plugin.options import PluginOptions, rounds_kv, slo_rule
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision
from nestedfp.vllm_plugin.serving.engine_families import EngineCollector
from nestedfp.vllm_plugin.serving.middleware import PrecisionMiddleware

STATS_S = 1.0  # that a page of metrics waits for an engine that is in a step
HEADER_OF = {DirectiveMode.FP16: "exact", DirectiveMode.FP8: "fast", DirectiveMode.AUTO: "auto"}
_COLLECTOR = EngineCollector()  # of this process: prometheus_client's registry is one, too


class Endpoints:
    """vLLM's ``EndpointPlugin``."""

    name = "nestedfp"
    required_tasks = ("generate", "embed", "classify", "token_embed", "token_classify")  # one of them

    def __init__(self) -> None:
        self._client: Any = None
        self._epochs = itertools.count(1)
        self._directive = DirectiveMode.FP16
        self._forces_usage = self._rounds_kv = self._has_siblings = False

    def attach_router(self, app: Any) -> None:
        """Add the routes and the disclosure to vLLM's application."""
        app.add_middleware(PrecisionMiddleware, decided=self.decided, forces_usage=lambda: self._forces_usage)
        app.add_middleware(_Metrics, refresh=self._refresh)
        app.add_api_route("/nestedfp/stats", self.stats, methods=["GET"])
        app.add_route("/nestedfp/directive", self.directive, methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Take the way to the engine."""
        self._client = engine_client
        self._forces_usage = bool(getattr(args, "enable_force_include_usage", False))
        self._has_siblings = (getattr(args, "api_server_count", None) or 1) > 1
        if engine_client is not None:
            self._directive = PluginOptions.of(engine_client.vllm_config).directive()[0]
            self._rounds_kv = rounds_kv(engine_client.vllm_config)

    def decided(self, asked: AskedPrecision | None) -> str:
        """Return what the header of an answer says: what was asked for, else the directive of now.

        Beside other API servers that is ``auto``: one of them may have been given a newer directive.
        """
        directive = DirectiveMode.AUTO if self._has_siblings else self._directive
        said = HEADER_OF[directive] if asked in (None, AskedPrecision.AUTO) else asked.value
        return Answer.WEIGHTS_EXACT.value if said == Answer.EXACT and self._rounds_kv else said

    async def _refresh(self) -> None:
        try:
            _COLLECTOR.stats = await asyncio.wait_for(self.stats(), STATS_S)
        except Exception:  # a dead engine, or one in a long step: vLLM's own families stay readable
            _COLLECTOR.stats = {}

    async def stats(self) -> dict[str, Any]:
        """Return the engine's counters; see ``PrecisionMixin.nestedfp_stats``."""
        result: dict[str, Any] = await self._call("nestedfp_stats")
        return result

    async def _call(self, utility: str, *args: Any) -> Any:
        return await self._client.engine_core.call_utility_async(utility, *args)

    async def directive(self, request: Any) -> Any:
        """Put a directive in force from the next step on."""
        from starlette.responses import JSONResponse

        if (refused := admin_key.refusal(request.headers.get("authorization"))) is not None:
            return JSONResponse({"error": {"message": refused[1], "code": refused[0]}}, refused[0])
        try:
            mode, rule = _order(await request.json())
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error), "code": 400}}, 400)
        content = {"mode": mode.value, "epoch": next(self._epochs), "rule": asdict(rule)}
        await self._call("nestedfp_set_directive", content)
        self._directive = mode
        return JSONResponse({"mode": mode.value})


def _order(body: Any) -> tuple[DirectiveMode, StepRule]:
    """Read the body of a directive; ``auto`` keeps the usual SLO where it names none.

    Raises:
        ValueError: saying what was expected.
    """
    modes = list(DirectiveMode)
    if not isinstance(body, dict) or body.get("mode") not in modes or body.keys() - {"mode", "slo"}:
        raise ValueError(f'expected {{"mode": one of {[mode.value for mode in modes]}}}, and with "auto" an "slo"')
    mode = DirectiveMode(body["mode"])
    if mode is DirectiveMode.AUTO:
        return mode, slo_rule(body.get("slo", {}))
    if "slo" in body:
        raise ValueError(f'expected an "slo" with "auto" only: {mode.value!r} is every step\'s precision')
    return mode, StepRule()


class _Metrics:
    """ASGI middleware that asks the engine before a page of metrics is made, and adds what it says.

    With several API servers vLLM's page comes from files that all of them write, by a registry of its own.
    """

    def __init__(self, app: Any, refresh: Any) -> None:
        from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app, multiprocess

        registry = REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            multiprocess.MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
        with contextlib.suppress(KeyError):
            registry.unregister(_COLLECTOR)
        registry.register(_COLLECTOR)
        self._app, self._refresh = app, refresh
        self._page = app if registry is REGISTRY else make_asgi_app(registry=registry)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != "/metrics":
            await self._app(scope, receive, send)
            return
        await self._refresh()
        await self._page(scope, receive, send)
