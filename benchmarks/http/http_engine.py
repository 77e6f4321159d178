"""The engine alone: vLLM's AsyncLLM in one process, under the loads that the HTTP client makes. No HTTP, no text of requests.

As a child process it prints READY, then takes one load after the other from its standard input and answers with the lines of
``stream_client.cpp`` and END.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.client.stream_client import BIN_S, ClientRun, LoadPlan, Record, parse
from benchmarks.http.http_systems import ROOT, EngineArguments, stop


class EngineProcess:
    """In the parent: an engine to give loads to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    def start(self, plan: LoadPlan) -> None:
        """Begin a load; ``finish`` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self._process.stdin.flush()

    def finish(self) -> ClientRun:
        """Wait for the load that was begun.

        Raises:
            RuntimeError: when the engine ended.
        """
        return parse("\n".join(self.lines("END")))

    def lines(self, until: str) -> Iterator[str]:
        """Yield what the child prints up to a line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == until:
                return
            yield line.rstrip("\n")
        raise RuntimeError(f"the engine alone ended with {self._process.wait(60)}; its log is above")


@contextlib.contextmanager
def start(engine: EngineArguments) -> Iterator[EngineProcess]:
    """Start the engine with nested weights and wait until it is ready."""
    arguments = engine.arguments() | {"model": str(engine.model_dir), "quantization": "nestedfp"}
    if engine.step_ms is not None:
        arguments["worker_cls"] = "benchmarks.timed.timed_worker.TimedNestedFPWorker"
    environment = {**engine.environment(), "VLLM_LOGGING_LEVEL": "WARNING"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http.http_engine", json.dumps(arguments)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        found = EngineProcess(process)
        for _ in found.lines("READY"):
            pass
        yield found
    finally:
        stop(process)  # type: ignore[arg-type]


async def stream(llm: Any, body: dict[str, Any], request_id: str) -> AsyncIterator[int]:
    """Yield the number of tokens of each output of one request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=body["max_tokens"],
        ignore_eos=body["ignore_eos"],
        temperature=body["temperature"],
        output_kind=RequestOutputKind.DELTA,
    )
    async for output in llm.generate(body["prompt"], params, request_id):
        yield len(output.outputs[0].token_ids)


async def run(llm: Any, plan: LoadPlan) -> ClientRun:
    """Run a load."""
    load = ClientRun(start_s=time.monotonic())
    bins: Counter[int] = Counter()
    bodies = [json.loads(body) for body in plan.bodies]
    used_s = time.process_time()
    sent = 0

    async def one(due_s: float) -> None:
        nonlocal sent
        number, sent = sent, sent + 1
        start_s = time.monotonic()
        first_s = last_s = 0.0
        events = tokens = 0
        async for count in stream(llm, bodies[number % len(bodies)], f"{load.start_s}-{number}"):
            last_s = time.monotonic()
            first_s = first_s or last_s
            events, tokens = events + 1, tokens + count
            bins[int((last_s - load.start_s) / BIN_S)] += 1
        load.records.append(Record(due_s, start_s, first_s, last_s, time.monotonic(), 200, events, tokens, "ok"))

    async def loop(begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        while (now_s := time.monotonic()) < load.start_s + plan.start_for_s and sent < plan.max_requests:
            await one(now_s)

    async def at(due_s: float) -> None:
        await asyncio.sleep(due_s)
        await one(load.start_s + due_s)

    work = [loop(plan.ramp_s * i / plan.streams) for i in range(plan.streams)] or [at(due_s) for due_s in plan.due_s]
    await asyncio.wait_for(asyncio.gather(*work), plan.limit_s)
    load.bins = [(load.start_s + index * BIN_S, count) for index, count in sorted(bins.items())]
    load.client_s = time.process_time() - used_s
    return load


async def serve(arguments: dict[str, Any]) -> None:
    """In the child: start the engine, take loads until the input ends."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    print("READY", flush=True)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            load = await run(llm, LoadPlan(**json.loads(line)))
            for r in load.records:
                times = f"{r.due_s:.6f} {r.start_s:.6f} {r.first_s:.6f} {r.last_s:.6f} {r.end_s:.6f}"
                print(f"R {times} {r.status} {r.events} {r.tokens} {r.kind}")
            for at_s, count in load.bins:
                print(f"B {at_s:.6f} {count}")
            print(f"U {load.client_s:.3f} {load.start_s:.6f}\nEND", flush=True)
    finally:
        llm.shutdown()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(json.loads(sys.argv[1])))
