"""Logs of steps -> single steps as the simulator's fit takes them: what a service's own steps took, under its own load.

    python -m benchmarks.steps.step_sizes runs/steps/nestedfp --model mistral-24b --out steps.csv
    python -m simulator fit --steps-csv steps.csv --model mistral-24b --out table.json

Of an engine with nested weights on a GPU. Rows ``model,system,prefill_tokens,decode_requests,kv_tokens,step_ms``; a step's time is
the GPU's, from the end of the step before where nothing but sampling lies in between (SAMPLING_MS). A request counts as a decode
if it has one token in the step.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import results_csv
from benchmarks.steps.step_log import LoggedStep, StepLogError, steps_of
from simulator.fit.observations import STEP_COLUMNS

SAMPLING_MS = 1.0


def took_ms(step: LoggedStep) -> float:
    """Return the GPU's time from the end of the step before, where nothing but sampling lies in between; its own otherwise."""
    assert step.gpu_ms is not None, "a step of a GPU"
    return step.gpu_ms + min(SAMPLING_MS, step.gpu_idle_before_ms or 0.0)


def sizes_of(model: str, steps: Iterable[LoggedStep]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each step of one engine whose time is known."""
    for step in steps:
        if step.gpu_ms is None or step.gpu_idle_before_ms is None:
            continue
        decodes = step.requests - step.long_requests
        yield model, f"nestedfp_{step.mode}", step.tokens - decodes, decodes, step.kv_tokens, round(took_ms(step), 3)


def main(argv: list[str] | None = None) -> int:
    """Write the file; return the exit status: 0, or 2 for logs that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.step_sizes", description=__doc__)
    parser.add_argument("folder", type=Path, help="of one engine's logs")
    parser.add_argument("--model", required=True, help="its name in the simulator's table")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        rows = list(sizes_of(args.model, steps_of(args.folder)))
    except (StepLogError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results_csv.write(args.out, STEP_COLUMNS, rows, results_csv.heading(argv))
    print(f"{len(rows)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
