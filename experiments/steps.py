"""A trace whose rate goes in steps, with the lengths of another trace: python -m experiments.steps OUT.csv --lengths TRACE ...

For a load that rises and falls at once. Arrivals of a step are uniform, so their number is that of its rate. A load test that
thins the trace keeps the steps: write twice the rates that it is to have.
"""

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from workload.traces import COLUMNS, Arrival, TraceError, read_trace

BEGIN = datetime(2023, 11, 16, 18)
LEAST_S = 0.001  # after the first line, which is second 0 for whoever reads the file


def stepped(
    lengths: Sequence[Arrival], rates_rps: Sequence[float], each_s: float, from_s: float, seed: int
) -> list[Arrival]:
    """Draw a trace, behind a first request at second 0, with which whoever reads the file begins to count.

    Args:
        lengths: arrivals whose lengths are taken in order, from ``from_s`` on.
        rates_rps: of each step.
        each_s: seconds of a step.

    Raises:
        TraceError: there are not as many lengths.
    """
    rng = np.random.default_rng(seed)
    steps = enumerate(rates_rps)
    drawn = [rng.uniform(number * each_s, (number + 1) * each_s, round(rate * each_s)) for number, rate in steps]
    times_s = np.sort(np.concatenate(drawn))
    taken = [arrival for arrival in lengths if arrival.at_s >= from_s][: len(times_s)]
    if len(taken) < len(times_s):
        raise TraceError(
            f"the trace has {len(taken)} requests from {from_s:g} s on, {len(times_s)} are needed; begin earlier"
        )
    later = [
        Arrival(LEAST_S + float(at_s), each.prompt_tokens, each.output_tokens)
        for at_s, each in zip(times_s, taken, strict=True)
    ]
    return [Arrival(0.0, lengths[0].prompt_tokens, lengths[0].output_tokens), *later]


def main(words: Sequence[str] | None = None) -> int:
    """Write the file; return the exit status: 0, or 2 for arguments or a trace that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m experiments.steps", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=Path, required=True, metavar="TRACE", help="Azure trace, CSV")
    parser.add_argument("--rates", required=True, metavar="R,R,...", help="requests a second of each step")
    parser.add_argument("--each-s", type=float, default=30.0, help="seconds of a step (%(default)s)")
    parser.add_argument("--from-s", type=float, default=0.0, help="of the other trace (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    try:
        rates_rps = [float(each) for each in args.rates.split(",")]
        if not all(0 <= each < math.inf for each in (*rates_rps, args.from_s)) or not 0 < args.each_s < math.inf:
            raise ValueError("expected rates and --from-s from 0 on, and steps above 0 s")
        arrivals = stepped(read_trace(args.lengths), rates_rps, args.each_s, args.from_s, args.seed)
        with args.out.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            for each in arrivals:
                rows.writerow([BEGIN + timedelta(seconds=each.at_s), each.prompt_tokens, each.output_tokens])
    except (ValueError, OSError) as error:  # a TraceError is one, as is a number that is none
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {len(arrivals)} requests over {args.each_s * len(rates_rps):g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
