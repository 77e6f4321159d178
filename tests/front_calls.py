"""A replica's outermost layer with an engine that does what the test says, and requests to it; no socket between them."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_parts import SamplingParams  # first: it silences third-party warnings

# isort: split
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ModelCard, ModelList
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector

from deploy.access.admission import Admission
from deploy.access.keys import Keys
from deploy.access.peers import PeerView
from deploy.front.app import Front
from deploy.front.context import PathMeter
from deploy.front.generate import Generate, Queueing
from deploy.front.handover import GenerateCall
from deploy.front.routes.text import Route
from deploy.front.streams import Frame

PATH = "/v1/completions"
LIMIT = 1000  # bytes of a body
GOOD = {"model": "m", "prompt": "x"}
ID = 'the "first"'

Do = Callable[[Any], Awaitable[Any]]
Answer = tuple[int, dict[str, str], bytes]


class Serving:
    """Stands where vLLM's serving object stands; does what the test says."""

    def __init__(self, do: Do | None) -> None:
        self._do = do

    async def create(self, request: Any, raw: Any) -> Any:
        assert self._do is not None, "a request that should have been refused came through"
        return await self._do(request)


class Peers(PeerView):
    """What the controller told: there are others."""

    def __init__(self, peers: int = 1, fault: str | None = None, late: bool = False, directed: str = "auto") -> None:
        self.replicas, self.fault, self.engine_is_late, self.directed = 1 + peers, fault, late, directed


class Models:
    """Stands where vLLM's list of models stands."""

    async def show_available_models(self) -> ModelList:
        return ModelList(
            data=[ModelCard(id=each, max_model_len=1024, created=1) for each in ("m", "an organisation/m")]
        )


class Client:
    """An engine's client; counts what it is told to abort."""

    errored = False
    aborted = 0

    async def abort(self, *args: Any, **kwargs: Any) -> None:
        Client.aborted += 1


def front(
    do: Do | None = None,
    standing: PeerView | None = None,
    admission: Admission | None = None,
    client: Any = None,
    meter: PathMeter | None = None,
    keys: Keys | None = None,
    queueing: Queueing | None = None,
) -> Front:
    """The layer itself; ``do`` takes the place of vLLM's serving object."""
    generate = Generate(
        {PATH: Route(CompletionRequest, Serving(do), "create")},
        client or Client(),
        admission or Admission(None, 8),
        meter or PathMeter(),
        standing or PeerView(),
        LIMIT,
        keys or Keys(),
        queueing or Queueing(),
    )
    return Front(SimpleNamespace(state=SimpleNamespace(openai_serving_models=Models())), generate)


def ask(
    app: Front, path: str = PATH, method: str = "POST", body: Any = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """(status, headers, body) of one request."""
    return asyncio.run(asking(app, path, method, body, headers))


async def asking(
    app: Front,
    path: str = PATH,
    method: str = "POST",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    chunks: Sequence[bytes] = (),
) -> Answer:
    """The same for a test that does something meanwhile; ``chunks``: a body in parts."""
    content = body if isinstance(body, bytes) else json.dumps(GOOD if body is None else body).encode()
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in chunks]
    waiting.append({"type": "http.request", "body": b"" if chunks else content})
    sent: list[Any] = []

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"content-type": "application/json", "x-request-id": ID, **(headers or {})}
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await app(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body"), "the answer has an end"
    return (
        sent[0]["status"],
        {name.decode(): value.decode() for name, value in sent[0]["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


def error_of(answer: Answer) -> str:
    """The message of an answer that is an error in OpenAI's format with the request's id."""
    error = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert (error["code"], error["request_id"]) == (answer[0], ID)
    message: str = error["message"]
    return message


def failing(error: BaseException) -> Do:
    """A ``do`` that fails so."""

    async def do(request: Any) -> Any:
        raise error

    return do


def output(text: str, finish: str | None = None) -> RequestOutput:
    """One token of an engine, and why it is the last one."""
    completion = CompletionOutput(0, text, [1], None, None, finish_reason=finish)
    return RequestOutput("r", None, [1], None, [completion], finish is not None)


def stream_of(*steps: RequestOutput | Exception, prompt: Any = None) -> Do:
    """A ``do`` whose stream brings the outputs, or raises the errors, one after the other."""

    async def do(request: Any) -> GenerateCall:
        collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")

        class Engine(Client):
            async def add_request(self, *args: Any, **options: Any) -> RequestOutputCollector:
                async def feed() -> None:
                    for step in steps:
                        while collector.output is not None:
                            await asyncio.sleep(0)
                        collector.put(step)

                self.feeding = asyncio.create_task(feed())
                return collector

        frame = Frame.make("id", 1, "m", chat=False, include_usage=False)
        return GenerateCall(Engine(), prompt, SamplingParams(), "r", {}, frame=frame)

    return do


def quota(folder: Path) -> tuple[Keys, Callable[[], float]]:
    """Keys of one holder, of 600 tokens a minute, and what that holder has used of them."""
    entry = {"name": "u", "tokens_per_minute": 600, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (folder / "keys.yaml").write_text(json.dumps({"keys": [entry]}))  # JSON is YAML
    keys = Keys(folder / "keys.yaml", clock=lambda: 0.0)
    return keys, lambda: keys.holder("Bearer secret")._tokens._used
