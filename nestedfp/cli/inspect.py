"""``nestedfp inspect MODEL``: which layers nest, which need an outlier list, which stay plain, and why.

Reads every weight once, in chunks, so that a checkpoint may be larger than memory. For each type of layer: smallest and largest
weight, share beyond 1.75, share of FP16 subnormals, share that a cast from BF16 or FP32 changes, and FP8 mode's error relative
to the weights (root mean squares). Exit status: 0; 1: some weight is NaN, infinite or beyond FP16's range; 2: it cannot be read.
"""

import argparse
from pathlib import Path

from nestedfp.cli.output import checkpoint_bytes, progress, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("model", type=Path, help="folder of an FP16, BF16, FP32 or converted checkpoint")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report of every layer")


def run(args: argparse.Namespace) -> int:
    """Print the table; return the exit status."""
    from nestedfp.offline.inspect import inspect, table

    with progress(checkpoint_bytes(args.model)) as done:
        found = inspect(args.model, done)
    print(table(found))
    write_json(args.json, found.as_json())
    return 1 if found.faults else 0
