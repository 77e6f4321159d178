"""Where the time of an engine's step goes: GPU kernels of a decode step and of a full prefill step, for every system.

    python -m benchmarks.engine.engine_profile --models llama-8b
    python -m benchmarks.engine.engine_profile --models mistral-24b --steps 0+32,416+32,832+32,1248+32

For each system steps of so many prompt tokens plus so many decoding requests with some 600 tokens of context, by default a
decode step of 32 requests and a prefill step of 8192 tokens: a step's duration without the profiler, the time in which at
least one kernel ran (busy), the rest (gap: launches, the host), and every kernel's share. Real steps, CUDA graphs included;
torch.profiler with CUPTI sees the kernels inside graphs. A kernel that is launched early and waits for the one before it
counts as running. Rows ``model,system,phase,kernel,calls,us``, per step; the kernels "(step)" and "(busy)" are the totals.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.engine import engine_process
from benchmarks.engine.engine_steps import PROMPT_TOKENS, Driver

RESULT = Path(__file__).parents[1] / "results" / "h100-profile.csv"
COLUMNS = ("model", "system", "phase", "kernel", "calls", "us")
STEPS_PROFILED = "0+32,8192+0"
STEPS = 8
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 512, 1400  # of a decoding request
NAME_CHARACTERS = 120
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


def profile(driver: Driver, prefill: int, decode: int) -> dict[str, tuple[float, float]]:
    """Return calls and microseconds per step of every kernel, with the totals "(step)" and "(busy)"."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    _, step_ms = driver.measure(prefill, decode, STEPS)
    torch.cuda.synchronize()
    launched = driver.launched
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        driver.measure(prefill, decode, STEPS)
        torch.cuda.synchronize()
    steps = driver.launched - launched
    calls: dict[str, int] = defaultdict(int)
    microseconds: dict[str, float] = defaultdict(float)
    intervals = []
    for event in profiler.events():
        if event.device_type != DeviceType.CUDA:
            continue
        name = event.name[:NAME_CHARACTERS]
        calls[name] += 1
        microseconds[name] += event.time_range.end - event.time_range.start
        intervals.append((event.time_range.start, event.time_range.end))
    found = {name: (calls[name] / steps, microseconds[name] / steps) for name in calls}
    ordered = dict(sorted(found.items(), key=lambda item: -item[1][1]))
    return {"(step)": (1, step_ms * 1e3), "(busy)": (1, busy_us(intervals) / steps), **ordered}


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
            ids = driver.submit((2 * STEPS + 12) * prefill // PROMPT_TOKENS + 2, PROMPT_TOKENS, 1) if prefill else []
            table = profile(driver, prefill, decode)
            driver.abort(ids + running)
            driver.drain()
            for kernel, (calls, us) in table.items():
                engine_process.row(spec["model"], system, f"{prefill}+{decode}", kernel, round(calls, 2), round(us, 2))


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
    return engine_process.main(
        parser, argv, measure, COLUMNS, 4, lambda args: {"steps": args.steps}, summarise=summarise
    )


if __name__ == "__main__":
    sys.exit(main())
