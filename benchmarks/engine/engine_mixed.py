"""Latency of whole engines under an open loop of requests, whose steps mix decodes with chunks of prompts. No HTTP.

    python -m benchmarks.engine.engine_mixed --models mistral-24b
    python -m benchmarks.engine.engine_mixed --rate-rps 14.66 --table TABLE.json --out simulated.csv      # no GPU

Requests arrive at random, independently of the answers (Poisson, from a seed, the same for every system), by default at 60 %
of what plain vLLM in FP16 computes when requests never run out. Rows
``model,system,rate_rps,ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,tpot_p99_ms``: the time from a request's arrival to its first token,
and from there to its last, by token. Requests that arrive in the first and last fifth of the run are not counted.
``--table`` sends the same requests to a simulated engine with these step times, in both precisions, instead of to engines.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine import engine_process
from benchmarks.engine.engine_shapes import SHAPES

RESULT = Path(__file__).parents[1] / "results" / "h100-mixed.csv"
COLUMNS = ("model", "system", "rate_rps", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
EDGE = 0.2  # of the run at either end, while the load settles and after arrivals have stopped


@dataclass(slots=True)
class RequestTimes:
    """Times of one request, in seconds of one clock."""

    arrived_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0


def arrivals(seed: int, rate_rps: float, seconds: float) -> list[float]:
    """Return the arrival times of a Poisson process, ascending, in seconds from its start.

    Raises:
        ValueError: unless both rate and duration are above zero.
    """
    if not rate_rps > 0 or not seconds > 0:
        raise ValueError(f"expected a rate and a duration above zero, got {rate_rps} requests/s and {seconds} s")
    rng, found, now_s = random.Random(seed), [], 0.0
    while (now_s := now_s + rng.expovariate(rate_rps)) < seconds:
        found.append(now_s)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def figures_ms(answers: Sequence[RequestTimes], seconds: float) -> tuple[float, float, float, float]:
    """Return median and 99th percentile of TTFT, then of TPOT, over the requests that arrived in the middle of the run.

    Args:
        answers: complete, of at least two tokens each; arrivals in seconds from the start of the run.

    Raises:
        ValueError: when none arrived there.
    """
    counted = [answer for answer in answers if EDGE * seconds <= answer.arrived_s < (1 - EDGE) * seconds]
    if not counted:
        raise ValueError(f"none of {len(answers)} requests arrived in the middle of {seconds} s; run longer or faster")
    ttft = [(answer.first_s - answer.arrived_s) * 1e3 for answer in counted]
    tpot = [(answer.last_s - answer.first_s) * 1e3 / (answer.tokens - 1) for answer in counted]
    return percentile(ttft, 0.5), percentile(ttft, 0.99), percentile(tpot, 0.5), percentile(tpot, 0.99)


class Loop:
    """Feeds an engine and steps it."""

    def __init__(self, llm: Any, tokens_in: int, tokens_out: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine = llm.llm_engine
        self._tokens_in = tokens_in
        self._vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
        self._params = SamplingParams(
            max_tokens=tokens_out,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._ids = itertools.count()

    def run(self, arrivals_s: Sequence[float]) -> list[RequestTimes]:
        """Send a request at each time, and step until all are answered."""
        answers: dict[str, RequestTimes] = {}
        prompts = [engine_process.random_prompt(self._tokens_in, self._vocabulary) for _ in arrivals_s]
        start_s, sent = time.perf_counter(), 0
        while sent < len(arrivals_s) or self._engine.has_unfinished_requests():
            now_s = time.perf_counter() - start_s
            while sent < len(arrivals_s) and arrivals_s[sent] <= now_s:
                request_id = f"mixed-{next(self._ids)}"
                answers[request_id] = RequestTimes(arrivals_s[sent])
                self._engine.add_request(request_id, prompts[sent], self._params)
                sent += 1
            if not self._engine.has_unfinished_requests():
                time.sleep(max(0.0, arrivals_s[sent] - now_s))
                continue
            outputs = self._engine.step()
            now_s = time.perf_counter() - start_s
            for output in outputs:
                answer = answers[output.request_id]
                count = len(output.outputs[0].token_ids)
                if count and not answer.tokens:
                    answer.first_s = now_s
                answer.tokens += count
                answer.last_s = now_s
        return list(answers.values())

    def capacity_rps(self, requests: int) -> float:
        """Return the requests that the engine completes in a second when all are there at once, ramp and end included."""
        return requests / max(answer.last_s for answer in self.run([0.0] * requests))


def measure(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, run the load in every mode."""
    llm = engine_process.start(spec, max_num_batched_tokens=spec["budget_tokens"])
    loop = Loop(llm, spec["tokens_in"], spec["tokens_out"])
    loop.run([0.0] * 8)
    rate_rps = spec["rate_rps"]
    if rate_rps is None:
        capacity_rps = loop.capacity_rps(spec["capacity_requests"])
        rate_rps = round(spec["load"] * capacity_rps, 2)
        engine_process.info(f"{spec['model']}: {spec['system']} completes {capacity_rps:.2f} requests/s")
    times_s = arrivals(spec["seed"], rate_rps, spec["seconds"])
    for system in engine_process.modes_of(spec["system"], llm):
        loop.run(times_s[:16])
        answers = loop.run(times_s)
        if any(answer.tokens != spec["tokens_out"] for answer in answers):
            raise RuntimeError(f"{system}: not every answer has {spec['tokens_out']} tokens")
        rounded = (round(value, 2) for value in figures_ms(answers, spec["seconds"]))
        engine_process.row(spec["model"], system, rate_rps, *rounded)


