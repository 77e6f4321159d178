"""Arguments of the simulator's command line: the load, the cluster, and what becomes of them."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.config import explain
from simulator.bench import Load
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import TABLE
from simulator.errors import SimulationError
from workload.strict_yaml import YamlFileError, read_yaml_file
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
        "--rate", type=float, action="append", metavar="R", help="mean requests/s; may repeat (the trace's own)"
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


def read_load(args: argparse.Namespace) -> Load:
    """The trace or the generator, checked, as the rates are."""
    if (args.trace is None) == (args.generate is None):
        raise SimulationError("expected one of --trace and --generate")
    if args.generate is not None and args.start:
        raise SimulationError(
            f"--start: of the window of a --trace; a generated load begins at 0 s, got {args.start:g}: leave it out"
        )
    if args.duration is not None and not 0 < args.duration < float("inf"):
        raise SimulationError(f"--duration: expected seconds above 0, got {args.duration:g}")
    for rate in args.rate or ():
        if not 0 < rate < 1e6:
            raise SimulationError(f"--rate: expected requests per second above 0, got {rate:g}")
    trace = None if args.trace is None else read_trace(args.trace)
    return Load(trace, args.start, args.duration, args.generate == "bursts")


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


def read_section(path: Path | None) -> dict[str, Any]:
    """The controller's section of a YAML file; a file without a key ``controller`` is the section."""
    if path is None:
        return {}
    try:
        content = read_yaml_file(path)
    except YamlFileError as error:
        raise SimulationError(str(error)) from error
    section = content.get("controller", content) if isinstance(content, dict) else content
    if not isinstance(section, dict):
        raise SimulationError(f"{path}: expected keys and values, got {type(section).__name__}")
    return section
