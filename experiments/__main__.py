"""Measures an experiment, sums it up, or predicts it without a GPU: python -m experiments COMMAND CONFIG, each with --help."""

import argparse
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import TypeVar

from benchmarks.results_csv import gpu_description
from experiments import campaign, config, predict, results
from simulator.errors import SimulationError
from workload.traces import TraceError

RESULTS = Path("docs") / "results"
Value = TypeVar("Value", int, float, str)


def main(argv: list[str] | None = None) -> int:
    """Run or sum up an experiment; return the exit status: 0 done, 1 something failed, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start each system and replay the load; then sum up")
    run.add_argument("--trace", type=Path, required=True, help="Azure trace, CSV, or Mooncake trace, .jsonl")
    run.add_argument("--runs", help="names, comma-separated (default: all of the configuration)")
    run.add_argument("--rates", help="of the configuration's, comma-separated, in this order")
    run.add_argument("--seeds", help="of the configuration's, comma-separated")
    run.add_argument("--port", type=int, default=8480)
    run.add_argument("--minutes", type=float, help="begin no load test that would end later")
    run.add_argument(
        "--step-log",
        type=Path,
        help="folder for a log of the service's steps, which slows each (python -m simulator fit)",
    )
    summary = commands.add_parser("summary", help="sum up the reports that are there: summary.json")
    simulated = commands.add_parser("predict", help="simulate it: predicted.json beside the summary")
    simulated.add_argument("--trace", type=Path, required=True, help="Azure trace, CSV")
    simulated.add_argument(
        "--table", type=Path, required=True, help="step costs of the engine (python -m simulator fit)"
    )
    for command in (run, summary, simulated):
        command.add_argument("config", type=Path, help="experiments/configs/NAME.yaml")
        command.add_argument("--out", type=Path, help="folder of the reports (default: runs/NAME)")
        command.add_argument("--results", type=Path, default=RESULTS, help=f"parent of the summary ({RESULTS})")
    args = parser.parse_args(argv)
    try:
        experiment = config.load(args.config)
        out = args.out or Path("runs") / experiment.name
        whole = True
        if args.command == "run":
            wanted = chosen("--runs", args.runs, tuple(each.name for each in experiment.runs))
            if not args.trace.is_file():
                raise config.ExperimentError(f"--trace: no such file: {args.trace}")
            deadline_s = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
            rates = chosen("--rates", args.rates, experiment.load.rates_rps)
            seeds = chosen("--seeds", args.seeds, experiment.load.seeds)
            part = experiment.model_copy(
                update={"load": experiment.load.model_copy(update={"rates_rps": rates, "seeds": seeds})}
            )
            out.mkdir(parents=True, exist_ok=True)
            (out / results.MACHINE).write_text(f"{gpu_description()}; {platform.machine()}, {os.cpu_count()} cores\n")
            running = campaign.Campaign(part, args.trace.resolve(), out, _say, args.step_log)
            whole = running.measure(wanted, args.port, deadline_s)
        if args.command == "predict":
            return _predict(experiment, args)
        found = results.collect(experiment, out)
        folder = args.results / experiment.name
        if (folder / results.KEPT).exists():
            found = results.joined(results.read(folder), found)
    except (config.ExperimentError, SimulationError, TraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results.write(found, folder)
    print(f"{len(found.runs)} load tests in {folder / results.KEPT}; python -m docs.tables shows them")
    return 0 if whole else 1


def _predict(experiment: config.Experiment, args: argparse.Namespace) -> int:
    found = predict.predict(experiment, args.trace, args.table, _say)
    folder = args.results / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / predict.KEPT).write_text(found.model_dump_json(indent=1) + "\n")
    print(f"{len(found.runs)} predictions in {folder / predict.KEPT}; python -m docs.tables shows them")
    return 0


def chosen(option: str, text: str | None, known: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the values that an option names, in its order; without it all that are known.

    Raises:
        config.ExperimentError: for one that the configuration does not have.
    """
    if text is None:
        return known
    by_text = {value if isinstance(value, str) else f"{value:g}": value for value in known}
    try:
        return tuple(by_text[name.strip()] for name in text.split(","))
    except KeyError as error:
        raise config.ExperimentError(f"{option}: unknown: {error.args[0]}; known: {', '.join(by_text)}") from None


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the service that we started is stopped
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; reports of whole load tests are kept, and summary sums them up", file=sys.stderr)
        sys.exit(130)
