"""How long single engine steps of known composition take, for the simulator's model of a replica.

    python -m benchmarks.engine.engine_steps --models llama-8b

Rows ``model,system,prefill_tokens,decode_requests,kv_tokens,step_ms``: the median over steps that computed that many
prompt tokens (in chunks of 1536-token prompts) and one token for each of that many decoding requests, which attended to
``kv_tokens`` cached tokens in all. Real steps of the real scheduler, with async scheduling and sampling; a step's time is
the distance between the ends of two steps of one composition, so host work that hides behind the GPU is not counted.
The composition is held by the scheduler's token budget, and decode batches are thinned by aborting requests.
"""

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import engine_process
from benchmarks.engine.engine_shapes import SHAPES

RESULT = Path(__file__).parents[1] / "results" / "h100-steps.csv"
COLUMNS = ("model", "system", "prefill_tokens", "decode_requests", "kv_tokens", "step_ms")
DECODE_REQUESTS = (256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1)  # descending: aborting is quicker than prefilling
CONTEXTS_TOKENS = (128, 512, 1536)
PREFILL_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
MIXED = [(p, d) for d in (128, 32, 8) for p in (128, 512, 2048)]
PROMPT_TOKENS = 1536
STEPS = 12  # of one composition; the first two are not counted
KV_SHARE = 0.9  # of the cache that decode batches may fill


@dataclass(frozen=True, slots=True)
class Step:
    """One executed step."""

    prefill_tokens: int
    decode_requests: int
    kv_tokens: int  # cached tokens that its requests attended to
    mode: str  # the precision it ran in; empty where there is only one
    ended_s: float


