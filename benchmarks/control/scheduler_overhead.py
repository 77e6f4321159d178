"""What the plugin adds to every step in the engine core: processor time of vLLM's own scheduler, and of ours over it.

    python -m benchmarks.control.scheduler_overhead

Real schedulers decode sequences of the shipped model's configuration; what a worker would have sampled is made up. Both take
turns, a hundred steps at a time, so that other load on the machine meets both alike; medians over the turns. Rows
``system,directive,sequences,schedule_us,update_us``: processor time of a step's ``schedule`` and ``update_from_output``.
Directives: both modes, and ``auto`` by deadlines, which looks at every request's share of its SLO.
"""

import argparse
import csv
import itertools
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from controller.policies.deadlines import Deadlines
from workload.slo import USUAL_SLO

RESULT = Path(__file__).parents[1] / "results" / "scheduler-overhead.csv"
MODEL = Path(__file__).parents[2] / "models" / "fairytales-8m"
BLOCK_TOKENS, PROMPT_TOKENS, STEPS_A_TURN = 16, 16, 100
DEADLINES = asdict(Deadlines().rule_for(USUAL_SLO))  # with the policy's defaults
STEP_COSTS = [
    [1, 8.0, 5.0],
    [64, 9.0, 6.0],
    [512, 20.0, 13.0],
    [2048, 70.0, 42.0],
]  # tokens, ms in FP16 and FP8: looked up


class Decoding:
    """A scheduler with sequences that decode without end."""

    def __init__(self, directive: str | None, sequences: int) -> None:
        import torch
        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        from nestedfp.vllm_plugin.scheduling.scheduler import make_scheduler

        config = EngineArgs(
            model=str(MODEL),
            quantization="nestedfp",
            dtype="float16",
            block_size=BLOCK_TOKENS,
            max_num_seqs=sequences,
            max_num_batched_tokens=max(2048, sequences * PROMPT_TOKENS),
            enable_prefix_caching=False,
        ).create_engine_config()
        config.scheduler_config.async_scheduling = True
        blocks = sequences * (config.model_config.max_model_len // BLOCK_TOKENS + 2)
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float16)
        self._scheduler: Any = (AsyncScheduler if directive is None else make_scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        if directive is not None:
            self._scheduler.nestedfp_take_step_costs([STEP_COSTS])
            rule = DEADLINES if directive == "auto" else {}
            self._scheduler.nestedfp_set_directive({"mode": directive, "epoch": 1, "rule": rule})
        params = SamplingParams(max_tokens=config.model_config.max_model_len, ignore_eos=True, detokenize=False)
        self._new = lambda name: Request(name, [100] * PROMPT_TOKENS, params, None, arrival_time=time.time())
        self._names = itertools.count()
        self._sequences = sequences

    def turn(self) -> tuple[float, float]:
        """Begin all sequences anew and decode; return microseconds of a ``schedule`` and of an ``update_from_output``."""
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        for _ in range(self._sequences):
            self._scheduler.add_request(self._new(f"request-{next(self._names)}"))
        schedule_s, update_s = [], []
        for _ in range(STEPS_A_TURN):
            began_s = time.thread_time()
            scheduled = self._scheduler.schedule()
            schedule_s.append(time.thread_time() - began_s)
            ids = list(scheduled.num_scheduled_tokens)
            result = ModelRunnerOutput(ids, {name: row for row, name in enumerate(ids)}, [[7]] * len(ids))
            began_s = time.thread_time()
            self._scheduler.update_from_output(scheduled, result)
            update_s.append(time.thread_time() - began_s)
        self._scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        self._scheduler.schedule()  # tells the workers who has gone
        return 1e6 * statistics.median(schedule_s), 1e6 * statistics.median(update_s)


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.scheduler_overhead", description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    systems = [("vllm", None), ("nestedfp", "fp16"), ("nestedfp", "fp8"), ("nestedfp", "auto")]
    made = [Decoding(directive, args.sequences) for _, directive in systems]
    for each in made:
        each.turn()
    turns = [[each.turn() for each in made] for _ in range(args.turns)]
    with args.out.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in results_csv.heading(argv))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["system", "directive", "sequences", "schedule_us", "update_us"])
        for index, (system, directive) in enumerate(systems):
            schedule_us, update_us = (statistics.median(turn[index][part] for turn in turns) for part in (0, 1))
            row = [system, directive or "", args.sequences, f"{schedule_us:.1f}", f"{update_us:.1f}"]
            writer.writerow(row)
            print(*row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
