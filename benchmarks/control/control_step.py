"""Times one step of the control loop, and the taking of one snapshot, by number of replicas and policy.

``python -m benchmarks.control.control_step`` writes benchmarks/results/control-step.csv. CPU time of one thread, no network: what a
controller computes. Every replica has sent a window of snapshots and a new one before each timed step, as live; queues come and go,
so that decisions do.
"""

import argparse
import csv
import gc
import itertools
import random
import statistics
import time
from pathlib import Path

from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop
from controller.messages import LatencyWindow, ReplicaSnapshot
from controller.policies import POLICIES
from nestedfp.modes import DirectiveMode, Mode

RESULTS = Path(__file__).resolve().parents[1] / "results" / "control-step.csv"
FIELDS = ("replicas", "policy", "steps", "step_p50_ms", "step_p99_ms", "snapshot_us")
PERIOD_S = 0.1


def snapshot(
    replica: int, tick: int, hot: bool, rng: random.Random, directive: DirectiveMode, epoch: int
) -> ReplicaSnapshot:
    """One of a replica that computes 3000 tokens a second."""
    fp8 = directive is DirectiveMode.FP8
    wait_s = rng.uniform(0.1, 0.6) if hot else 0.0
    window = LatencyWindow(count=50, p50_ms=20, p90_ms=30 if hot else 25, p99_ms=40)
    return ReplicaSnapshot(
        replica_id=f"replica-{replica:05d}",
        incarnation="a",
        seq=tick,
        ready=True,
        mode=Mode.FP8 if fp8 else Mode.FP16,
        directive=directive,
        epoch=epoch,
        lease_remaining_s=1.9,
        switches=0,
        steps_fp16=50 * tick,
        steps_fp8=tick,
        tokens_fp16=300 * tick,
        tokens_fp8=tick,
        waiting=20 if hot else 0,
        waiting_tokens=rng.randrange(1000, 9000) if hot else 0,
        oldest_wait_s=wait_s,
        running=16,
        kv_usage=0.5,
        arrivals=tick,
        arrived_tokens=250 * tick,
        finished=tick,
        slo_evaluated=tick,
        within_slo=tick - tick // 50,
        ttft=window,
        tpot=window,
        step_ms_fp16=18.0,
        step_ms_fp8=12.0,
    )


def measure(policy: str, replicas: int, steps: int) -> dict[str, object]:
    """Run the loop for ``steps`` periods after a window to warm up; times in milliseconds and microseconds."""
    loop = ControlLoop(ControllerConfig.model_validate({"policy": {"name": policy}}))
    rng = random.Random(0)
    step_ms: list[float] = []
    snapshot_us: list[float] = []
    known = [(DirectiveMode.FP16, 0)] * replicas
    for tick in range(1, steps + 16):
        now_s = tick * PERIOD_S
        hot = tick % 100 >= 40
        snapshots = [snapshot(i, tick, hot and i % 3 != 0, rng, *known[i]) for i in range(replicas)]
        gc.collect()
        gc.disable()
        began_s = time.thread_time()
        for one in snapshots:
            loop.on_snapshot(now_s, one)
        taken_s = time.thread_time()
        loop.step(now_s)
        done_s = time.thread_time()
        gc.enable()
        told = [loop.directive_for(one.replica_id) for one in snapshots]
        known = [(directive.mode, directive.epoch) for directive in told if directive is not None]
        if tick > 15:
            snapshot_us.append((taken_s - began_s) / replicas * 1e6)
            step_ms.append((done_s - taken_s) * 1e3)
    ordered = sorted(step_ms)
    return {
        "replicas": replicas,
        "policy": policy,
        "steps": steps,
        "step_p50_ms": round(statistics.median(ordered), 4),
        "step_p99_ms": round(ordered[round(0.99 * (len(ordered) - 1))], 4),
        "snapshot_us": round(statistics.median(snapshot_us), 3),
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.control_step", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000, 4000])
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each row; fewer for many replicas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS, lineterminator="\n")
        writer.writeheader()
        for replicas, policy in itertools.product(args.replicas, args.policy):
            row = measure(policy, replicas, max(20, min(args.steps, 100_000 // replicas)))
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
            writer.writerow(row)
            file.flush()  # what was measured stays when the run is cut off


if __name__ == "__main__":
    main()
