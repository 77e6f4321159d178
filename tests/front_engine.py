"""A replica's HTTP front over vLLM's own serving objects and an engine with the shipped model; no socket, no Ray."""

import argparse
import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, NamedTuple

import vllm_parts  # first: it silences third-party warnings
from front_calls import asking
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.v1.engine.async_llm import AsyncLLM

from deploy.access.admission import Admission
from deploy.access.peers import PeerView
from deploy.front import streams
from deploy.front.app import Front
from deploy.front.checks import grammars
from deploy.front.context import PathMeter
from deploy.front.generate import Generate
from deploy.front.handover import stand_before_engine, take_over
from deploy.front.routes import text

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
LENGTH = 256  # tokens of the context
GRAMMAR_CPU_S = 1.0
PATIENCE_S = 400.0  # a start on a busy machine


class Heard(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events that are JSON."""
        lines = [line for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines if not line.endswith("[DONE]")]


class State:
    """Stands where Starlette's state of an application stands."""


class FrontEngine:
    """The front; ``ask`` asks it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.client: Any = None
        self.meter = PathMeter()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns in the front's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    async def start(self, **arguments: Any) -> None:
        """Start the engine, and build the front before it."""
        arguments = {
            **{"model": str(vllm_parts.MODEL), "served_model_name": ["m"], "quantization": "nestedfp"},
            **{"dtype": "float16", "max_model_len": LENGTH, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16},
            **{"enforce_eager": True},
            **arguments,
        }
        front = {name: arguments.pop(name) for name in list(arguments) if name in FrontendArgs.__dataclass_fields__}
        engine = AsyncEngineArgs(**arguments)
        config = engine.create_engine_config()
        config.parallel_config.distributed_executor_backend = "uni"  # in the engine core, as a replica has it
        self.client = AsyncLLM.from_vllm_config(config)
        state: Any = State()
        options = argparse.Namespace(**(vars(FrontendArgs(**front)) | vars(engine)))
        await init_app_state(self.client, state, options, await self.client.get_supported_tasks())
        self.grammars = grammars.of_client(self.client, GRAMMAR_CPU_S)
        self.grammars.start()
        grammars.CHILD_S = PATIENCE_S
        routes = text.routes(state)
        stand_before_engine((route.serving for route in routes.values()), self.grammars)
        take_over(state.openai_serving_completion, state.openai_serving_chat)
        streams.install()
        generate = Generate(
            routes,
            self.client,
            Admission(None, 16, longest=LENGTH),
            self.meter,
            PeerView(),
            1 << 20,
            taps=streams.taps_of(self.client, self.meter.delivered),
        )
        self.front = Front(None, generate)

    async def stop(self) -> None:
        """End the engine and all that was started for it."""
        self.grammars.close()
        context = self.client.engine_core.ctx
        self.client.shutdown()
        context._shadow_obj.destroy(0)  # vLLM leaves it open, which is an error when the process ends

    def direct(self, mode: str) -> None:
        """Put the engine into a precision."""
        directive = {"mode": mode, "epoch": 1}
        self.run(self.client.engine_core.call_utility_async("nestedfp_set_directive", directive))

    def ask(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Heard:
        """Ask a route of ``/v1``."""
        return Heard(*self.run(asking(self.front, f"/v1/{path}", body=body, headers=headers)))

    def complete(self, prompt: Any = "Once upon a time", **fields: Any) -> Heard:
        """Ask for a completion."""
        return self.ask("completions", {"model": "m", "prompt": prompt, "temperature": 0, **fields})

    def chat(self, content: Any = "Once upon a time", **fields: Any) -> Heard:
        """Ask for an answer to a message."""
        messages = [{"role": "user", "content": content}]
        return self.ask("chat/completions", {"model": "m", "messages": messages, "temperature": 0, **fields})


@contextlib.contextmanager
def running(**arguments: Any) -> Iterator[FrontEngine]:
    """A front and its engine, of these arguments of vLLM's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = FrontEngine(loop)
    try:
        engine.run(engine.start(**arguments))
        yield engine
    finally:
        if engine.client is not None:
            engine.run(engine.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