class Recorder:
    """Notes composition and end of every step, by wrapping the scheduler's two methods."""

    def __init__(self, scheduler: Any) -> None:
        self.steps: list[Step] = []
        self.launched = 0  # steps handed to the worker so far
        self._scheduler = scheduler
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        scheduler.schedule, scheduler.update_from_output = self._on_schedule, self._on_update

    def _on_schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        prefill = decode = cached = 0
        for request_id, count in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[request_id]
            before = request.num_computed_tokens - count  # vLLM has advanced it past this step already
            cached += before
            if before < request.num_prompt_tokens:
                prefill += count
            else:
                decode += 1
        self.launched += bool(output.num_scheduled_tokens)
        mode = getattr(output, "nestedfp_mode", "")
        output.benchmark_composition = (prefill, decode, cached, str(mode))
        return output

    def _on_update(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._update(scheduler_output, *args, **kwargs)
        self.steps.append(Step(*scheduler_output.benchmark_composition, time.perf_counter()))
        return result


class Driver:
    """Brings an engine into a wanted state and records its steps there."""

    def __init__(self, llm: Any) -> None:
        self._engine = llm.llm_engine
        self._scheduler = engine_process.core_of(llm).scheduler
        self._recorder = Recorder(self._scheduler)
        self._budget_tokens = self._scheduler.max_num_scheduled_tokens
        self._ids = itertools.count()

    @property
    def launched(self) -> int:
        """Steps handed to the worker so far."""
        return self._recorder.launched

    def submit(self, count: int, prompt_tokens: int, output_tokens: int) -> list[str]:
        """Queue requests; return their ids."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
        ids = [str(next(self._ids)) for _ in range(count)]
        for request_id in ids:
            self._engine.add_request(request_id, engine_process.random_prompt(prompt_tokens), params)
        return ids

    def abort(self, ids: list[str]) -> None:
        """End requests."""
        if ids:
            self._engine.abort_request(ids)

    def drain(self) -> None:
        """Run until nothing is left."""
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def run_to(self, prefill_tokens: int, decode_requests: int) -> None:
        """Run until a step of this composition has ended.

        Raises:
            RuntimeError: when 500 steps did not lead there.
        """
        for _ in range(500):
            self._engine.step()
            if self._recorder.steps and self._is(self._recorder.steps[-1], prefill_tokens, decode_requests):
                return
        raise RuntimeError(
            f"no step with {prefill_tokens} prompt tokens and {decode_requests} decodes; last {self._recorder.steps[-1]}"
        )

    def record(self, prefill_tokens: int, decode_requests: int, steps: int) -> list[Step]:
        """Run to this composition, then return the next ``steps`` steps."""
        self.run_to(prefill_tokens, decode_requests)
        self._recorder.steps.clear()
        while len(self._recorder.steps) < steps:
            self._engine.step()
        return self._recorder.steps[:]

    def measure(self, prefill_tokens: int, decode_requests: int, steps: int = STEPS) -> tuple[int, float]:
        """Return the median of cached tokens and milliseconds over consecutive steps of this composition."""
        self._scheduler.max_num_scheduled_tokens = (
            prefill_tokens + decode_requests if prefill_tokens else self._budget_tokens
        )
        try:
            recorded = self.record(prefill_tokens, decode_requests, steps)
        finally:
            self._scheduler.max_num_scheduled_tokens = self._budget_tokens
        found = [
            (after.kv_tokens, (after.ended_s - before.ended_s) * 1e3)
            for before, after in itertools.pairwise(recorded[1:])
            if self._is(before, prefill_tokens, decode_requests) and self._is(after, prefill_tokens, decode_requests)
        ]
        if len(found) < 3:
            raise RuntimeError(f"{prefill_tokens} prompt tokens, {decode_requests} decodes: only {recorded}")
        return round(statistics.median(kv for kv, _ in found)), statistics.median(ms for _, ms in found)

    @staticmethod
    def _is(step: Step, prefill_tokens: int, decode_requests: int) -> bool:
        return (step.prefill_tokens, step.decode_requests) == (prefill_tokens, decode_requests)


def measure(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, measure every composition in every mode."""
    llm = engine_process.start(spec)
    driver, kv_tokens = Driver(llm), KV_SHARE * engine_process.kv_capacity_tokens(llm)
    for system in engine_process.modes_of(spec["system"], llm):
        driver.submit(8, 64, 8)
        driver.drain()

        def report(prefill: int, decode: int, system: str = system) -> None:
            try:
                cached, step_ms = driver.measure(prefill, decode, 8 if prefill > 2048 else STEPS)
            except RuntimeError as error:
                engine_process.info(f"{spec['model']} {system}: not measured: {error}")
                return
            engine_process.row(spec["model"], system, prefill, decode, cached, round(step_ms, 4))

        for context in spec["contexts"]:
            sizes = [n for n in DECODE_REQUESTS if n * (context + 400) < kv_tokens]
            ids = driver.submit(sizes[0], context, 2000 - context)
            for size in sizes:
                driver.abort(ids[size:])
                ids = ids[:size]
                report(0, size)
            driver.abort(ids)
            driver.drain()
        for prefill in spec["prefill_tokens"]:
            ids = driver.submit((STEPS + 6) * prefill // PROMPT_TOKENS + 2, PROMPT_TOKENS, 1)
            report(prefill, 0)
            driver.abort(ids)
            driver.drain()
        for decode in dict.fromkeys(d for _, d in MIXED):
            running = driver.submit(decode, 512, 1400)
            driver.run_to(0, decode)
            for prefill in (p for p, d in MIXED if d == decode):
                ids = driver.submit((STEPS + 6) * prefill // PROMPT_TOKENS + 2, PROMPT_TOKENS, 1)
                report(prefill, decode)
                driver.abort(ids)
                driver.run_to(0, decode)
            driver.abort(running)
            driver.drain()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = engine_process.parser_of("benchmarks.engine.engine_steps", __doc__, ",".join(SHAPES), RESULT)
    parser.add_argument("--systems", default=",".join(engine_process.SYSTEMS))
    parser.add_argument("--contexts", type=_numbers, default=CONTEXTS_TOKENS, help="of decode steps; '' for none")
    parser.add_argument("--prefill-tokens", type=_numbers, default=PREFILL_TOKENS, help="of prefill steps")

    def options(args: argparse.Namespace) -> dict[str, Any]:
        return {"contexts": args.contexts, "prefill_tokens": args.prefill_tokens}

    # Contexts differ by a few tokens from run to run, so a new run replaces all rows of its system.
    return engine_process.main(parser, argv, measure, COLUMNS, 5, options)


if __name__ == "__main__":
    sys.exit(main())
