"""Where the time of an engine's step goes: GPU kernels of a decode step and of a full prefill step, for every system.

    python -m benchmarks.engine.engine_profile --models llama-8b
    python -m benchmarks.engine.engine_profile --models mistral-24b --steps 0+32,416+32,832+32,1248+32
    python -m benchmarks.engine.engine_profile --models mistral-24b --steps 416+32 --after-decodes 6    # as under a load

For each system steps of so many prompt tokens plus so many decoding requests with some 600 tokens of context, by default a
decode step of 32 requests and a prefill step of 8192 tokens: a step's duration without the profiler, the time in which at
least one kernel ran (busy), the rest (gap: launches, the host), and every kernel's share. Real steps, CUDA graphs included;
torch.profiler with CUPTI sees the kernels inside graphs. A kernel that is launched early and waits for the one before it
counts as running. With ``--after-decodes`` a step holds one whole prompt, and steps of decodes alone run before each: the card
computes little meanwhile, and runs faster than under prompts without a pause. Rows ``model,system,phase,kernel,calls,us``, per
step; the kernels "(step)" and "(busy)" are the totals.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import engine_process
from benchmarks.engine.engine_steps import PROMPT_TOKENS, Driver

RESULT = Path(__file__).parents[1] / "results" / "h100-profile.csv"
COLUMNS = ("model", "system", "phase", "kernel", "calls", "us")
STEPS_PROFILED = "0+32,8192+0"
STEPS = 8
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 512, 1400  # of a decoding request
MOST_DECODES_BETWEEN = 32
APART_STEPS = 16  # with a prompt, where steps of decodes come between
NAME_CHARACTERS = 120
LAST_KERNEL = "_gumbel_sample_kernel"  # of a step, but for a few that take a microsecond
# First match names the group of a kernel in the printed summary.
GROUPS = {
    "quantise": r"quantize|scaled_fp8_quant|per_token_quant",
    "attention": r"flash|fmha|attention|reshape_and_cache|combine",
    "gemm": r"nestedfp|gemm|nvjet|cutlass|xmma|splitK|cublas",
    "norm, activation, rotary": r"triton_|rms_norm|silu|rotary",
}


def group_of(kernel: str) -> str:
    """Return the group of a kernel by its name."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, kernel, re.IGNORECASE)), "other")


def compositions(text: str) -> list[tuple[int, int]]:
    """Return prompt tokens and decoding requests of each step.

    Raises:
        argparse.ArgumentTypeError: unless every part is two counts joined by "+", at least one of them above zero.
    """
    parts = [re.fullmatch(r"([0-9]{1,6})\+([0-9]{1,6})", part) for part in text.split(",")]
    found = [(int(part[1]), int(part[2])) for part in parts if part is not None]
    if len(found) < len(parts) or (0, 0) in found:
        raise argparse.ArgumentTypeError(f"expected PROMPT_TOKENS+DECODES such as 0+32,416+32, got {text!r}")
    return found


