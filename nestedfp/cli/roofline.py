"""``nestedfp roofline MODEL --gpu H100``: what a step of decodes takes at best, exact and fast, and where fast pays.

MODEL is a checkpoint, of which only headers are read, or a folder with the config.json of a Llama alone. --measured lays a table
of the simulator beside it, such as simulator/engine/tables/h100-llama-8b-load.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from nestedfp.cli.output import UsageError, figure, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("model", type=Path, help="folder of a checkpoint, or of a config.json")
    parser.add_argument("--gpu", default="H100", help="H100, H200, A100 or L40S (default: H100)")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel GPUs (default: 1)")
    parser.add_argument("--context", type=int, default=512, metavar="TOKENS", help="of each request (default: 512)")
    parser.add_argument("--measured", type=Path, metavar="FILE.json", help="table of the simulator")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write bytes, FLOPs and times of every step")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw times over rows")


def run(args: argparse.Namespace) -> int:
    """Print the table; return the exit status."""
    from nestedfp.checkpoint import read_config, read_object
    from nestedfp.offline import roofline
    from nestedfp.offline.inspect import inspect

    if args.gpu not in roofline.GPUS:
        raise UsageError(f"--gpu: expected one of {', '.join(roofline.GPUS)}, got {args.gpu}")
    if args.ranks < 1 or args.context < 0:
        raise UsageError(
            f"expected --ranks of 1 or more and --context of 0 or more, got {args.ranks} and {args.context}"
        )
    config, matrices, nested = read_config(args.model), None, set()
    if any(args.model.glob("*.safetensors")):
        layers = inspect(args.model, lambda _: None, headers_only=True).layers
        matrices = {layer.module: (layer.weight.shape[0], layer.weight.shape[1]) for layer in layers}
        nested = {layer.module for layer in layers if layer.verdict.is_linear}
    shape, gpu = roofline.shape_of(config, matrices, nested), roofline.GPUS[args.gpu]
    steps = [
        roofline.step(shape, gpu, answers, rows, args.context, args.ranks)
        for rows in roofline.ROWS
        for answers in (roofline.EXACT, roofline.FAST)
    ]
    if args.measured:
        table = read_object(args.measured)
        steps = [
            replace(each, measured_ms=roofline.measured_ms(table, each.answers, each.rows, args.context))
            for each in steps
        ]
    found = roofline.report(args.gpu, steps, args.context, args.ranks)
    print(roofline.table(found))
    write_json(args.json, {"model": str(args.model), **found})
    if args.plot:
        _draw(args, steps, found)
    return 0


def _draw(args: argparse.Namespace, steps: list[Any], found: dict[str, Any]) -> None:
    with figure(args.plot) as axes:
        for answers, colour in (("exact", "C0"), ("fast", "C1")):
            mine = [each for each in steps if each.answers == answers]
            rows = [each.rows for each in mine]
            axes.plot(rows, [each.predicted_ms for each in mine], color=colour, label=f"{answers}: at best")
            if args.measured:
                axes.plot(rows, [each.measured_ms for each in mine], ".", color=colour, label=f"{answers}: measured")
        axes.axvline(found["free_rows"]["exact"], color="grey", linestyle=":", linewidth=1)
        axes.annotate("reading the weights\nhides the arithmetic", (1.1, axes.get_ylim()[1]), va="top", color="grey")
        axes.set(xscale="log", yscale="log", xlabel="rows of a step (requests that decode)", ylabel="ms")
        axes.set_title(
            f"{args.model.resolve().name} on {args.ranks} x {args.gpu}, {args.context} tokens of context each"
        )
        axes.legend()
