"""Arguments of the simulator's command line: the load, the cluster, and what becomes of them."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.config import explain
from simulator.bench import Bench, Generator, make_bench
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import TABLE, read_table
from simulator.errors import SimulationError
from workload.strict_yaml import YamlFileError, read_yaml_file
from workload.synthetic import MEAN_RATE_RPS
from workload.traces import read_trace


def make_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the module's text as it stands, and which takes no abbreviations."""
    return argparse.ArgumentParser(
        prog=f"python -m simulator {command}".rstrip(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_load(parser: argparse.ArgumentParser) -> None:
    """What arrives."""
    group = parser.add_argument_group("load (one of --trace and --generate)")
    group.add_argument("--trace", type=Path, metavar="CSV", help="Azure trace")
    group.add_argument("--generate", choices=("poisson", "bursts"), help="arrivals with Azure's lengths")
    group.add_argument(
        "--load", type=float, action="append", metavar="F", help="mean rate over the FP16 capacity; may repeat"
    )
    group.add_argument("--start", type=float, default=0.0, metavar="S", help="of the window of the trace")
    group.add_argument("--duration", type=float, metavar="S", help="of the window (all of the trace; generated: 600)")
    group.add_argument("--seed", type=int, default=0)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The replicas."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="(%(default)s)")
    group.add_argument("--table", type=Path, default=TABLE, metavar="JSON", help="the engine (the table that ships)")
    group.add_argument("--admission-limit", type=int, metavar="N", help="ongoing requests of a replica (none)")
    group.add_argument(
        "--max-replicas", type=int, metavar="N", help="up to which the autoscaler may go (none are added)"
    )
    group.add_argument("--cold-start", type=float, default=60.0, metavar="S", help="of an added replica (%(default)g)")


def check_window(args: argparse.Namespace) -> None:
    """One source of requests, and a span that can be."""
    if (args.trace is None) == (args.generate is None):
        raise SimulationError("expected one of --trace and --generate")
    if args.generate is not None and args.start:
        raise SimulationError(
            f"--start: of the window of a --trace; a generated load begins at 0 s, got {args.start:g}: leave it out"
        )
    if args.duration is not None and not 0 < args.duration < float("inf"):
        raise SimulationError(f"--duration: expected seconds above 0, got {args.duration:g}")


def read_loads(args: argparse.Namespace) -> list[float | None]:
    """Check the load's arguments; None stands for the trace's own rate."""
    check_window(args)
    for load in args.load or ():
        if not 0 < load < 100:
            raise SimulationError(f"--load: expected a fraction of FP16 capacity above 0, such as 0.8, got {load:g}")
    if args.generate is not None and not args.load:
        raise SimulationError("--generate: expected --load, the mean rate over the FP16 capacity")
    return list(args.load) if args.load else [None]


def read_bench(args: argparse.Namespace) -> Bench:
    """The trace, or the generator, on the engine."""
    table = read_table(args.table)
    if args.trace is not None:
        return make_bench(table, read_trace(args.trace), args.start, args.duration)
    generator = Generator(args.generate == "bursts", args.duration or 600.0, args.seed)
    arrivals = generator.arrivals(MEAN_RATE_RPS)
    if not arrivals:
        raise SimulationError(f"no request in {generator.duration_s:g} s; raise --duration")
    return make_bench(table, arrivals, 0.0, generator.duration_s, generator=generator)


def check_folder(path: Path | None) -> None:
    """A file is written at the end; that it can be is known at the start."""
    if path is not None and not path.parent.is_dir():
        raise SimulationError(f"{path}: the folder {path.parent} does not exist")
    if path is not None and path.is_dir():
        raise SimulationError(f"{path}: expected a file to write, got a folder; name a file in it")


def make_scenario(args: argparse.Namespace) -> Scenario:
    """The cluster of the arguments."""
    try:
        return Scenario.model_validate(
            {
                "replicas": args.replicas,
                "max_replicas": args.max_replicas,
                "cold_start_s": args.cold_start,
                "admission_limit": args.admission_limit,
                "seed": args.seed,
            }
        )
    except ValidationError as error:
        raise SimulationError(explain(error).replace("\n", "; ")) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of keys and values."""
    try:
        content = read_yaml_file(path)
    except YamlFileError as error:
        raise SimulationError(str(error)) from error
    if not isinstance(content, dict):
        raise SimulationError(f"{path}: expected keys and values, got {type(content).__name__}")
    return content


def read_section(path: Path | None) -> dict[str, Any]:
    """The controller's section of a YAML file; a file without a key ``controller`` is the section."""
    if path is None:
        return {}
    content = read_yaml(path)
    section = content.get("controller", content)
    if not isinstance(section, dict):
        raise SimulationError(f"{path}: controller: expected keys and values, got {type(section).__name__}")
    return section
