"""Time from a replica's snapshot to the last of many replicas whose engine follows what the controller made of it.

    python -m benchmarks.control.directive_fleet --replicas 16

On CPUs, without models: the service's controller and agents, each replica in a process of its own. An engine only counts and
takes directives. The first replica's queue grows and empties, and the policy ``threshold`` has all go to FP8 and back. Writes one
line per directive: ``directive,replicas,last_ack_ms``.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from benchmarks import results_csv
from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from controller.messages import EngineStats
from deploy.agent.agent import ReplicaAgent

RESULT = Path(__file__).parents[1] / "results" / "directive-fleet.csv"
CONFIG = {
    "policy": {
        "name": "threshold",
        "leave_after_s": 0,
        "tolerated_share": 0,
    },
}
FULL_TOKENS = 100_000  # in the queue of the first replica while all are to run FP8
LIMIT_S = 30.0
IDLE = {name: 0 for name, field in EngineStats.model_fields.items() if field.is_required()}


@ray.remote(num_cpus=0)  # type: ignore[misc]
class CountingReplica:
    """An agent and an engine that only counts.

    Args:
        name: of the replica.
        controller: the actor.
    """

    def __init__(self, name: str, controller: Any) -> None:
        self._controller = controller
        self._directive: dict[str, Any] = {"mode": "fp16", "epoch": 0}
        self._since_s = 0.0  # when the mode in force was taken
        self._waiting_tokens = 0
        self._reported: dict[int, float] = {}  # by tokens in the queue: when the first snapshot with them was sent
        config = ControllerConfig.model_validate(CONFIG)
        self._agent = ReplicaAgent(name, self._engine, self.report, self._call(name), config)

    async def start(self) -> None:
        """Start the agent."""
        await self._agent.start()

    async def queue(self, tokens: int) -> None:
        """Have so many prompt tokens wait in the engine."""
        self._reported.clear()
        self._waiting_tokens = tokens

    async def seen(self, mode: str, tokens: int) -> tuple[float | None, float | None]:
        """When the engine took this mode and when a snapshot first told of so many tokens; None: not yet."""
        return (self._since_s if self._directive["mode"] == mode else None), self._reported.get(tokens)

    async def report(self, snapshot: dict[str, Any]) -> None:
        """Send a snapshot."""
        self._reported.setdefault(snapshot["waiting_tokens"], time.monotonic())
        await self._controller.report.remote(snapshot)

    def _call(self, name: str) -> Any:
        async def ask(ack: dict[str, Any] | None, seen: str | None) -> dict[str, Any] | None:
            answer: dict[str, Any] | None = await self._controller.next_directive.remote(name, ack, seen)
            return answer

        return ask

    async def _engine(self, utility: str, *arguments: Any) -> Any:
        if utility == "nestedfp_set_directive":
            return self._take(arguments[0])
        mode, tokens = self._directive["mode"], self._waiting_tokens
        told = {"mode": "fp16" if mode == "auto" else mode, "directive": mode, "epoch": self._directive["epoch"]}
        told |= {"waiting": int(tokens > 0), "waiting_tokens": tokens, "running": 1}
        return IDLE | told | {"steps_fp16": int(1e3 * time.monotonic())}  # an engine of a few steps alone is cold

    def _take(self, directive: dict[str, Any]) -> None:
        if directive["mode"] != self._directive["mode"]:
            self._since_s = time.monotonic()
        self._directive = directive


def measure(replicas: list[Any], count: int) -> list[float]:
    """Return, for so many directives, the milliseconds from the snapshot to the last engine.

    Raises:
        RuntimeError: one did not follow.
    """
    took_ms = []
    for number in range(count + 2):
        mode, tokens = ("fp8", FULL_TOKENS) if number % 2 == 0 else ("fp16", 0)
        ray.get(replicas[0].queue.remote(tokens))
        limit_s = time.monotonic() + LIMIT_S
        while True:
            seen = ray.get([replica.seen.remote(mode, tokens) for replica in replicas])
            since_s = [at_s for at_s, _ in seen if at_s is not None]
            if len(since_s) == len(replicas):
                break
            if time.monotonic() > limit_s:
                raise RuntimeError(
                    f"expected {len(replicas)} replicas in {mode} after {LIMIT_S:g} s, got {len(since_s)}"
                )
            time.sleep(0.2)
        took_ms.append((max(since_s) - seen[0][1]) * 1e3)
        time.sleep(0.013 * (number % 16))  # no rhythm with the controller's
    return took_ms[2:]


def main(argv: list[str] | None = None) -> int:
    """Command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.directive_fleet", description=__doc__)
    parser.add_argument("--replicas", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, default=200, help="directives to time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    folder = tempfile.TemporaryDirectory(prefix="nestedfp-", ignore_cleanup_errors=True)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder.name)
    try:
        actor = ray.remote(num_cpus=0)(ControllerActor).remote(CONFIG)
        replicas = [CountingReplica.remote(f"replica-{number}", actor) for number in range(args.replicas)]
        ray.get([replica.start.remote() for replica in replicas])
        took_ms = sorted(measure(replicas, args.count))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
        folder.cleanup()
    rows = [[number, args.replicas, f"{each:.2f}"] for number, each in enumerate(took_ms)]
    results_csv.write(args.out, ["directive", "replicas", "last_ack_ms"], rows, results_csv.heading(argv))
    print(f"p50 {statistics.median(took_ms):.1f}, p99 {took_ms[round(0.99 * (len(took_ms) - 1))]:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
