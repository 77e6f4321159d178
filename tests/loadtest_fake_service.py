"""A stand-in for the service that the load test talks to: the real protocol, an engine that only sleeps.

Runs as a process of its own (``python tests/loadtest_fake_service.py``), prints the service's ready line and obeys
NESTEDFP_ADMIN_KEY. One engine step takes ``--step-ms-fp16`` or ``--step-ms-fp8`` milliseconds and gives one token to
each of at most ``--max-running`` requests. With the directive "auto" a step runs FP8 while requests wait. Prompts of
certain lengths get a fault: see FAULTS. GET /received tells the number of completions asked for.

``--admission`` refuses requests beyond so many with 429. ``--plain`` has no controller: /status and /admin answer as those of a
plain engine do. ``--keyed`` wants the key everywhere.
"""

import argparse
import asyncio
import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "fake-model"
FAULTS = {
    101: "fail",  # HTTP 500
    102: "cut",  # the connection is closed after two tokens
    103: "short",  # one token is missing
    104: "mute",  # no answer
}


@dataclass(eq=False)
class Request:
    prompt_tokens: int
    max_tokens: int
    chunks: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    prompt_mode: str = ""
    tokens: dict[str, int] = field(default_factory=lambda: {"fp16": 0, "fp8": 0})


class Engine:
    def __init__(self, step_s: dict[str, float], max_running: int, admission: int | None) -> None:
        self.step_s, self.max_running = step_s, max_running
        self.admission, self.open = admission, 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.directive, self.mode, self.epoch, self.switches, self.received = "auto", "fp16", 0, 0, 0
        self.sessions: set[str] = set()  # whose prompts are in the cache
        self.tokens = {"fp16": 0, "fp8": 0}

    async def run(self) -> None:
        while True:
            while self.waiting and len(self.running) < self.max_running:
                self.running.append(self.waiting.popleft())
            if not self.running:
                await asyncio.sleep(0.002)
                continue
            mode = self.directive if self.directive != "auto" else "fp8" if self.waiting else "fp16"
            self.switches += mode != self.mode
            self.mode = mode
            await asyncio.sleep(self.step_s[mode])
            for request in list(self.running):
                if not request.prompt_mode:
                    request.prompt_mode = mode
                    self.tokens[mode] += request.prompt_tokens
                request.tokens[mode] += 1
                self.tokens[mode] += 1
                request.chunks.put_nowait(mode)
                if sum(request.tokens.values()) == request.max_tokens:
                    self.running.remove(request)

    def drop(self, request: Request) -> None:
        for queue in (self.waiting, self.running):
            with suppress(ValueError):
                queue.remove(request)


async def completions(http: web.Request) -> web.StreamResponse:
    engine: Engine = http.app["engine"]
    body = await http.json()
    engine.received += 1
    fault = FAULTS.get(len(body["prompt"]), "")
    assert (body["stream"], body["ignore_eos"], body["temperature"]) == (True, True, 0)
    if fault == "fail":
        return web.json_response({"error": {"message": "made to fail"}}, status=500)
    if fault == "mute":
        await asyncio.sleep(3600)
    if engine.admission is not None and engine.open >= engine.admission:
        return web.json_response({"error": {"message": "too many"}}, status=429, headers={"Retry-After": "1"})
    engine.open += 1
    try:
        return await answer_stream(http, engine, body, fault)
    finally:
        engine.open -= 1


async def answer_stream(http: web.Request, engine: Engine, body: dict[str, Any], fault: str) -> web.StreamResponse:
    request = Request(len(body["prompt"]), body["max_tokens"] - (fault == "short"))
    engine.waiting.append(request)
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(http)
    try:
        for count in range(request.max_tokens):
            await request.chunks.get()
            if fault == "cut" and count == 2:
                assert http.transport is not None
                http.transport.abort()
                return answer
            await _event(answer, {"model": MODEL, "choices": [{"text": "x"}]})
        session = http.headers.get("x-nestedfp-session")
        prompt = {"fp16": 0, "fp8": 0, "cached": {}}
        where = prompt["cached"] if session in engine.sessions else prompt
        where[request.prompt_mode] = request.prompt_tokens
        engine.sessions |= {session} - {None}
        usage = {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": sum(request.tokens.values()),
            "precision_tokens": {"prompt": prompt, "completion": request.tokens},
        }
        await _event(answer, {"model": MODEL, "choices": [], "usage": usage})
        await answer.write(b"data: [DONE]\n\n")
    finally:
        engine.drop(request)
    return answer


async def _event(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def status(http: web.Request) -> web.Response:
    engine: Engine = http.app["engine"]
    replica = {
        "id": "r0", "mode": engine.mode, "epoch": engine.epoch, "running": len(engine.running),
        "waiting": len(engine.waiting), "tokens_fp16": engine.tokens["fp16"], "tokens_fp8": engine.tokens["fp8"],
        "switches": engine.switches, "kv_usage": 0.1,
    }  # fmt: skip
    report = {"mode": engine.directive, "epoch": engine.epoch, "reason": "x", "replicas": [replica]}
    report |= {"slo_ttft_ms": 300.0, "slo_tpot_ms": 40.0}
    return web.json_response(report | {"path_saturated": False})


async def no_controller(_: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "the controller does not answer"}}, status=503)


async def directive(http: web.Request) -> web.Response:
    engine: Engine = http.app["engine"]
    if http.headers.get("Authorization") != f"Bearer {os.environ.get('NESTEDFP_ADMIN_KEY')}":
        return web.json_response({"detail": "wrong key"}, status=401)
    engine.directive = (await http.json())["mode"]
    engine.epoch += 1
    return web.json_response({"epoch": engine.epoch, "mode": engine.directive})


@web.middleware
async def keyed(http: web.Request, handler: Any) -> web.StreamResponse:
    if http.headers.get("Authorization") != f"Bearer {os.environ.get('NESTEDFP_ADMIN_KEY')}":
        return web.json_response({"error": {"message": "missing or wrong key"}}, status=401)
    response: web.StreamResponse = await handler(http)
    return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": MODEL, "max_model_len": 256}]})


async def received(http: web.Request) -> web.Response:
    return web.json_response(http.app["engine"].received)


async def serve(arguments: argparse.Namespace) -> None:
    step_s = {"fp16": arguments.step_ms_fp16 / 1e3, "fp8": arguments.step_ms_fp8 / 1e3}
    engine = Engine(step_s, arguments.max_running, arguments.admission)
    app = web.Application(middlewares=[keyed] if arguments.keyed else [])
    app["engine"] = engine
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.get("/v1/models", models),
            web.get("/status", no_controller if arguments.plain else status),
            web.post("/admin/directive", no_controller if arguments.plain else directive),
            web.get("/received", received),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]
    print(f"ready http://127.0.0.1:{port} after 0 s", flush=True)
    await engine.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms-fp16", type=float, default=20.0)
    parser.add_argument("--step-ms-fp8", type=float, default=10.0)
    parser.add_argument("--max-running", type=int, default=4)
    parser.add_argument("--admission", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--keyed", action="store_true")
    asyncio.run(serve(parser.parse_args()))
