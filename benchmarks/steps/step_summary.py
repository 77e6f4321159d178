"""Logs of steps -> a table by system, precision and size: what bounds an engine, its host or its GPU.

    python -m experiments run experiments/configs/8b-one.yaml --trace TRACE --step-log runs/steps
    python -m benchmarks.steps.step_summary runs/steps/* --out runs/host-bound.csv

A system is a folder of logs, one file an engine (logged_worker.py), named as the folder. Rows ``system,mode,min_tokens,max_tokens,
steps,requests_mean``, then medians and 90th percentiles in ms: the engine's thread in ``execute_model``, of that on the
processor, the GPU from first to last launch, and idle before; empty where there was no GPU. ``--by-previous`` has rows for steps
after one with prompts in it and for those after decodes alone: a card that has computed little meanwhile runs faster.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import results_csv
from benchmarks.steps.step_log import LoggedStep, StepLogError, read_steps
from workload.percentiles import percentiles

BANDS = (
    (1, 63),
    (64, 256),
    (257, 512),
    (513, 768),
    (769, 1024),
    (1025, 1399),
    (1400, 1999),
    (2000, 2048),
    (2049, 1 << 20),
)
TIMES = ("host", "host_cpu", "gpu", "gpu_idle_before")
COLUMNS = (
    *("system", "mode", "min_tokens", "max_tokens", "steps", "requests_mean"),
    *(f"{name}_{share}_ms" for name in TIMES for share in ("p50", "p90")),
)


def rows_of(system: str, steps: Sequence[LoggedStep]) -> list[tuple[object, ...]]:
    """Return a row for every precision and band of sizes in which there were steps."""
    rows: list[tuple[object, ...]] = []
    for mode in sorted({step.mode for step in steps}):
        for least, most in BANDS:
            found = [step for step in steps if step.mode == mode and least <= step.tokens <= most]
            if found:
                times = [value for name in TIMES for value in _p50_p90([getattr(step, f"{name}_ms") for step in found])]
                requests = round(sum(step.requests for step in found) / len(found))
                rows.append((system, mode, least, most, len(found), requests, *times))
    return rows


def by_previous(steps: Sequence[LoggedStep]) -> dict[str, list[LoggedStep]]:
    """Return the steps after one with prompts in it, and those after decodes alone; the first one is in neither."""
    found: dict[str, list[LoggedStep]] = {"after prompts": [], "after decodes": []}
    for before, step in pairwise(steps):
        found["after prompts" if before.long_requests else "after decodes"].append(step)
    return found


def _p50_p90(values: Sequence[float | None]) -> tuple[object, object]:
    found = percentiles(value for value in values if value is not None)
    return ("", "") if found.p50 is None or found.p90 is None else (round(found.p50, 2), round(found.p90, 2))


def steps_of(folder: Path) -> list[LoggedStep]:
    """Read all logs of one system.

    Raises:
        StepLogError: for a folder without steps, or a broken line.
    """
    files = sorted(folder.glob("steps-*.csv"))
    steps = [step for path in files for step in read_steps(path)]
    if not steps:
        raise StepLogError(f"{folder}: expected logs of steps, steps-*.csv with a step each line; found none")
    return steps


def main(argv: list[str] | None = None) -> int:
    """Print the table and write it; return the exit status: 0, or 2 for logs that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.step_summary", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of logs, one for each system")
    parser.add_argument("--by-previous", action="store_true", help="rows by what the step before was")
    parser.add_argument("--out", type=Path, help="CSV; rows of other systems in it stay")
    args = parser.parse_args(argv)
    try:
        systems = {folder.name: steps_of(folder) for folder in args.folders}
    except (StepLogError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.by_previous:
        systems = {f"{name} {when}": part for name, all_ in systems.items() for when, part in by_previous(all_).items()}
    rows = [row for system, steps in systems.items() for row in rows_of(system, steps)]
    for row in (COLUMNS, *rows):
        print(",".join(map(str, row)))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        results_csv.merge(args.out, COLUMNS, 4, rows, results_csv.heading(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
