"""``nestedfp convert SOURCE TARGET`` and ``nestedfp restore SOURCE TARGET``."""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from nestedfp.cli.output import checkpoint_bytes, progress, write_json

CONVERT = """Turn an FP16, BF16 or FP32 Hugging Face checkpoint into a NestedFP one of the same size (FP32 becomes FP16).

Every tensor is checked before the first one is written, and TARGET appears when it is whole; the source is never touched. After
an interruption the same command goes on with the shards that are missing. A plain checkpoint can be served without conversion."""
RESTORE = """Turn a NestedFP checkpoint back into the plain FP16 one. Weights that were FP16 come back bit by bit, and shards that
the safetensors library had written come back as the same files; layers that were BF16 or FP32 come back as FP16."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("source", type=Path, help="folder of the checkpoint to read")
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of every layer, and checksums")


def run(args: argparse.Namespace) -> int:
    """Convert or restore; return the exit status."""
    from nestedfp.offline.convert import convert, restore

    began_s = time.monotonic()
    passes = 2 if args.command == "convert" else 1
    with progress(passes * checkpoint_bytes(args.source)) as done:
        if args.command == "convert":
            report = convert(args.source, args.target, done)
            said = report.summary()
        else:
            report = restore(args.source, args.target, done)
            said = f"{len(report.nested)} layers restored"
    seconds = time.monotonic() - began_s
    print(f"{args.target}: {said}; {report.nbytes / 1e9:.2f} GB of weights in {seconds:.1f} s")
    write_json(
        args.json, {"schema_version": 1, "source": str(args.source), "target": str(args.target), **asdict(report)}
    )
    return 0
