"""What the least room for growth gives on an engine whose every step is long: bursts and steady loads in the simulator.

    python -m benchmarks.control.fill_slow             # benchmarks/results/fill-slow.csv: a minute

The engine of fill_ahead.py with steps SLOWER times as long: an FP8 step of one request takes 14 ms of a TPOT deadline of 26.7,
nearly the three fifths at which an engine counts as full, as that of a 70B shape over two H100 does. Loads of a FEWERth of the
requests. ``nestedfp.steps.step_fill.LEAST_GROWN_SHARE`` was chosen, of 0.15, 0.25 and 0.4, on seeds 20 to 22 and the 70B shape's
derived steps.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.control.fill_ahead import BURSTS, DEADLINES, HORIZON, STEADY, Arrivals, directed, engine_table
from nestedfp.steps import step_fill
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable

RESULT = Path(__file__).parents[1] / "results" / "fill-slow.csv"
SLOWER, FEWER = 3.3, 5
SHARES = (0.0, 0.15, 0.25, 0.4, 0.6)  # the first: the share of the deadline alone
RULE = StepRule(**DEADLINES, **HORIZON, decode_reserve_steps=2.0)
CHOSEN_ON = {20, 21, 22}


def slow_table() -> EngineTable:
    """Return the engine with longer steps."""
    table = engine_table()
    return table.model_copy(update={"fp16": table.fp16.stretched(SLOWER), "fp8": table.fp8.stretched(SLOWER)})


def slowed(arrivals: Arrivals) -> Arrivals:
    """Return fewer of them; twice as long, since so few come."""
    return arrivals._replace(parts=tuple((per_s / FEWER, 2 * span_s) for per_s, span_s in arrivals.parts))


def measure(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for every load, seed and share, and one of FP8 alone (share empty)."""
    table, rows = slow_table(), []
    for load, arrivals in {**BURSTS, **STEADY}.items():
        for seed in seeds:
            sizes = slowed(arrivals).draw(seed)
            for share in (None, *SHARES):
                with mock.patch.object(step_fill, "LEAST_GROWN_SHARE", share):
                    kept, exact = directed(table, sizes, None if share is None else RULE)
                found = {"attainment": round(kept, 4), "fp16_share": round(exact, 4)}
                rows.append({"load": load, "seed": seed, "share": "" if share is None else share, **found})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for every share: attainment lost against FP8 alone, in the mean and at worst, and tokens in FP16."""
    fp8 = {(row["load"], row["seed"]): row["attainment"] for row in rows if row["share"] == ""}
    lines = []
    for kind, loads in (("bursts", BURSTS), ("steady", STEADY)):
        for share in SHARES:
            own = [row for row in rows if row["share"] == share and row["load"] in loads]
            lost = [fp8[row["load"], row["seed"]] - row["attainment"] for row in own]
            exact = np.mean([row["fp16_share"] for row in own])
            lines.append(f"{kind}, {share}: loses {np.mean(lost):.4f}, at worst {max(lost):.4f}; {exact:.3f} in FP16")
    return lines


def main() -> None:
    """Measure, write the CSV and print what it comes to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.fill_slow", description=__doc__)
    parser.add_argument("--seeds", default="10,11,12,13", help="of the arrivals (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if CHOSEN_ON & set(seeds):
        parser.error(f"--seeds: expected others than {sorted(CHOSEN_ON)}, on which it was chosen, got {args.seeds}")
    rows = measure(seeds)
    with args.out.open("w", newline="") as file:
        file.write(f"# python -m benchmarks.control.fill_slow --seeds {args.seeds}\n")
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