def simulated(args: argparse.Namespace) -> list[list[Any]]:
    """Return the rows of simulated engines with the step times of a table (``python -m simulator fit``)."""
    from nestedfp.modes import DirectiveMode
    from simulator.engine.cost_table import read_table
    from simulator.engine.engine import Engine
    from simulator.engine.request import SimRequest

    table, rows = read_table(args.table), []
    for mode in (DirectiveMode.FP16, DirectiveMode.FP8):
        engine, requests = Engine(table), []
        engine.directive = mode
        for index, arrived_s in enumerate(arrivals(args.seed, args.rate_rps, args.seconds)):
            engine.advance(arrived_s)
            requests.append(SimRequest(index, arrived_s, args.tokens_in, args.tokens_out))
            engine.add(arrived_s, requests[-1])
        engine.advance(1e9)
        times = [RequestTimes(r.arrived_s, r.first_s, r.finished_s, args.tokens_out) for r in requests]
        figures = (round(value, 2) for value in figures_ms(times, args.seconds))
        rows.append([table.model, f"simulated_{mode.value}", args.rate_rps, *figures])
        print(*rows[-1])
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.engine_mixed", description=__doc__)
    parser.add_argument("--models", default="mistral-24b", help="comma-separated, of " + ", ".join(SHAPES))
    parser.add_argument(
        "--systems", default="vllm_fp16,nestedfp,vllm_fp8", help="the first one's capacity sets the rate"
    )
    parser.add_argument("--tokens-in", type=int, default=416)
    parser.add_argument("--tokens-out", type=int, default=88)
    parser.add_argument("--rate-rps", type=float, help="requests per second; without it a share of the capacity")
    parser.add_argument("--load", type=float, default=0.6, help="that share")
    parser.add_argument("--capacity-requests", type=int, default=1500, help="sent at once to find the capacity")
    parser.add_argument("--budget-tokens", type=int, default=8192, help="tokens of a step at most")
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--seconds", type=float, default=40.0, help="for which requests arrive, in each mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="of the simulator: no engine is started; needs --rate-rps")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.spec:
        measure(json.loads(args.spec))
        return 0
    if args.table is not None:
        if args.rate_rps is None or args.out == RESULT:
            parser.error("--table needs --rate-rps, which no engine is there to tell, and an --out of its own")
        results_csv.merge(args.out, COLUMNS, 3, simulated(args), results_csv.heading(argv))
        return 0
    heading, found = results_csv.heading(argv), 0
    names = ("tokens_in", "tokens_out", "load", "capacity_requests", "budget_tokens", "seconds", "seed", "engine")
    for model in args.models.split(","):
        rate_rps = args.rate_rps
        for system in args.systems.split(","):
            options = {"rate_rps": rate_rps, **{name: getattr(args, name) for name in names}}
            for rows, notes in engine_process.collect("benchmarks.engine.engine_mixed", [model], [system], options):
                results_csv.merge(args.out, COLUMNS, 3, rows, [*heading, *notes])
                found += len(rows)
                rate_rps = rows[0][2] if rows else rate_rps
            if rate_rps is None:
                print(f"error: {system} on {model} gave no rate for the others", file=sys.stderr)
                break
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
