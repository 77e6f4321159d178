"""What the control plane costs a replica: processor time per snapshot in the engine core and in the front end.

    python -m benchmarks.control.control_overhead

A real engine (the shipped model; its core in a process of its own, reached through its socket) answers the two utilities that
the replica's agent calls; a real agent builds snapshots and takes a real control loop's answers. Processor time does not
see other load on the machine. Rows ``part,us_per_call,calls_per_s,percent_of_a_core``, at the default report period: the
engine core's share bounds what serving throughput can lose, since its steps and these calls take turns.
"""

import argparse
import asyncio
import csv
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop
from controller.messages import ReplicaSnapshot
from deploy.agent.agent import ReplicaAgent

RESULT = Path(__file__).parents[1] / "results" / "control-overhead.csv"
MODEL = Path(__file__).parents[2] / "models" / "fairytales-8m"


class LoopLink:
    """A controller in this process, not timed: it is another process when live."""

    def __init__(self, loop: ControlLoop) -> None:
        self._loop = loop
        self.own_s = 0.0

    async def report(self, snapshot: dict[str, Any]) -> None:
        began_s = time.thread_time()
        self._loop.on_snapshot(time.monotonic(), ReplicaSnapshot.model_validate(snapshot))
        self.own_s += time.thread_time() - began_s

    def next_directive(self, ack: dict[str, Any] | None, seen: str | None) -> "Future[dict[str, Any] | None]":
        raise ConnectionError("no directive comes here")


def core_us(core: psutil.Process, call: Callable[[], object], count: int) -> float:
    """Processor time that the engine core spends on a call, in microseconds, less what it spends idle."""

    def used_s() -> float:
        times = core.cpu_times()
        return float(times.user + times.system)

    before_s, began_s = used_s(), time.monotonic()
    for _ in range(count):
        call()
    busy_s, span_s = used_s() - before_s, time.monotonic() - began_s
    before_s = used_s()
    time.sleep(min(span_s, 5.0))
    idle_s = (used_s() - before_s) / min(span_s, 5.0) * span_s
    return max(0.0, busy_s - idle_s) / count * 1e6


async def agent_us(engine: Callable[..., Any], count: int) -> float:
    """Processor time of the front end's thread on a report, in microseconds."""
    config = ControllerConfig()
    link = LoopLink(ControlLoop(config))

    async def call(utility: str, *args: Any) -> Any:
        return engine(utility, *args)

    agent = ReplicaAgent("replica", call, link, link.next_directive, config)
    agent._stats = engine("nestedfp_stats")
    began_s = time.thread_time()
    for _ in range(count):
        await agent._report_once(time.monotonic())
    return (time.thread_time() - began_s - link.own_s) / count * 1e6


def main(argv: list[str] | None = None) -> int:
    """Command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.control_overhead", description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="calls of each kind (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM

    llm = LLM(model=str(MODEL), quantization="nestedfp", dtype="float16", max_model_len=1024, enforce_eager=True)
    llm.generate(["Once upon a time"] * 8, use_tqdm=False)
    client: Any = llm.llm_engine.engine_core
    core = next(p for p in psutil.Process().children() if "EngineCor" in " ".join(p.cmdline()) + p.name())
    rule = {"fp8_step_tokens": None, "fp8_wait_s": 0.1}
    directive = {"mode": "auto", "epoch": 1, "rule": rule}
    per_s = 1 / ControllerConfig().report_period_s
    parts = {
        "engine core: statistics": (core_us(core, lambda: client.call_utility("nestedfp_stats"), args.count), per_s),
        "engine core: directive": (
            core_us(core, lambda: client.call_utility("nestedfp_set_directive", directive), args.count),
            0.1,  # one switch in ten seconds is the most that the guards allow by default
        ),
        "front end: snapshot": (asyncio.run(agent_us(client.call_utility, args.count)), per_s),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.write(
            f"# {datetime.now(UTC):%Y-%m-%d} python -m benchmarks.control.control_overhead --count {args.count}\n"
        )
        writer = csv.writer(file)
        writer.writerow(["part", "us_per_call", "calls_per_s", "percent_of_a_core"])
        for part, (us, calls) in parts.items():
            writer.writerow([part, f"{us:.1f}", f"{calls:g}", f"{us * calls / 1e4:.3f}"])
            print(f"{part}: {us:.1f} us, {us * calls / 1e4:.3f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