def busy_us(intervals: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals: kernels may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel, microseconds of the profiler's clock."""

    name: str
    began_us: float
    ended_us: float


def by_step(kernels: Iterable[Kernel]) -> list[list[Kernel]]:
    """Split kernels after every one that samples tokens; what comes after the last of those is left out."""
    steps: list[list[Kernel]] = [[]]
    for kernel in sorted(kernels, key=lambda kernel: kernel.began_us):
        steps[-1].append(kernel)
        if kernel.name == LAST_KERNEL:
            steps.append([])
    return steps[:-1]


def table_of(steps: Sequence[Sequence[Kernel]], step_ms: float) -> dict[str, tuple[float, float]]:
    """Return calls and microseconds per step of every kernel, with the totals "(step)" and "(busy)".

    Args:
        steps: the kernels of each.
        step_ms: what a step takes without the profiler.
    """
    calls: dict[str, int] = defaultdict(int)
    microseconds: dict[str, float] = defaultdict(float)
    for kernel in (kernel for step in steps for kernel in step):
        calls[kernel.name] += 1
        microseconds[kernel.name] += kernel.ended_us - kernel.began_us
    found = {name: (calls[name] / len(steps), microseconds[name] / len(steps)) for name in calls}
    busy = sum(busy_us([(kernel.began_us, kernel.ended_us) for kernel in step]) for step in steps) / len(steps)
    return {"(step)": (1, step_ms * 1e3), "(busy)": (1, busy), **dict(sorted(found.items(), key=lambda i: -i[1][1]))}


def profile(driver: Driver, prefill: int, decode: int, after_decodes: int) -> dict[str, tuple[float, float]]:
    """Return ``table_of`` steps of one composition, which run one after the other or after so many of decodes alone."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    def run() -> float:
        if after_decodes:
            return driver.measure_apart(prefill, decode, after_decodes, APART_STEPS)
        return driver.measure(prefill, decode, STEPS)[1]

    step_ms = run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    kernels = [
        Kernel(event.name[:NAME_CHARACTERS], event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    ]
    steps = by_step(kernels)
    if not steps:
        raise RuntimeError(
            f"none of {len(kernels)} kernels is {LAST_KERNEL}, which ends a step; has vLLM another sampler?"
        )
    if after_decodes:  # those with a prompt take longest
        steps = sorted(steps, key=lambda step: step[0].began_us - step[-1].ended_us)[:APART_STEPS]
    return table_of(steps, step_ms)


def measure(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, profile both phases in every mode."""
    llm = engine_process.start(spec)
    driver = Driver(llm)
    for system in engine_process.modes_of(spec["system"], llm):
        for prefill, decode in spec["steps"]:
            running = driver.submit(decode, DECODE_PROMPT_TOKENS, DECODE_TOKENS)
            if decode:
                driver.run_to(0, decode)
            # Enough prompts that none of the steps, nor the few on the way to them, is short of tokens.
            apart = spec["after_decodes"]
            prompts = 0 if apart or not prefill else (2 * STEPS + 12) * prefill // PROMPT_TOKENS + 2
            ids = driver.submit(prompts, PROMPT_TOKENS, 1)
            table = profile(driver, prefill, decode, apart)
            driver.abort(ids + running)
            driver.drain()
            for kernel, (calls, us) in table.items():
                phase = f"{prefill}+{decode}" + (f" after {apart}" if apart else "")
                engine_process.row(spec["model"], system, phase, kernel, round(calls, 2), round(us, 2))


def summarise(rows: list[list[Any]]) -> None:
    """Print, for each system and phase, the time by group."""
    by_phase: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for model, system, phase, kernel, _, us in rows:
        by_phase[model, system, phase][kernel if kernel.startswith("(") else group_of(kernel)] += us
    for (model, system, phase), groups in by_phase.items():
        parts = ", ".join(f"{group} {us:.0f}" for group, us in groups.items())
        print(f"{model} {system} {phase}, us: {parts}, gap {groups['(step)'] - groups['(busy)']:.0f}")


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = engine_process.parser_of("benchmarks.engine.engine_profile", __doc__, "llama-8b", RESULT)
    parser.add_argument("--systems", default=",".join(engine_process.DEFAULT_SYSTEMS))
    parser.add_argument(
        "--steps", type=compositions, default=STEPS_PROFILED, help="PROMPT_TOKENS+DECODES, comma-separated"
    )
    parser.add_argument(
        "--after-decodes", type=int, default=0, help="steps of decodes before each with a prompt; 0: none in between"
    )

    def options(args: argparse.Namespace) -> dict[str, Any]:
        if args.after_decodes > MOST_DECODES_BETWEEN:
            parser.error(
                f"--after-decodes must be at most {MOST_DECODES_BETWEEN}, or decodes end before it is measured"
            )
        if args.after_decodes and not all(prefill and decode for prefill, decode in args.steps):
            parser.error("--after-decodes needs --steps of prompt tokens and decodes, such as 416+32")
        return {"steps": args.steps, "after_decodes": args.after_decodes}

    return engine_process.main(parser, argv, measure, COLUMNS, 4, options, summarise=summarise)


if __name__ == "__main__":
    sys.exit(main())
