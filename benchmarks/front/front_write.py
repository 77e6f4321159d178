"""What a streamed token costs the process that serves HTTP between the engine's output and the socket: through a task for each
stream, as vLLM has it, and tapped.

    python -m benchmarks.front.front_write

Real objects of vLLM's front end, of this service's and of uvicorn, without an engine before them and a socket behind them: 256
streams, each of which gets one token a step.
"""

import asyncio
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STREAMS = 256
STEPS = 60
ROUNDS = 7
CHUNK = 128  # VLLM_V1_OUTPUT_PROC_CHUNK_SIZE
PROMPT = list(range(300, 316))
MODEL = Path(__file__).resolve().parents[2] / "models" / "fairytales-8m"


class Transport:
    """Counts what would go to a socket."""

    writes = 0

    def write(self, data: bytes) -> None:
        """Count."""
        Transport.writes += 1


def sender() -> Any:
    """Return uvicorn's ``send`` of a connection, behind the two that Ray Serve puts before it."""
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    scope = {"method": "POST", "http_version": "1.1"}
    flow = SimpleNamespace(write_paused=False)
    cycle = RequestResponseCycle(
        scope, Transport(), flow, None, None, False, [], asyncio.Event(), False, True, lambda: None
    )  # type: ignore[arg-type]

    async def with_request_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"]]
        await cycle.send(message)

    async def of_serve(message: Any) -> None:
        await with_request_id(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            pass

    return of_serve


async def cost(tapped: bool) -> float:
    """Return microseconds of processor time a token, the median over rounds."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.tokenizers import get_tokenizer
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.metrics.stats import IterationStats

    from deploy.access.admission import Admission
    from deploy.front.generate import Generate
    from deploy.front.handover import GenerateCall, Handover
    from deploy.front.meter import PathMeter
    from deploy.front.peers import PeerView
    from deploy.front.streams import Frame
    from deploy.front.tap import Taps

    processor = OutputProcessor(get_tokenizer(str(MODEL)), log_stats=True)
    meter = PathMeter()
    taps = Taps(processor.request_states if tapped else {})
    generate = Generate({}, SimpleNamespace(errored=False), Admission(None, 1), meter, PeerView(), 1 << 20, taps=taps)

    class Client:
        async def add_request(self, request_id: str, prompt: Any, params: Any) -> Any:
            request = EngineCoreRequest(request_id, PROMPT, None, params, None, time.time(), None, None, None)
            request.external_req_id = request_id
            collector = RequestOutputCollector(params.output_kind, request_id)
            processor.add_request(request, None, None, 0, collector)
            return collector

    async def stream(request_id: str) -> None:
        params = SamplingParams(max_tokens=10_000, output_kind=RequestOutputKind.DELTA)
        call = GenerateCall(Client(), None, params, request_id, {})
        frame = Frame.make(request_id, 1, "model", chat=False, include_usage=False)
        await generate._write(Handover(call, frame), sender(), meter.arrive(time.monotonic()), [])

    names = [f"cmpl-{number:032x}" for number in range(STREAMS)]
    streams = [asyncio.create_task(stream(name)) for name in names]
    await asyncio.sleep(0)

    async def step(token: int, finish: FinishReason | None = None) -> None:
        outputs = [EngineCoreOutput(name, [token], finish_reason=finish) for name in names]
        expected = Transport.writes + len(names)
        stats = IterationStats()
        for start in range(0, len(outputs), CHUNK):
            processor.process_outputs(outputs[start : start + CHUNK], time.monotonic(), stats)
            await asyncio.sleep(0)
        while Transport.writes < expected:
            await asyncio.sleep(0)

    for token in range(400, 410):
        await step(token)
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for token in range(400, 400 + STEPS):
            await step(token)
        rounds.append((time.process_time() - began_s) / STEPS / STREAMS * 1e6)
    await step(2, FinishReason.STOP)
    await asyncio.gather(*streams)
    return statistics.median(rounds)


def main() -> None:
    """Print both."""
    import uvloop
    from vllm import envs

    from deploy.front import tap
    from deploy.metrics.bulk import lean_statistics
    from nestedfp.vllm_plugin import frontend

    frontend.install()
    tap.install()
    lean_statistics()
    envs.enable_envs_cache()  # as deploy/replica/llm_replica.py does
    for name, tapped in (("a task for each stream", False), ("tapped", True)):
        print(f"{name:22}  {uvloop.run(cost(tapped)):5.1f} us a token", flush=True)


if __name__ == "__main__":
    main()
